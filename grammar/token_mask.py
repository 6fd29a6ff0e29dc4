"""Masks: which tokens a configuration allows.

A mask is int32[ceil(V/32)], bit `t % 32` of word `t // 32` set when token `t` is allowed. A token is allowed when
its bytes lead to a configuration that tokens of the vocabulary can complete.

The general way walks the whole trie along the transitions. Inside a string most of it is known beforehand
(`plain_text.py`): plain text is a ready mask, what ends the string is decided group by group, the rest is walked.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.configuration import BYTE, DETOUR, EXCEPT, KEY, RANGES, interior_kind, intern, transition
from structgen.grammar.mask_tables import BYTE_READ, DEPTH, END, TOKEN, MaskTables
from structgen.grammar.numba_cache import lean
from structgen.grammar.plain_text import QUOTE, is_plain_byte
from structgen.grammar.program import Interior
from structgen.grammar.tables import (
    COST,
    COUNT,
    DEAD,
    ENDS_KEY,
    IN_TOKENS,
    INFINITE,
    LENGTH,
    NEEDED,
    RETURN_TO,
    START,
    UNKNOWN,
    Array,
    Tables,
)

FREE, COUNTED, CANONICAL = int(Interior.FREE), int(Interior.COUNTED), int(Interior.CANONICAL)
# Behind an incomplete character or escape, at most this many more tokens are needed than before it.
MARGIN = 16
LETTER = 0x61  # any plain character stands for all
ANY_ROOM = 1 << 30


@lean
def fill(tables: Tables, shared: MaskTables, config: int, limit: int, path: Array, mask: Array, seen: Array) -> int:
    """Set the bits of all tokens that lead from `config` to where at most `limit` tokens are needed.

    Args:
        path: int32[2 * (height + 1)], scratch.
        mask: int32[mask_words], overwritten.
        seen: int64[3], set: the highest number of tokens needed (min_tokens_to_complete) after an allowed token,
            the highest after one that only the limit forbids, and whether tokens end keys that were not declared.
    Returns:
        0, or GROW / LIMIT.
    """
    seen[0], seen[1], seen[2] = 0, 0, 0
    room = _room(tables, config, limit, seen)
    if room < 0 or (room != ANY_ROOM and not _only_interior_takes_text(tables, config)):
        mask[:] = 0
        return _walk(tables, shared, shared.nodes, config, limit, path, mask, seen)
    longest = len(shared.masks) - 1
    if room == ANY_ROOM:
        base = _base(tables, config)
        if base < 0:
            return base
        status = _inside(tables, shared, base, limit, path, mask, seen)
        if status < 0 or base == config:
            return status
        return _difference(tables, shared, config, base, limit, path, mask, seen)
    _copy(mask, shared.masks[min(room, longest)])
    if not _is_counted_interior(tables, config):
        return _walk(tables, shared, shared.others, config, limit, path, mask, seen)
    if room > longest:
        return _inside(tables, shared, config, limit, path, mask, seen)
    status = _exits(tables, shared, config, room, limit, path, mask, seen)
    return status if status < 0 else _walk(tables, shared, shared.rest, config, limit, path, mask, seen)


@lean
def _base(tables: Tables, config: int) -> int:
    """The configuration of one pair inside a string with room for any text, of those in `config`; or GROW.

    Keys that must not be some names are read, but for those names, as this configuration reads them.
    """
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        key = tables.elements[index]
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        kind = interior_kind(tables, state)
        if kind in (0, COUNTED):
            continue
        if tables.code[state, 0] == EXCEPT:
            state = tables.code[state, 3]
        tables.work[1, 0] = stack << np.int64(32) | np.int64(state)
        return intern(tables, 1)
    return config


@lean
def _inside(tables: Tables, shared: MaskTables, config: int, limit: int, path: Array, mask: Array, seen: Array) -> int:
    """The mask of a configuration inside a string that has room for any token."""
    start = tables.config[config, START]
    kind = 0
    for index in range(start, start + tables.config[config, LENGTH]):
        kind = max(kind, interior_kind(tables, tables.elements[index] & np.int64(0xFFFFFFFF)))
    canonical = kind in (KEY, CANONICAL)
    _copy(mask, shared.canonical_mask if canonical else shared.free_mask)
    status = _exits(tables, shared, config, ANY_ROOM, limit, path, mask, seen)
    if status < 0:
        return status
    leaving = shared.canonical_leaving if canonical else shared.free_leaving
    return _walk(tables, shared, leaving, config, limit, path, mask, seen)


@lean
def _difference(
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
def _clear_token(mask: Array, same: Array, token: int) -> None:
    while token >= 0:
        mask[token >> 5] &= ~(np.int32(1) << np.int32(token & 31))
        token = same[token]


@lean
def _copy(target: Array, source: Array) -> None:
    for word in range(len(target)):
        target[word] = source[word]


@lean
def _set_token(mask: Array, same: Array, token: int) -> None:
    """Allow a token and all that have the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.int32(1) << np.int32(token & 31)
        token = same[token]


