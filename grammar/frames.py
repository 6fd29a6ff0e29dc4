"""Stacks of frames: hash-consed linked lists, and what it costs to complete them."""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.ops import CALLED, EXIT, FIRST, LEAST, LENGTHS, LOOP, MOST, PERIOD, TEXT, WIDTH
from structgen.grammar.tables import (
    ALIVE,
    BLOCKED,
    COST,
    COUNT,
    ERROR,
    GROW,
    IN_BYTES,
    IN_TOKENS,
    INFINITE,
    PARENT,
    RETURN_TO,
    STACKS,
    Array,
    Tables,
    stack_slot,
)


@lean_inline
def saturate(value: int) -> int:
    return min(value, INFINITE)


@lean
def text_cost(code: Array, edges: Array, distance: Array, unit: int, state: int, count: int) -> int:
    """The distance from a TEXT state, reached after `count` characters, to the end of its exit."""
    at = code[state, 1]
    wanted = max(edges[at + LEAST] - count, 0)
    lengths, period = edges[at + LENGTHS], edges[at + PERIOD]
    shift = 0
    if wanted >= lengths:
        shift = (wanted - lengths + period) // period * period
    length = edges[at + FIRST + wanted - shift]
    if length >= INFINITE:
        return INFINITE
    most = edges[at + MOST]
    if most >= 0 and count + length + shift > most:
        return INFINITE
    return saturate(np.int64(length + shift) * edges[at + WIDTH] + distance[edges[at + EXIT], unit])


@lean
def member_cost(tables: Tables, unit: int, object_: int, index: int) -> int:
    """What the required member number `index` of an object adds to the distance to the object's end."""
    offset = tables.code[object_, 1]
    start = tables.edges[offset + 3 + 2 * index]
    after = tables.edges[offset + 1]
    whole, rest = tables.distance[start, unit], tables.distance[after, unit]
    if whole >= INFINITE or rest >= INFINITE:
        return INFINITE
    return max(whole - rest, 0) + 1


@lean
def required_index(tables: Tables, object_: int, member: int) -> int:
    offset = tables.code[object_, 1]
    for index in range(tables.code[object_, 2]):
        if tables.edges[offset + 2 + 2 * index] == member:
            return index
    return -1


@lean
def object_below(tables: Tables, stack: int) -> int:
    """The OBJECT state whose members are on top of the stack."""
    while tables.stack[stack, COUNT] != -1:
        stack = tables.stack[stack, PARENT]
    return tables.stack[stack, RETURN_TO]


@lean
def _frame_cost(tables: Tables, unit: int, ret: int, count: int) -> int:
    """The distance that a frame adds to what lies below it; INFINITE when it cannot be completed."""
    code, distance = tables.code, tables.distance
    if count == CALLED:
        return distance[ret, unit]
    if code[ret, 0] == TEXT:
        if unit == IN_TOKENS and distance[ret, unit] == BLOCKED:
            return INFINITE
        return text_cost(code, tables.edges, distance, unit, ret, count)
    if code[ret, 0] == LOOP:
        offset = code[ret, 1]
        missing = max(code[ret, 2] - count - 1, 0)
        cost = np.int64(distance[tables.edges[offset + 1], unit])
        if missing > 0:
            cost += np.int64(missing) * distance[tables.edges[offset], unit]
        return int(min(cost, INFINITE))
    cost = np.int64(0)
    if count == -1:
        for index in range(code[ret, 2]):
            cost += member_cost(tables, unit, ret, index)
    else:
        index = required_index(tables, ret, count)
        if index >= 0:
            cost -= member_cost(tables, unit, ret, index)
    return int(min(cost, INFINITE))


@lean
def push(tables: Tables, ret: int, count: int, parent: int) -> int:
    """The stack node for frame (ret, count) above `parent`, interned."""
    slot = stack_slot(tables, ret, count, parent)
    mask = len(tables.stack_hash) - 1
    while tables.stack_hash[slot] >= 0:
        node = tables.stack_hash[slot]
        row = tables.stack[node]
        if row[RETURN_TO] == ret and row[COUNT] == count and row[PARENT] == parent:
            return node
        slot = (slot + 1) & mask
    node = tables.meta[STACKS]
    if node >= len(tables.stack):
        tables.meta[ERROR] = GROW
        return 0
    tables.meta[STACKS] = node + 1
    row, below = tables.stack[node], tables.stack[parent]
    row[RETURN_TO], row[COUNT], row[PARENT] = ret, count, parent
    row[ALIVE] = below[ALIVE] if _frame_cost(tables, IN_BYTES, ret, count) < INFINITE else 0
    tokens = _frame_cost(tables, IN_TOKENS, ret, count)
    if tokens >= INFINITE or below[COST] >= INFINITE:
        row[COST] = INFINITE
    else:
        row[COST] = saturate(below[COST] + tokens)
    tables.stack_hash[slot] = node
    return node


@lean
def with_member(tables: Tables, stack: int, object_: int, member: int) -> int:
    """`stack` with `member` inserted into the descending run of seen members; -1 when it is there already.

    The order makes equal sets equal stacks, whatever order they were seen in.
    """
    below = stack
    moved = 0
    while tables.stack[below, COUNT] > member and tables.stack[below, RETURN_TO] == object_:
        below = tables.stack[below, PARENT]
        moved += 1
    if tables.stack[below, RETURN_TO] == object_ and tables.stack[below, COUNT] == member:
        return -1
    node = push(tables, object_, member, below)
    for step in range(moved):
        above = stack
        for _ in range(moved - 1 - step):
            above = tables.stack[above, PARENT]
        node = push(tables, object_, tables.stack[above, COUNT], node)
    return node


@lean
def all_required_seen(tables: Tables, stack: int, object_: int) -> bool:
    seen = 0
    while tables.stack[stack, COUNT] != -1:
        if required_index(tables, object_, tables.stack[stack, COUNT]) >= 0:
            seen += 1
        stack = tables.stack[stack, PARENT]
    return seen == tables.code[object_, 2]
