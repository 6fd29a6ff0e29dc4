"""A JSON text as far as it has been read: its open containers, what they hold, and what is being read.

Readings are immutable and share what they have in common, so that a text can be tried and given up for nothing.
Texts are beginnings of what a grammar accepts: nothing is checked here but that keys of objects, and the items of
arrays that are said to be unique, do not come twice.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

QUOTE, BACKSLASH, COMMA, COLON = 0x22, 0x5C, 0x2C, 0x3A
OPEN, CLOSE, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
BLANKS = frozenset(b" \t\n\r")

# What a reading is in: before a value, in a string, in a key, in a number or word; behind a value, before a key (or
# the end of an empty object), before a colon.
VALUE, STRING, KEY, SCALAR, AFTER, MEMBER, BEFORE_COLON = range(7)

Value = tuple[str, Hashable]


class Level(NamedTuple):
    """An open container.

    Attributes:
        unique: above 0, no two items of an array may be equal; 2: and items that differ cannot run out.
        frames: of a unique array, the frames on the stacks of an automaton that tell it.
        is_kept: its values are kept, because it is unique or lies in an array that is.
        keys: the finished keys of an object, as they are spelled; the last may still be without a value.
        values: the finished items or values, where they are kept.
    """

    below: Level | None
    is_object: bool
    unique: int
    frames: frozenset[int]
    is_kept: bool
    keys: tuple[bytes, ...] = ()
    values: tuple[Value, ...] = ()


class Reading(NamedTuple):
    """`partial` is what has been read of a string (behind its quote), a key, a number or a word."""

    level: Level | None
    mode: int
    partial: bytes


START = Reading(None, VALUE, b"")


def step(reading: Reading, byte: int, frames: frozenset[int] = frozenset(), is_free: bool = False) -> Reading | None:
    """After one more byte; None where a key or a unique item has come again.

    Args:
        frames, is_free: of the array that this byte begins, if it begins one. Without frames it is not unique.
    """
    level, mode, partial = reading
    if mode in (STRING, KEY):
        return _in_text(level, mode, partial, byte)
    if byte in BLANKS and mode != SCALAR:
        return reading
    if mode == SCALAR:
        if byte not in b",]} \t\n\r":
            return Reading(level, SCALAR, partial + bytes((byte,)))
        ended = _with_value(level, scalar_value(partial))
        return None if ended is None else step(ended, byte, frames, is_free)
    if byte in (CLOSE, CLOSE_ARRAY):
        assert level is not None
        return _with_value(level.below, _container(level) if level.is_kept else ("", None))
    if mode in (AFTER, BEFORE_COLON):
        return Reading(level, MEMBER if mode == AFTER and level is not None and level.is_object else VALUE, b"")
    if byte == QUOTE:
        return Reading(level, KEY if mode == MEMBER else STRING, b"")
    if byte == OPEN:
        return Reading(Level(level, True, 0, frozenset(), level is not None and level.is_kept), MEMBER, b"")
    if byte == OPEN_ARRAY:
        kept = bool(frames) or (level is not None and level.is_kept)
        return Reading(Level(level, False, (1 + is_free) * bool(frames), frames, kept), VALUE, b"")
    return Reading(level, SCALAR, bytes((byte,)))


def _in_text(level: Level | None, mode: int, partial: bytes, byte: int) -> Reading | None:
    if byte != QUOTE or ends_in_escape(partial):
        if mode == STRING and (level is None or not level.is_kept):
            # Of a string that nobody asks for, only whether the next byte is escaped.
            return Reading(level, mode, b"\\" if byte == BACKSLASH and partial != b"\\" else b"")
        return Reading(level, mode, partial + bytes((byte,)))
    if mode == STRING:
        kept = level is not None and level.is_kept
        return _with_value(level, ("text", json.loads(b'"' + partial + b'"')) if kept else ("", None))
    assert level is not None
    if partial in level.keys:
        return None
    return Reading(level._replace(keys=(*level.keys, partial)), BEFORE_COLON, b"")


def ends_in_escape(partial: bytes) -> bool:
    """Whether a backslash has just begun an escape."""
    return (len(partial) - len(partial.rstrip(b"\\"))) % 2 == 1


def scalar_value(text: bytes) -> Value:
    if text in (b"true", b"false", b"null"):
        return "word", text
    return "number", Decimal(text.decode())


def _container(level: Level) -> Value:
    if level.is_object:
        return "object", frozenset(zip(level.keys, level.values, strict=True))
    return "array", level.values


def _with_value(level: Level | None, value: Value) -> Reading | None:
    """A value has ended in a container."""
    if level is not None and level.is_kept:
        if level.unique and value in level.values:
            return None
        level = level._replace(values=(*level.values, value))
    return Reading(level, AFTER, b"")


def unlike(reading: Reading) -> Iterator[tuple[frozenset[int], Reading]]:
    """The reading as if arrays in which a value may end now were not unique, each with the frames of these arrays."""
    level = reading.level
    if level is None:
        return
    below = level.below
    if level.unique:
        yield level.frames, reading._replace(level=level._replace(unique=0))
    if below is not None and below.unique:
        outer = below._replace(unique=0)
        yield below.frames, reading._replace(level=level._replace(below=outer))
        yield below.frames | level.frames, reading._replace(level=level._replace(below=outer, unique=0))


def with_fresh_text(reading: Reading) -> Reading:
    """As if the string or key that is being read had ended, and were none that came before."""
    level, mode, _ = reading
    if mode == KEY:
        assert level is not None
        return Reading(level._replace(keys=(*level.keys, b'"')), BEFORE_COLON, b"")  # no key is a bare quote
    ended = _with_value(level, ("fresh", None))
    assert ended is not None
    return ended


@lru_cache(maxsize=4096)
def letters_of(value: Value) -> frozenset[int]:
    """The bytes of all texts and names in a value, as they are spelled without escapes."""
    kind, content = value
    if kind == "text":
        return frozenset(str(content).encode("utf-8", "surrogatepass"))
    parts: frozenset[int] = frozenset()
    if kind == "array" and isinstance(content, tuple):
        parts = parts.union(*map(letters_of, content))
    elif kind == "object" and isinstance(content, frozenset):
        parts = parts.union(*(letters_of(one).union(name) for name, one in content))
    return parts
