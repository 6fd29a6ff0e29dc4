"""Listed numbers in every plain decimal spelling: 1, 1.0, 1.00; -0.0 is zero."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

_CHARACTERS = "-.0123456789"
_EQUAL = "="  # a listed number was read, and zeros behind its spelling
_OTHER = "!"


class Values:
    """Reads the numbers `among` some values, or all others. States are the prefixes of the values."""

    start = ""

    def __init__(self, values: Iterable[Decimal], *, among: bool) -> None:
        self._among = among
        self._ends: set[str] = set()
        for value in values:
            self._ends |= _spellings(value)
        self._prefixes = {text[:length] for text in self._ends for length in range(len(text) + 1)}
        # 1.50 is a prefix of 1.503, and equal to 1.5.
        self._ends |= {text for text in self._prefixes if "." in text and text.rstrip("0") in self._ends}

    def step(self, state: str, index: int) -> str | None:
        following = state + _CHARACTERS[index]
        if following in self._prefixes:
            return following
        if _CHARACTERS[index] == "0" and (state == _EQUAL or ("." in state and state in self._ends)):
            return _EQUAL
        return None if self._among else _OTHER

    def accepts(self, state: str) -> bool:
        return (state == _EQUAL or state in self._ends) == self._among


def _spellings(value: Decimal) -> set[str]:
    """The shortest spelling, and with a point if it has none; behind a point zeros may follow."""
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    signs = ["", "-"] if value == 0 else ["-" if value < 0 else ""]
    # A number may end behind digits only: `1.` is a prefix of `1.0` and no spelling, which is for `Bounds` to see.
    texts = [f"{whole}.{fraction}"] if fraction else [whole, f"{whole}."]
    return {sign + text for sign in signs for text in texts}
