"""Which keys an object that is being written has already.

Declared members come once by the automaton's own structure. Other keys may be any text, so which of them were used
is no finite state: a matcher reads it off its own text, and only where a token could complete another key
(`key_memory.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structgen.grammar.numba_cache import lean
from structgen.grammar.tables import Array

QUOTE, BACKSLASH, COMMA = 0x22, 0x5C, 0x2C
OPEN, CLOSE, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D

# Slots of the state of a scan, int64[9], all zero before the first byte: where to read on (one byte further than what
# was read behind a backslash), the open containers, the keys of open objects, flags, where the string that is being
# read began; and how long the text is, for those who add to it.
POSITION, DEPTH, COUNT, IN_STRING, IS_KEY, EXPECTS_KEY, REPEATED, START, LENGTH = range(9)


class SeenKeys(NamedTuple):
    """What a text says about its innermost open object.

    Attributes:
        keys: its finished keys, as they are spelled between the quotes.
        partial: what has been written of a key that is open; None when none is.
        repeated: some object of the text, finished or not, has a key twice.
    """

    keys: list[bytes]
    partial: bytes | None
    repeated: bool


def seen_keys(text: bytes) -> SeenKeys:
    """Read the beginning of a JSON text (which the grammar has accepted). Linear in its length, about 1 ns a byte."""
    data = np.frombuffer(text, dtype=np.uint8)
    keys, levels, state = np.empty((len(text) // 2 + 1, 2), np.int64), np.empty(len(text) + 1, np.int64), new_state()
    scan(data, len(text), keys, levels, state)
    found = [text[start:stop] for start, stop in keys[first_key(levels, state) : state[COUNT]].tolist()]
    partial = text[state[START] :] if state[IN_STRING] and state[IS_KEY] else None
    return SeenKeys(found, partial, bool(state[REPEATED]))


def new_state() -> Array:
    """The state of a scan that has read nothing."""
    return np.zeros(9, np.int64)


@lean
def first_key(levels: Array, state: Array) -> int:
    """Where in `keys` those of the innermost open container begin, when that is an object; else their end."""
    depth = state[DEPTH]
    if depth > 0 and levels[depth - 1] >= 0:
        return int(levels[depth - 1])
    return int(state[COUNT])


@lean
def scan(text: Array, stop: int, keys: Array, levels: Array, state: Array) -> None:
    """Read text[state[POSITION]:stop].

    Keys of all open objects lie in `keys` (int64[n, 2], where they start and stop in the text), outer ones first;
    `levels` (int64[n]) has for each open container where its keys begin (-1: an array). A text of n bytes needs at
    most n // 2 + 1 keys and n + 1 levels.
    """
    depth, count, start = state[DEPTH], state[COUNT], state[START]
    in_string, is_key, expects_key = state[IN_STRING] != 0, state[IS_KEY] != 0, state[EXPECTS_KEY] != 0
    index = state[POSITION]
    while index < stop:
        byte = text[index]
        if in_string:
            if byte == BACKSLASH:
                index += 1
            elif byte == QUOTE:
                in_string = False
                if is_key:
                    if _is_among(text, keys, levels[depth - 1], count, start, index):
                        state[REPEATED] = 1
                    keys[count, 0], keys[count, 1] = start, index
                    count += 1
        elif byte == QUOTE:
            in_string, is_key, expects_key, start = True, expects_key, False, index + 1
        elif byte == OPEN:
            levels[depth] = count
            depth += 1
            expects_key = True
        elif byte == OPEN_ARRAY:
            levels[depth] = -1
            depth += 1
            expects_key = False
        elif byte in (CLOSE, CLOSE_ARRAY) and depth > 0:
            depth -= 1
            if levels[depth] >= 0:
                count = levels[depth]
            expects_key = False
        elif byte == COMMA:
            expects_key = depth > 0 and levels[depth - 1] >= 0
        index += 1
    state[DEPTH], state[COUNT], state[START], state[POSITION] = depth, count, start, index
    state[IN_STRING], state[IS_KEY], state[EXPECTS_KEY] = in_string, is_key, expects_key


@lean
def _is_among(text: Array, keys: Array, first: int, count: int, start: int, stop: int) -> bool:
    for key in range(first, count):
        if keys[key, 1] - keys[key, 0] != stop - start:
            continue
        same = True
        for offset in range(stop - start):
            if text[keys[key, 0] + offset] != text[start + offset]:
                same = False
                break
        if same:
            return True
    return False
