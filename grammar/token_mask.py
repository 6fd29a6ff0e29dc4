"""Masks: which tokens a configuration allows.

A mask is int32[ceil(V/32)], bit `t % 32` of word `t // 32` set when token `t` is allowed. A token is allowed when
its bytes lead to a configuration that tokens of the vocabulary can complete.

The general way walks the whole trie along the transitions. Inside a string most of it is known beforehand
(`plain_text.py`): plain text is a ready mask, what ends the string is decided group by group, the rest is walked.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.blank_run import blanks_ahead
from structgen.grammar.configuration import interior_kind, intern
from structgen.grammar.loops import step
from structgen.grammar.mask_tables import MaskTables
from structgen.grammar.mask_walk import (
    NOT_ALIKE,
    allow_exits,
    copy_mask,
    difference_walk,
    only_interior_takes_text,
    walk,
    walk_all,
    walk_groups,
)
from structgen.grammar.numba_cache import lean
from structgen.grammar.ops import BYTE, CANONICAL, COUNTED, DETOUR, EXCEPT, KEY, RANGES
from structgen.grammar.plain_bytes import QUOTE, SPACE
from structgen.grammar.tables import (
    COST,
    COUNT,
    DEAD,
    FINAL,
    IN_TOKENS,
    LENGTH,
    RETURN_TO,
    START,
    UNKNOWN,
    Array,
    Tables,
)

# Behind an incomplete character or escape, at most this many more tokens are needed than before it.
MARGIN = 16
ANY_ROOM = 1 << 30


@lean
def fill(tables: Tables, shared: MaskTables, config: int, limit: int, mask: Array) -> int:
    """Set the bits of all tokens that lead from `config` to where at most `limit` tokens are needed, and of EOS.

    Args:
        mask: int32[mask_words], overwritten.
    Returns:
        0, or GROW / LIMIT. `tables.seen` is set: the highest number of tokens needed (min_tokens_to_complete) after an
        allowed token, the highest after one that only the limit forbids, and whether tokens end keys that were not
        declared.
    """
    tables.seen[0], tables.seen[1], tables.seen[2] = 0, 0, 0
    status = _fill_text(tables, shared, config, limit, mask)
    if status >= 0 and tables.config[config, FINAL] != 0:
        for index in range(len(shared.eos)):
            mask[shared.eos[index] >> 5] |= np.int32(1) << np.int32(shared.eos[index] & 31)
    return status


@lean
def _fill_text(tables: Tables, shared: MaskTables, config: int, limit: int, mask: Array) -> int:
    """`fill` without EOS."""
    room = _room(tables, config, limit)
    if room < 0 or (room != ANY_ROOM and not only_interior_takes_text(tables, config)):
        return _outside(tables, shared, config, limit, mask)
    longest = len(shared.masks) - 1
    if room == ANY_ROOM:
        base = _base(tables, config)
        if base < 0:
            return base
        status = _inside(tables, shared, base, limit, mask)
        if status < 0 or base == config:
            return status
        return difference_walk(tables, shared, config, base, limit, mask)
    copy_mask(mask, shared.masks[min(room, longest)])
    if not _is_counted_interior(tables, config):
        return walk(tables, shared, shared.others, config, limit, mask)
    if room > longest:
        return _inside(tables, shared, config, limit, mask)
    status = allow_exits(tables, shared, config, room, limit, mask)
    if status < 0:
        return status
    return walk(tables, shared, shared.others if status == NOT_ALIKE else shared.rest, config, limit, mask)


@lean
def _outside(tables: Tables, shared: MaskTables, config: int, limit: int, mask: Array) -> int:
    """The mask of a configuration that is not inside a string of any text.

    Where a run of blanks may come, what follows it does not depend on its length: tokens are decided by what is behind
    their blanks.
    """
    blanks = blanks_ahead(tables, config)
    if blanks <= 0:
        return walk_all(tables, shared, config, limit, mask, True)
    behind = step(tables, config, SPACE)
    if behind < UNKNOWN:
        return behind
    if behind == DEAD or blanks_ahead(tables, behind) != blanks - 1:
        return walk_all(tables, shared, config, limit, mask, True)
    status = walk_all(tables, shared, config, limit, mask, False)
    return status if status < 0 else walk_groups(tables, shared.blanks, behind, (1, blanks), limit, mask)


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
        if kind <= 0 or kind == COUNTED:
            continue
        if tables.code[state, 0] == EXCEPT:
            state = tables.code[state, 3]
        tables.work[1, 0] = stack << np.int64(32) | np.int64(state)
        return intern(tables, 1)
    return config


@lean
def _inside(tables: Tables, shared: MaskTables, config: int, limit: int, mask: Array) -> int:
    """The mask of a configuration inside a string that has room for any token."""
    start = tables.config[config, START]
    kind = 0
    for index in range(start, start + tables.config[config, LENGTH]):
        kind = max(kind, interior_kind(tables, tables.elements[index] & np.int64(0xFFFFFFFF)))
    canonical = kind in (KEY, CANONICAL)
    copy_mask(mask, shared.canonical_mask if canonical else shared.free_mask)
    status = allow_exits(tables, shared, config, ANY_ROOM, limit, mask)
    if status < 0:
        return status
    if status == NOT_ALIKE:
        return walk(tables, shared, shared.others, config, limit, mask)
    leaving = shared.canonical_leaving if canonical else shared.free_leaving
    return walk(tables, shared, leaving, config, limit, mask)


@lean
def _room(tables: Tables, config: int, limit: int) -> int:
    """How many plain characters the configuration takes for certain, with at most `limit` tokens needed after them.

    -1: it is not inside a string, or the limit decides token by token. ANY_ROOM: any number.
    """
    room, start = -1, tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        key = tables.elements[index]
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        kind = interior_kind(tables, state)
        if kind <= 0:
            continue
        needed = np.int64(tables.distance[state, IN_TOKENS]) + tables.stack[stack, COST] + 1
        if tables.code[state, 0] == EXCEPT:
            needed += DETOUR  # text that ends in a forbidden key
        if needed + MARGIN > limit:
            return -1
        tables.seen[0] = max(tables.seen[0], needed + MARGIN)
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
