"""Whether what is being read may still become something that has come before and must not come again.

`may_repeat` may be true without need (numbers have many spellings), never false where a repetition is possible: who
has left all that came before behind is free.
"""

from __future__ import annotations

import json
from decimal import Decimal

from structgen.grammar.json_reading import (
    AFTER,
    BEFORE_COLON,
    KEY,
    MEMBER,
    SCALAR,
    STRING,
    VALUE,
    Level,
    Reading,
    Value,
    ends_in_escape,
)


def may_repeat(reading: Reading, finite_names: bool) -> bool:
    """Whether a key or a unique item that is being read, or must be read next, could be one that came before.

    Args:
        finite_names: there are keys whose names can run out, so that beginning one is a risk already.
    """
    level, mode, partial = reading
    if level is None:
        return False
    if mode == KEY and any(key.startswith(partial) for key in level.keys):
        return True
    if mode == MEMBER and finite_names and level.keys:
        return True
    if not level.is_kept:
        return False
    inner: list[Level] = []  # the open containers within the item, outermost last
    here: Level | None = level
    while here is not None:
        begun = inner or mode in (STRING, SCALAR, VALUE)
        if here.is_unique and begun and any(_could_be(inner[::-1], reading, one) for one in here.values):
            return True
        inner.append(here)
        here = here.below
    return False


def _could_be(inner: list[Level], reading: Reading, value: Value) -> bool:
    """Whether an item of which `inner` are the open containers could become a value."""
    mode = reading.mode
    for depth, level in enumerate(inner):
        is_last = depth == len(inner) - 1
        kind, content = value
        done = len(level.values)
        if level.is_object:
            if kind != "object":
                return False
            members = dict(content)  # type: ignore[call-overload]
            if any(members.get(key) != one for key, one in zip(level.keys, level.values, strict=False)):
                return False
            if len(level.keys) == done:
                if mode == KEY:
                    return any(key.startswith(reading.partial) for key in members.keys() - set(level.keys))
                return mode != MEMBER or done == 0 or len(members) > done
            if level.keys[-1] not in members:
                return False
            if is_last and mode == BEFORE_COLON:
                return True
            value = members[level.keys[-1]]
        else:
            if kind != "array" or content[:done] != level.values:  # type: ignore[index]
                return False
            if is_last and (mode == AFTER or (mode == VALUE and done == 0)):
                return True
            if done >= len(content):  # type: ignore[arg-type]
                return False
            value = content[done]  # type: ignore[index]
    if mode == STRING:
        return value[0] == "text" and str(value[1]).startswith(_begun_text(reading.partial))
    return mode != SCALAR or _could_be_scalar(reading.partial, value)


def _begun_text(partial: bytes) -> str:
    """The characters of a string of which `partial` has been read, without an escape or character that is open."""
    for stop in range(len(partial), -1, -1):  # not more than the longest escape
        if ends_in_escape(partial[:stop]):
            continue
        try:
            text = str(json.loads('"' + partial[:stop].decode() + '"'))
        except ValueError:
            continue
        return text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text
    raise AssertionError("no text begins like this")


def _could_be_scalar(partial: bytes, value: Value) -> bool:
    if value[0] == "word":
        return isinstance(value[1], bytes) and value[1].startswith(partial)
    if value[0] != "number" or partial[:1] in (b"t", b"f", b"n"):
        return False
    number = value[1]
    assert isinstance(number, Decimal)
    if b"e" in partial or b"E" in partial:
        return True
    # However it goes on, the digits that are there begin the significant digits of the number.
    begun = partial.lstrip(b"-").replace(b".", b"").lstrip(b"0").decode()
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if begun and number and (number < 0) != partial.startswith(b"-"):
        return False
    return (digits + "0" * len(begun)).startswith(begun)
