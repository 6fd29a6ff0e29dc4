"""Walks through the token trie, along the transitions of a configuration, that set and clear bits of a mask.

The look-up of a transition is written out in the two hot loops, where `_step` would say the same: measured, a call
there costs up to half of the time of a new mask.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.configuration import transition
from structgen.grammar.mask_tables import BYTE_READ, DEPTH, END, TOKEN, MaskTables
from structgen.grammar.numba_cache import lean
from structgen.grammar.plain_text import QUOTE
from structgen.grammar.tables import DEAD, ENDS_KEY, INFINITE, NEEDED, UNKNOWN, Array, Tables

LETTER = 0x61  # any plain character stands for all


@lean
def copy_mask(target: Array, source: Array) -> None:
    for word in range(len(target)):
        target[word] = source[word]


@lean
def _set_token(mask: Array, same: Array, token: int) -> None:
    """Allow a token and all that have the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.int32(1) << np.int32(token & 31)
        token = same[token]


@lean
def _clear_token(mask: Array, same: Array, token: int) -> None:
    while token >= 0:
        mask[token >> 5] &= ~(np.int32(1) << np.int32(token & 31))
        token = same[token]


@lean
def walk(
    tables: Tables, shared: MaskTables, nodes: Array, config: int, limit: int, path: Array, mask: Array, seen: Array
) -> int:
    """Visit every token of a trie that the transitions allow."""
    path[0] = config
    node, count = 0, len(nodes)
    while node < count:
        depth, byte = nodes[node, DEPTH], nodes[node, BYTE_READ]
        here = path[depth]
        following = tables.transitions[here, byte]
        if following == UNKNOWN:
            following = transition(tables, here, byte)
            if following < UNKNOWN:
                return following
        if following == DEAD:
            node = nodes[node, END]
            if depth == 0 and count == len(shared.nodes):
                node = _next_root(tables, shared, config, byte, node)
            continue
        path[depth + 1] = following
        seen[2] |= tables.config[following, ENDS_KEY]
        if nodes[node, TOKEN] >= 0 and _is_within(tables, following, limit, seen):
            _set_token(mask, shared.same, nodes[node, TOKEN])
        node += 1
    return 0


@lean
def _next_root(tables: Tables, shared: MaskTables, config: int, byte: int, node: int) -> int:
    """From a first byte that is dead to the next that is not: the subtrees between are far apart in memory."""
    for other in range(byte + 1, 256):
        if shared.root[other] >= 0:
            if tables.transitions[config, other] != DEAD:
                return shared.root[other]
            node = len(shared.nodes)
    return node


@lean
def difference_walk(
    tables: Tables, shared: MaskTables, config: int, base: int, limit: int, path: Array, mask: Array, seen: Array
) -> int:
    """Turn the mask of `base` into that of `config`: only tokens on which the two go different ways are visited."""
    half = len(path) // 2
    path[0], path[half] = config, base
    nodes = shared.others
    node = 0
    while node < len(nodes):
        depth, byte = nodes[node, DEPTH], nodes[node, BYTE_READ]
        here, there = path[depth], path[half + depth]
        following = tables.transitions[here, byte]
        if following == UNKNOWN:
            following = transition(tables, here, byte)
            if following < UNKNOWN:
                return following
        beside = DEAD
        if there >= 0:
            beside = tables.transitions[there, byte]
            if beside == UNKNOWN:
                beside = transition(tables, there, byte)
                if beside < UNKNOWN:
                    return beside
        if following == beside:
            node = nodes[node, END]
            continue
        if following == DEAD:
            for inner in range(node, nodes[node, END]):
                _clear_token(mask, shared.same, nodes[inner, TOKEN])
            node = nodes[node, END]
            continue
        path[depth + 1], path[half + depth + 1] = following, beside
        seen[2] |= tables.config[following, ENDS_KEY]
        if nodes[node, TOKEN] >= 0:
            if _is_within(tables, following, limit, seen):
                _set_token(mask, shared.same, nodes[node, TOKEN])
            else:
                _clear_token(mask, shared.same, nodes[node, TOKEN])
        node += 1
    return 0


@lean
def _is_within(tables: Tables, config: int, limit: int, seen: Array) -> bool:
    needed = tables.config[config, NEEDED]
    if needed <= limit:
        seen[0] = max(seen[0], needed)
        return True
    if needed < INFINITE:
        seen[1] = max(seen[1], needed)
    return False


@lean
def allow_exits(
    tables: Tables, shared: MaskTables, config: int, room: int, limit: int, path: Array, mask: Array, seen: Array
) -> int:
    """Allow the tokens that end the string behind at most `room` plain characters, group by group.

    What is behind the quote may depend on how many characters came before it, up to where more change nothing: a
    text of at least n characters, or one that ends in a loop.
    """
    length, outside, longest = 0, -1, len(shared.masks) - 1
    while length <= min(room, longest):
        following = _step(tables, config, QUOTE)
        if following < UNKNOWN:
            return following
        after = _step(tables, config, LETTER)
        if after < UNKNOWN:
            return after
        # With a count, configurations differ for ever; the quote once open stays open.
        settled = after == config or (following >= 0 and following == outside)
        if following >= 0:
            last = room if settled else length
            status = _exits_to(tables, shared, following, (length, last), limit, path, mask, seen)
            if status < 0:
                return status
        if settled or after == DEAD:
            break
        outside, config = following, after
        length += 1
    return 0


@lean
def _step(tables: Tables, config: int, byte: int) -> int:
    following = tables.transitions[config, byte]
    return transition(tables, config, byte) if following == UNKNOWN else following


@lean
def _exits_to(
    tables: Tables,
    shared: MaskTables,
    outside: int,
    lengths: tuple[int, int],
    limit: int,
    path: Array,
    mask: Array,
    seen: Array,
) -> int:
    """Allow tokens with plain text of `lengths` characters and a quote, which leads to the configuration `outside`."""
    seen[2] |= tables.config[outside, ENDS_KEY]
    if _is_within(tables, outside, limit, seen):
        _set_group(mask, shared, 0, lengths)
    path[0] = outside
    nodes = shared.exits
    node = 0
    while node < len(nodes):
        depth = nodes[node, DEPTH]
        following = _step(tables, path[depth], nodes[node, BYTE_READ])
        if following < UNKNOWN:
            return following
        if following == DEAD:
            node = nodes[node, END]
            continue
        path[depth + 1] = following
        seen[2] |= tables.config[following, ENDS_KEY]
        if nodes[node, TOKEN] >= 0 and _is_within(tables, following, limit, seen):
            _set_group(mask, shared, nodes[node, TOKEN], lengths)
        node += 1
    return 0


@lean
def _set_group(mask: Array, shared: MaskTables, group: int, lengths: tuple[int, int]) -> None:
    for index in range(shared.group_start[group], shared.group_start[group + 1]):
        token = shared.group_tokens[index]
        if lengths[0] <= shared.length[token] <= lengths[1]:
            mask[token >> 5] |= np.int32(1) << np.int32(token & 31)
