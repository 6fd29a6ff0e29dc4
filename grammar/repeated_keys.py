"""Which tokens would end a key that its object has already: the compiled part of `key_memory.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structgen.grammar.mask_tables import MaskTables
from structgen.grammar.numba_cache import lean
from structgen.grammar.plain_bytes import QUOTE
from structgen.grammar.seen_keys import (
    COUNT,
    DEPTH,
    IN_STRING,
    IS_KEY,
    LENGTH,
    REPEATED,
    START,
    first_key,
    new_state,
    scan,
)
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import BYTE_READ, END, TOKEN


class KeyText(NamedTuple):
    """A text, and the arrays of `seen_keys.scan` for it; and those for reading a token that is only tried."""

    text: Array
    keys: Array
    levels: Array
    state: Array
    tried_keys: Array
    tried_levels: Array
    tried_state: Array


def new_key_text(size: int) -> KeyText:
    """With room for `size` bytes."""
    keys, levels = (size // 2 + 1, 2), size + 1
    return KeyText(
        np.empty(size, np.uint8),
        np.empty(keys, np.int64),
        np.empty(levels, np.int64),
        new_state(),
        np.empty(keys, np.int64),
        np.empty(levels, np.int64),
        new_state(),
    )


@lean
def append(memory: KeyText, blob: Array, start: int, stop: int) -> None:
    """Read blob[start:stop] behind the text."""
    length = memory.state[LENGTH]
    for place in range(start, stop):
        memory.text[length] = blob[place]
        length += 1
    memory.state[LENGTH] = length
    scan(memory.text, length, memory.keys, memory.levels, memory.state)


@lean
def would_repeat(memory: KeyText, known: MaskTables, token: int) -> bool:
    """Read a token behind the text, with copies of all that reading changes."""
    state, tried = memory.state, memory.tried_state
    length = state[LENGTH]
    for place in range(known.starts[token], known.starts[token + 1]):
        memory.text[length] = known.blob[place]
        length += 1
    for slot in range(len(state)):
        tried[slot] = state[slot]
    for key in range(state[COUNT]):
        memory.tried_keys[key, 0], memory.tried_keys[key, 1] = memory.keys[key, 0], memory.keys[key, 1]
    for level in range(state[DEPTH]):
        memory.tried_levels[level] = memory.levels[level]
    scan(memory.text, length, memory.tried_keys, memory.tried_levels, tried)
    return bool(tried[REPEATED] != 0)


@lean
def forbid(memory: KeyText, known: MaskTables, row: Array, also_spelled: bool) -> bool:
    """Clear the bits of tokens that would end a key again; with `also_spelled` also of those that would spell it."""
    text, keys, state = memory.text, memory.keys, memory.state
    found = False
    first, count = first_key(memory.levels, state), state[COUNT]
    if state[IN_STRING] != 0 and state[IS_KEY] != 0:
        begun = state[LENGTH] - state[START]
        for key in range(first, count):
            start, stop = keys[key, 0], keys[key, 1]
            if stop - start >= begun and _same(text, start, text, state[START], begun):
                found |= _forbid_rest(known, text, start + begun, stop, row, also_spelled)
    else:
        for index in range(len(known.whole_keys)):
            token = known.whole_keys[index, 0]
            if not _allows(row, token):
                continue
            start = known.starts[token] + known.whole_keys[index, 1] + 1
            length = known.whole_keys[index, 2] - known.whole_keys[index, 1] - 1
            for key in range(first, count):
                if keys[key, 1] - keys[key, 0] == length and _same(text, keys[key, 0], known.blob, start, length):
                    if would_repeat(memory, known, token):
                        _forbid_token(row, token)
                        found = True
                    break
    for index in range(len(known.several_keys)):
        token = known.several_keys[index]
        if _allows(row, token) and would_repeat(memory, known, token):
            _forbid_token(row, token)
            found = True
    return found


@lean
def _forbid_rest(known: MaskTables, text: Array, start: int, stop: int, row: Array, also_spelled: bool) -> bool:
    """Forbid the tokens that begin with text[start:stop] and a quote; with `also_spelled` also text[start:stop]."""
    found = False
    first, last = 0, len(known.nodes)  # the children of what was read so far
    node = -1
    for place in range(start, stop + 1):
        byte = np.int64(QUOTE) if place == stop else np.int64(text[place])
        if place == start:
            node = known.root[byte]
        else:
            node = first
            while node < last and known.nodes[node, BYTE_READ] != byte:
                node = known.nodes[node, END]
            if node >= last:
                node = -1
        if node < 0:
            return found
        first, last = node + 1, known.nodes[node, END]
        if place == stop - 1 and also_spelled:
            found |= _forbid_node(known, node, row)
    for below in range(node, last):
        found |= _forbid_node(known, below, row)
    return found


@lean
def _forbid_node(known: MaskTables, node: int, row: Array) -> bool:
    """Forbid the tokens of one node of the trie."""
    found = False
    token = known.nodes[node, TOKEN]
    while token >= 0:
        found |= _allows(row, token)
        _forbid_token(row, token)
        token = known.same[token] if len(known.same) > 0 else -1
    return found


@lean
def _forbid_token(row: Array, token: int) -> None:
    row[token >> 5] &= ~(np.int32(1) << np.int32(token & 31))


@lean
def _allows(row: Array, token: int) -> bool:
    return bool((row[token >> 5] >> np.int32(token & 31)) & 1)


@lean
def _same(one: Array, start: int, other: Array, other_start: int, length: int) -> bool:
    offset = 0
    while offset < length and one[start + offset] == other[other_start + offset]:
        offset += 1
    return offset == length
