"""The vocabulary as a trie in depth-first order, in flat arrays.

Node `i` has its children right behind it; `end[i]` is the first node after its subtree, so that a walk that
fails at `i` goes on at `end[i]`. Tokens with equal bytes share a node and are linked through `same[token]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structgen.grammar.numba_cache import jit, lean
from structgen.grammar.tables import INFINITE, Array

PAIRS_FROM = 20_000  # nodes


class TokenTrie(NamedTuple):
    """N nodes, V tokens. Depth 0 is the first byte."""

    byte: Array  # uint8[N]
    depth: Array  # int32[N]
    end: Array  # int32[N]
    token: Array  # int32[N]  first token that ends here, or -1
    same: Array  # int32[V]   next token with the same bytes, or -1
    root: Array  # int32[256]  the node of each first byte, or -1
    byte_cost: Array  # int32[256]  1 where a token spells the single byte, else INFINITE
    pairs: Array  # int32[65536]  the node of each two first bytes, or -1; empty where the trie is small
    height: int  # longest token in bytes

    @property
    def nodes(self) -> int:
        return len(self.byte)


@jit
def _build(blob: Array, starts: Array, ids: Array, out: tuple[Array, Array, Array, Array, Array]) -> int:
    byte, depth, end, token, same = out
    path = np.zeros(len(blob) + 1, np.int32)
    nodes, previous_start, previous_length = 0, 0, 0
    for order in range(len(ids)):
        start, length = starts[order], starts[order + 1] - starts[order]
        common = 0
        while common < min(length, previous_length) and blob[start + common] == blob[previous_start + common]:
            common += 1
        if common == length and order > 0 and previous_length == length:
            node = path[length - 1]
            same[ids[order]] = token[node]
            token[node] = ids[order]
            continue
        for level in range(common, previous_length):
            end[path[level]] = nodes
        for level in range(common, length):
            byte[nodes], depth[nodes], token[nodes] = blob[start + level], level, -1
            path[level] = nodes
            nodes += 1
        token[nodes - 1] = ids[order]
        previous_start, previous_length = start, length
    for level in range(previous_length):
        end[path[level]] = nodes
    return nodes


def build_trie(tokens: Sequence[bytes | None], ids: Sequence[int]) -> TokenTrie:
    """A trie of `tokens[i] for i in ids`; empty and missing tokens are left out."""
    order = sorted((i for i in ids if tokens[i]), key=lambda i: tokens[i] or b"")
    spelled = [tokens[i] or b"" for i in order]
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum([len(one) for one in spelled], out=starts[1:])
    blob = np.frombuffer(b"".join(spelled), dtype=np.uint8)
    room = len(blob)
    arrays = (
        np.zeros(room, np.uint8),
        np.zeros(room, np.int32),
        np.zeros(room, np.int32),
        np.full(room, -1, np.int32),
        np.full(len(tokens), -1, np.int32),
    )
    nodes = _build(blob, starts, np.array(order, dtype=np.int64), arrays) if order else 0
    byte, depth, end, token = (array[:nodes].copy() for array in arrays[:4])
    root, byte_cost = np.full(256, -1, np.int32), np.full(256, INFINITE, np.int32)
    first = np.flatnonzero(depth == 0)
    root[byte[first]] = first
    byte_cost[byte[first[token[first] >= 0]]] = 1
    pairs = _pairs(byte, depth) if nodes > PAIRS_FROM else np.zeros(0, np.int32)
    return TokenTrie(byte, depth, end, token, arrays[4], root, byte_cost, pairs, max(map(len, spelled), default=0))


def _pairs(byte: Array, depth: Array) -> Array:
    """Most first bytes have so many second ones that to search among them takes microseconds."""
    pairs = np.full(1 << 16, -1, np.int32)
    second = np.flatnonzero(depth == 1)
    first = np.flatnonzero(depth == 0)
    parents = first[np.searchsorted(first, second) - 1]
    pairs[byte[parents].astype(np.int32) << 8 | byte[second]] = second
    return pairs


@lean
def child(trie: TokenTrie, node: int, byte: int) -> int:
    """The child of `node` (-1: the root) along `byte`, or -1."""
    if node < 0:
        return int(trie.root[byte])
    if trie.depth[node] == 0 and len(trie.pairs):
        return int(trie.pairs[np.int32(trie.byte[node]) << 8 | byte])
    current, stop = node + 1, trie.end[node]
    while current < stop:
        if trie.byte[current] == byte:
            return current
        if trie.byte[current] > byte:
            return -1
        current = trie.end[current]
    return -1
