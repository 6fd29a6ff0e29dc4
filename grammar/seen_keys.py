"""Which keys an object that is being written has already.

Declared members come once by the automaton's own structure. Other keys may be any text, so which of them were used
is no finite state: a matcher reads it off its own text, and only where a token could complete another key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structgen.grammar.numba_cache import jit
from structgen.grammar.tables import Array

QUOTE, BACKSLASH, COMMA = 0x22, 0x5C, 0x2C
OPEN, CLOSE, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D


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
    keys = np.empty((len(text) // 2 + 1, 2), np.int64)
    first, count, partial, repeated = _scan(data, keys, np.empty(len(text) + 1, np.int64))
    found = [text[start:stop] for start, stop in keys[first:count].tolist()]
    return SeenKeys(found, text[partial:] if partial >= 0 else None, repeated)


@jit
def _scan(text: Array, keys: Array, levels: Array) -> tuple[int, int, int, bool]:
    """Keys of all open objects lie in `keys`, outer ones first; `levels` has where each object's begin (-1: array)."""
    depth, count = 0, 0
    repeated, in_string, is_key, expects_key = False, False, False, False
    start, index = 0, 0
    while index < len(text):
        byte = text[index]
        if in_string:
            if byte == BACKSLASH:
                index += 1
            elif byte == QUOTE:
                in_string = False
                if is_key:
                    repeated = repeated or _is_among(text, keys, levels[depth - 1], count, start, index)
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
    first = count
    if depth > 0 and levels[depth - 1] >= 0:
        first = levels[depth - 1]
    return first, count, start if in_string and is_key else -1, repeated


@jit
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
