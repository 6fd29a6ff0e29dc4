"""The tokens of a vocabulary that begin with blanks, grouped by what follows the blanks.

Between the tokens of JSON a run of blanks may stand, and what may follow it does not depend on its length. A tenth of a
vocabulary's structural tokens differ in their blanks alone, so they are decided group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structgen.grammar.plain_bytes import BLANKS
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import TokenTrie, build_trie


class BlankTokens(NamedTuple):
    """V tokens, G groups.

    Attributes:
        rests: the trie of what is behind the blanks, without the empty text. Its "tokens" are group numbers; group 0
            is the empty text.
        group_start: int32[G + 1], offsets into `group_tokens`.
        group_tokens: int32[n], token ids.
        blanks: int32[V], how many blanks a token begins with.
    """

    rests: TokenTrie
    group_start: Array
    group_tokens: Array
    blanks: Array


def blank_tokens(tokens: Sequence[bytes | None]) -> BlankTokens:
    """Sort the tokens; those without a blank in front are in no group."""
    groups: dict[bytes, list[int]] = {b"": []}
    blanks = np.zeros(len(tokens), np.int32)
    for i, token in enumerate(tokens):
        if token and token[0] in BLANKS:
            rest = token.lstrip(BLANKS)
            blanks[i] = len(token) - len(rest)
            groups.setdefault(rest, []).append(i)
    group_start = np.zeros(len(groups) + 1, np.int32)
    np.cumsum([len(members) for members in groups.values()], out=group_start[1:])
    group_tokens = np.array([i for members in groups.values() for i in members], dtype=np.int32)
    return BlankTokens(build_trie(list(groups), range(len(groups))), group_start, group_tokens, blanks)