@lean
def _walk(
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
def _is_within(tables: Tables, config: int, limit: int, seen: Array) -> bool:
    needed = tables.config[config, NEEDED]
    if needed <= limit:
        seen[0] = max(seen[0], needed)
        return True
    if needed < INFINITE:
        seen[1] = max(seen[1], needed)
    return False


@lean
def _exits(
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


@lean
def _room(tables: Tables, config: int, limit: int, seen: Array) -> int:
    """How many plain characters the configuration takes for certain, with at most `limit` tokens needed after them.

    -1: it is not inside a string, or the limit decides token by token. ANY_ROOM: any number.
    """
    room, start = -1, tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        key = tables.elements[index]
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        kind = interior_kind(tables, state)
        if kind == 0:
            continue
        needed = np.int64(tables.distance[state, IN_TOKENS]) + tables.stack[stack, COST] + 1
        if tables.code[state, 0] == EXCEPT:
            needed += DETOUR  # text that ends in a forbidden key
        if needed + MARGIN > limit:
            return -1
        seen[0] = max(seen[0], needed + MARGIN)
        if kind != COUNTED:
            room = ANY_ROOM
        else:
            most = tables.code[tables.stack[stack, RETURN_TO], 3]
            room = max(room, ANY_ROOM - 1 if most < 0 else most - tables.stack[stack, COUNT])
    return room


@lean
def _is_counted_interior(tables: Tables, config: int) -> bool:
    """Whether plain text changes nothing but a count: one pair inside a counted text, and its quote if that is open."""
    start, length = tables.config[config, START], tables.config[config, LENGTH]
    first = tables.elements[start] & np.int64(0xFFFFFFFF)
    if length == 1:
        return tables.code[first, 0] == RANGES and tables.code[first, 3] == COUNTED
    if length != 2:
        return False
    second = tables.elements[start + 1] & np.int64(0xFFFFFFFF)
    if tables.code[first, 0] == BYTE:
        first, second = second, first
    return (
        tables.code[first, 0] == RANGES
        and tables.code[first, 3] == COUNTED
        and tables.code[second, 0] == BYTE
        and tables.code[second, 1] == QUOTE
    )


@lean
def _only_interior_takes_text(tables: Tables, config: int) -> bool:
    """Whether plain text is read by the pairs inside a string alone, so that their room decides about it."""
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b, kind = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2], tables.code[state, 3]
        if op == BYTE:
            if is_plain_byte(a):
                return False
        elif op == EXCEPT:
            return False
        elif op == RANGES and kind == 0:
            for edge in range(a, a + 3 * b, 3):
                for byte in range(tables.edges[edge], tables.edges[edge + 1] + 1):
                    if is_plain_byte(byte):
                        return False
    return True
