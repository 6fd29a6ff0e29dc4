"""Whether what is being read may still become something that has come before and must not come again.

`may_repeat` may be true without need (numbers have many spellings), never false where a repetition is possible: who
has left all that came before behind is free.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache

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
        if here.unique and begun and any(_could_be(inner[::-1], reading, one) for one in here.values):
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
        return value[0] == "text" and _could_be_text(reading.partial, str(value[1]))
    return mode != SCALAR or _could_be_scalar(reading.partial, value)


def _could_be_text(partial: bytes, text: str) -> bool:
    begun, low, high = _begun_text(partial)
    if not text.startswith(begun):
        return False
    return low < 0 or (len(text) > len(begun) and low <= ord(text[len(begun)]) <= high)


@lru_cache(maxsize=256)
def _begun_text(partial: bytes) -> tuple[str, int, int]:
    """What a string of which `partial` has been read begins with: whole characters, and the range of one that is open.

    The range is (-1, -1) where no character or escape is open.
    """
    if b"\\" not in partial and partial[-1:] < b"\x80":
        return partial.decode(), -1, -1
    for stop in range(len(partial), max(len(partial) - 12, -1), -1):
        if ends_in_escape(partial[:stop]):
            continue
        try:
            text = str(json.loads('"' + partial[:stop].decode() + '"'))
        except ValueError:
            continue
        if "\ud800" <= text[-1:] <= "\udbff":  # the other half of the character is missing
            return text[:-1], 0x10000, 0x10FFFF
        return (text, *_range_of(partial[stop:]))
    raise AssertionError("no text begins like this")


def _range_of(begun: bytes) -> tuple[int, int]:
    """Which characters an escape or a UTF-8 sequence may become of which this has been read."""
    if not begun:
        return -1, -1
    if begun[0] != 0x5C:
        width = 2 if begun[0] < 0xE0 else (3 if begun[0] < 0xF0 else 4)
        bits = begun[0] & (0x7F >> width)
        for byte in begun[1:]:
            bits = bits << 6 | byte & 0x3F
        shift = 6 * (width - len(begun))
        return bits << shift, (bits + 1 << shift) - 1
    digits = begun[2:6].decode()
    if len(digits) == 4:
        return 0x10000, 0x10FFFF
    code, shift = int(digits or "0", 16), 4 * (4 - len(digits))
    low, high = code << shift, (code + 1 << shift) - 1
    # Half of a pair may become any character beyond these.
    return (low, 0x10FFFF) if low <= 0xDBFF and high >= 0xD800 else (low, high)


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
