"""What the mask engine reads of a vocabulary, packed: rows keep a node of a trie together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from structgen.grammar.byte_atoms import ATOM, atoms_of_nodes, atoms_of_tokens
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import packed

if TYPE_CHECKING:
    from structgen.grammar.vocabulary import Vocabulary


class TokenGroups(NamedTuple):
    """Tokens with equal endings: `nodes` is the trie of endings, whose tokens are group numbers; group 0 is empty."""

    nodes: Array  # int32[N, 4]
    start: Array  # int32[G + 1], offsets into `tokens`
    tokens: Array  # int32[n], token ids
    length: Array  # int32[V], how many characters come before the ending


class MaskTables(NamedTuple):
    """The tries as int32[N, 4] nodes, and the tables of `PlainText`."""

    nodes: Array  # all tokens
    root: Array  # int32[256]
    same: Array  # int32[V] the next token with the same bytes, or -1; empty where no two have
    atoms: Array  # int64[N, 2] see byte_atoms.py
    token_atoms: Array  # int64[mask_words * 32]
    atom: Array  # int64[256] the atom of each byte
    blob: Array  # uint8[n], the bytes of all tokens
    starts: Array  # int64[V + 1], offsets into `blob`
    eos: Array  # int32[k], the ids that end an output
    others: Array
    rest: Array
    free_leaving: Array
    canonical_leaving: Array
    masks: Array
    free_mask: Array
    canonical_mask: Array
    whole_keys: Array  # int32[W, 3]: the tokens with two quotes or more, and where the first two are
    several_keys: Array  # int32[M]: the tokens with three quotes or more, which may hold a key behind something else
    exits: TokenGroups  # plain text and a quote come before the ending
    blanks: TokenGroups  # blanks come before the ending


def mask_tables(vocabulary: Vocabulary) -> MaskTables:
    """The tables of a vocabulary."""
    trie, plain, blank = vocabulary.trie, vocabulary.plain_text, vocabulary.blank_tokens
    blob, starts = vocabulary.token_bytes
    nodes = packed(trie)
    atoms, token_atoms = np.empty((trie.nodes, 2), np.int64), np.empty(vocabulary.mask_words * 32, np.int64)
    atoms_of_nodes(nodes, ATOM, np.empty((trie.height + 1, 4), np.int64), atoms)
    atoms_of_tokens(nodes, atoms, trie.same, token_atoms)
    return MaskTables(
        nodes,
        trie.root,
        trie.same if np.any(trie.same >= 0) else trie.same[:0],
        atoms,
        token_atoms,
        ATOM,
        blob,
        starts,
        np.array(sorted(vocabulary.eos_token_ids), np.int32),
        packed(plain.others),
        packed(plain.rest),
        packed(plain.free_leaving),
        packed(plain.canonical_leaving),
        plain.masks,
        plain.free_mask,
        plain.canonical_mask,
        *_key_tokens(vocabulary.tokens),
        TokenGroups(packed(plain.exits), plain.group_start, plain.group_tokens, plain.length),
        TokenGroups(packed(blank.rests), blank.group_start, blank.group_tokens, blank.blanks),
    )


def _key_tokens(tokens: Sequence[bytes | None]) -> tuple[Array, Array]:
    """The tokens that may hold whole keys, and several."""
    whole = [(i, token) for i, token in enumerate(tokens) if token and token.count(b'"') >= 2]
    places = [(i, token.index(b'"'), token.index(b'"', token.index(b'"') + 1)) for i, token in whole]
    several = [i for i, token in whole if token.count(b'"') >= 3]
    return np.array(places, np.int32).reshape(-1, 3), np.array(several, np.int32)
