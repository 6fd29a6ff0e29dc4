"""What the mask engine reads of a vocabulary, packed: few arrays make calls cheap, rows keep a node together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structgen.grammar.plain_text import PlainText
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import TokenTrie

# Columns of trie nodes; see TokenTrie.
BYTE_READ, DEPTH, END, TOKEN = range(4)


class MaskTables(NamedTuple):
    """The tries as int32[N, 4] nodes, and the tables of `PlainText`."""

    nodes: Array  # all tokens
    root: Array  # int32[256]
    same: Array  # int32[V]
    others: Array
    exits: Array
    rest: Array
    free_leaving: Array
    canonical_leaving: Array
    masks: Array
    group_start: Array
    group_tokens: Array
    length: Array
    free_mask: Array
    canonical_mask: Array


def mask_tables(trie: TokenTrie, plain: PlainText) -> MaskTables:
    return MaskTables(
        packed(trie),
        trie.root,
        trie.same,
        packed(plain.others),
        packed(plain.exits),
        packed(plain.rest),
        packed(plain.free_leaving),
        packed(plain.canonical_leaving),
        plain.masks,
        plain.group_start,
        plain.group_tokens,
        plain.length,
        plain.free_mask,
        plain.canonical_mask,
    )


def packed(trie: TokenTrie) -> Array:
    """int32[N, 4]."""
    columns = (trie.byte.astype(np.int32), trie.depth, trie.end, trie.token)
    return np.ascontiguousarray(np.stack(columns, axis=1))
