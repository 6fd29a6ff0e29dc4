"""What one output's text says about its keys, kept up to date token by token, and the tokens that it forbids.

A key that was not declared may be any text, but must not come twice in its object. A token is forbidden where it
would end such a key again. Nearly always there is none: finding that out must cost about as much as copying a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from structgen.grammar.mask_tables import BYTE_READ, END, TOKEN
from structgen.grammar.numba_cache import lean
from structgen.grammar.seen_keys import (
    COUNT,
    DEPTH,
    IN_STRING,
    IS_KEY,
    LENGTH,
    QUOTE,
    REPEATED,
    START,
    first_key,
    new_state,
    scan,
)
from structgen.grammar.tables import Array

if TYPE_CHECKING:
    from structgen.grammar.vocabulary import Vocabulary


Spare = tuple[Array, Array, Array]  # keys, levels and a state for reading a token that is only tried


class KeyTokens(NamedTuple):
    """The tokens of a vocabulary that matter to keys. V tokens, N trie nodes."""

    nodes: Array  # int32[N, 4], see MaskTables
    root: Array  # int32[256]
    same: Array  # int32[V]
    blob: Array  # uint8[n], the bytes of all tokens
    starts: Array  # int64[V + 1]
    whole: Array  # int32[W, 3]: tokens with two quotes or more, and where the first two are
    several: Array  # int32[M]: tokens with three quotes or more, which may hold a key behind something else


def key_tokens(vocabulary: Vocabulary) -> KeyTokens:
    """Sort the tokens that hold quotes."""
    whole, several = [], []
    for i, token in enumerate(vocabulary.tokens):
        quotes = token.count(b'"') if token else 0
        if token and quotes >= 2:
            first = token.index(b'"')
            whole.append((i, first, token.index(b'"', first + 1)))
            if quotes >= 3:
                several.append(i)
    tables, (blob, starts) = vocabulary.mask_tables, vocabulary.token_bytes
    pairs = np.array(whole, np.int32).reshape(-1, 3)
    return KeyTokens(tables.nodes, tables.root, tables.same, blob, starts, pairs, np.array(several, np.int32))


class KeyMemory:
    """The keys of the open objects of one output, up to some token of it.

    It follows the output lazily: `update` reads the tokens that came since the last call.
    """

    __slots__ = ("_keys", "_known", "_levels", "_prefix", "_spare", "_state", "_text", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, prefix: bytes = b"") -> None:
        """`prefix` is what was read before the first token."""
        self._vocabulary = vocabulary
        self._prefix = prefix
        self._make_room(len(prefix) + 256)
        self._restart()

    def _make_room(self, size: int) -> None:
        self._text = np.empty(size, np.uint8)
        self._keys, self._levels = np.empty((size // 2 + 1, 2), np.int64), np.empty(size + 1, np.int64)
        self._spare = np.empty((size // 2 + 1, 2), np.int64), np.empty(size + 1, np.int64), new_state()

    def _restart(self) -> None:
        self._known = 0
        self._state = new_state()
        if self._prefix:
            self._text[: len(self._prefix)] = np.frombuffer(self._prefix, np.uint8)
            self._state[LENGTH] = len(self._prefix)
            scan(self._text, len(self._prefix), self._keys, self._levels, self._state)

    def truncate(self, count: int) -> None:
        """Only the first `count` tokens still hold."""
        if self._known > count:
            self._restart()

    def update(self, tokens: list[int]) -> None:
        """Follow the output, all of whose tokens are given."""
        new = tokens[self._known :]
        if not new:
            return
        # Room for these and for one token that is only tried.
        wanted = int(self._state[LENGTH]) + (len(new) + 1) * self._vocabulary.trie.height + 2
        if wanted > len(self._text):
            self._make_room(2 * wanted)
            self._restart()
            new = tokens
        self._known = len(tokens)
        _append(self._vocabulary.key_tokens, np.array(new, np.int64), self._text, self._keys, self._levels, self._state)

    def would_repeat(self, token: int) -> bool:
        """Whether a token would end a key again that its object has already."""
        return bool(
            _would_repeat(
                self._vocabulary.key_tokens, token, self._text, self._keys, self._levels, self._state, self._spare
            )
        )

    def forbid(self, row: Array, *, also_spelled: bool = False) -> bool:
        """Clear the bits of all tokens that would end a key again. Returns whether any was set.

        With `also_spelled`, those too that spell such a key without ending it.
        """
        known = self._vocabulary.key_tokens
        return bool(_forbid(known, self._text, self._keys, self._levels, self._state, self._spare, row, also_spelled))


@lean
def _append(known: KeyTokens, tokens: Array, text: Array, keys: Array, levels: Array, state: Array) -> None:
    for index in range(len(tokens)):
        for place in range(known.starts[tokens[index]], known.starts[tokens[index] + 1]):
            text[state[LENGTH]] = known.blob[place]
            state[LENGTH] += 1
    scan(text, state[LENGTH], keys, levels, state)


@lean
def _would_repeat(
    known: KeyTokens, token: int, text: Array, keys: Array, levels: Array, state: Array, spare: Spare
) -> bool:
    """Read the token behind the text, with copies of all that reading changes."""
    length, trial_keys, trial_levels = state[LENGTH], spare[0], spare[1]
    for place in range(known.starts[token], known.starts[token + 1]):
        text[length] = known.blob[place]
        length += 1
    trial = spare[2]
    for slot in range(len(state)):
        trial[slot] = state[slot]
    for key in range(state[COUNT]):
        trial_keys[key, 0], trial_keys[key, 1] = keys[key, 0], keys[key, 1]
    for level in range(state[DEPTH]):
        trial_levels[level] = levels[level]
    scan(text, length, trial_keys, trial_levels, trial)
    return bool(trial[REPEATED] != 0)


@lean
def _forbid(
    known: KeyTokens,
    text: Array,
    keys: Array,
    levels: Array,
    state: Array,
    spare: Spare,
    row: Array,
    also_spelled: bool,
) -> bool:
    found = False
    first, count = first_key(levels, state), state[COUNT]
    if state[IN_STRING] != 0 and state[IS_KEY] != 0:
        begun = state[LENGTH] - state[START]
        for key in range(first, count):
            start, stop = keys[key, 0], keys[key, 1]
            if stop - start >= begun and _same(text, start, text, state[START], begun):
                found |= _forbid_rest(known, text, start + begun, stop, row, also_spelled)
    else:
        for index in range(len(known.whole)):
            token = known.whole[index, 0]
            if not _allows(row, token):
                continue
            start = known.starts[token] + known.whole[index, 1] + 1
            length = known.whole[index, 2] - known.whole[index, 1] - 1
            for key in range(first, count):
                if keys[key, 1] - keys[key, 0] == length and _same(text, keys[key, 0], known.blob, start, length):
                    if _would_repeat(known, token, text, keys, levels, state, spare):
                        _forbid_token(row, token)
                        found = True
                    break
    for index in range(len(known.several)):
        token = known.several[index]
        if _allows(row, token) and _would_repeat(known, token, text, keys, levels, state, spare):
            _forbid_token(row, token)
            found = True
    return found


@lean
def _forbid_rest(known: KeyTokens, text: Array, start: int, stop: int, row: Array, also_spelled: bool) -> bool:
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
def _forbid_node(known: KeyTokens, node: int, row: Array) -> bool:
    """Forbid the tokens of one node of the trie."""
    found = False
    token = known.nodes[node, TOKEN]
    while token >= 0:
        found |= _allows(row, token)
        _forbid_token(row, token)
        token = known.same[token]
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
