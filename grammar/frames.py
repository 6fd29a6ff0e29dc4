"""Stacks of frames: hash-consed linked lists, and what it costs to complete them."""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.ops import (
    CALLED,
    EXIT,
    FILLERS,
    FIRST,
    FIRST_FILLER,
    LEAST,
    LEAST_MEMBERS,
    LENGTHS,
    LOOP,
    MOST,
    MOST_MEMBERS,
    OBJECT,
    PERIOD,
    TEXT,
    WIDTH,
)
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
def detour_cost(distance: Array, unit: int, start: int, after: int) -> int:
    """What a member that begins at `start` adds to the distance to the end of its object; members end at `after`."""
    whole, rest = distance[start, unit], distance[after, unit]
    if whole >= INFINITE or rest >= INFINITE:
        return INFINITE
    return max(whole - rest, 0) + 1


@lean
def member_cost(tables: Tables, unit: int, object_: int, index: int) -> int:
    """What the required member number `index` of an object adds to the distance to the object's end."""
    offset = tables.code[object_, 1]
    return detour_cost(tables.distance, unit, tables.edges[offset + 3 + 2 * index], tables.edges[offset + 1])


@lean
def required_index(tables: Tables, object_: int, member: int) -> int:
    offset = tables.code[object_, 1]
    for index in range(tables.code[object_, 2]):
        if tables.edges[offset + 2 + 2 * index] == member:
            return index
    return -1


@lean
def object_below(tables: Tables, stack: int) -> int:
    """The frame of the object whose members are on top of the stack."""
    while tables.stack[stack, COUNT] >= 0:
        stack = tables.stack[stack, PARENT]
    return stack


@lean_inline
def other_members(count: int) -> int:
    """How many members of number -1 the frame of an object with limits has counted."""
    return 0 if count == -1 else -2 - count


@lean
def is_seen(tables: Tables, stack: int, member: int) -> bool:
    """Whether a member is among those on top of the stack."""
    while tables.stack[stack, COUNT] > member:
        stack = tables.stack[stack, PARENT]
    return tables.stack[stack, COUNT] == member


@lean
def missing_members(tables: Tables, object_: int, stack: int) -> tuple[int, int]:
    """How many required members are missing, and how many more an object with limits has room for (INFINITE: any)."""
    required, seen = tables.code[object_, 2], 0
    while tables.stack[stack, COUNT] >= 0:
        if required_index(tables, object_, tables.stack[stack, COUNT]) >= 0:
            required -= 1
        seen += 1
        stack = tables.stack[stack, PARENT]
    seen += other_members(tables.stack[stack, COUNT])
    most = tables.edges[tables.code[object_, 3] + MOST_MEMBERS]
    return required, INFINITE if most < 0 else most - seen


@lean
def fill_cost(tables: Tables, unit: int, object_: int, count: int, stack: int) -> int:
    """What the members that an object with limits still needs add to the distance, required ones included.

    Seen are `count`, when it is a member, and those on top of the stack; else `count` is that of the object's frame.
    Of the members that may be chosen freely, the cheapest are counted, those of number -1 as often as needed: then
    taking the cheapest one lowers the cost by all that it costs.
    """
    code, edges = tables.code, tables.edges
    offset, limits = code[object_, 1], code[object_, 3]
    after = edges[offset + 1]
    base, seen = count, 0
    if count >= 0:
        base, seen = 0, 1
        below = stack
        while tables.stack[below, COUNT] >= 0:
            seen += 1
            below = tables.stack[below, PARENT]
        base = tables.stack[below, COUNT]
    seen += other_members(base)
    cost = np.int64(0)
    missing = edges[limits + LEAST_MEMBERS] - seen
    for index in range(code[object_, 2]):
        member = edges[offset + 2 + 2 * index]
        if member == count or (count >= 0 and is_seen(tables, stack, member)):
            continue
        cost += member_cost(tables, unit, object_, index)
        missing -= 1
    # The cheapest first: each time the next in order of cost and place.
    last, last_index = np.int64(-1), -1
    while missing > 0:
        best, best_index, best_member = np.int64(INFINITE), -1, 0
        for index in range(edges[limits + FILLERS]):
            pair = limits + FIRST_FILLER + 2 * index
            member = edges[pair]
            own = np.int64(detour_cost(tables.distance, unit, edges[pair + 1], after))
            if own < last or (own == last and index <= last_index) or own >= best:
                continue
            if member >= 0 and (member == count or (count >= 0 and is_seen(tables, stack, member))):
                continue
            best, best_index, best_member = own, index, member
        if best_index < 0:
            return INFINITE
        times = missing if best_member < 0 else 1
        cost += times * best
        missing -= times
        last, last_index = best, best_index
    return int(min(cost, INFINITE))


@lean
def _frame_cost(tables: Tables, unit: int, ret: int, count: int, parent: int) -> int:
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
    if code[ret, 0] == OBJECT and code[ret, 3] > 0:
        return 0 if fill_cost(tables, unit, ret, count, parent) < INFINITE else INFINITE  # see `push`
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
    row[ALIVE] = below[ALIVE] if _frame_cost(tables, IN_BYTES, ret, count, parent) < INFINITE else 0
    if tables.code[ret, 0] == OBJECT and tables.code[ret, 3] > 0 and count != CALLED:
        # What is needed depends on all members seen: it is counted anew above what lies below the object.
        tokens = fill_cost(tables, IN_TOKENS, ret, count, parent)
        if count >= 0:
            below = tables.stack[tables.stack[object_below(tables, parent), PARENT]]
    else:
        tokens = _frame_cost(tables, IN_TOKENS, ret, count, parent)
    if tokens >= INFINITE or below[COST] >= INFINITE:
        row[COST] = INFINITE
    else:
        row[COST] = saturate(below[COST] + tokens)
    tables.stack_hash[slot] = node
    return node


@lean
def _pushed_again(tables: Tables, object_: int, stack: int, height: int, node: int) -> int:
    """The top `height` frames of `stack`, members of an object, above `node`."""
    for step in range(height):
        above = stack
        for _ in range(height - 1 - step):
            above = tables.stack[above, PARENT]
        node = push(tables, object_, tables.stack[above, COUNT], node)
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
    return _pushed_again(tables, object_, stack, moved, push(tables, object_, member, below))


@lean
def with_other(tables: Tables, stack: int, object_: int) -> int:
    """`stack` with one more member of number -1 counted in the frame of its object, which has limits."""
    base = object_below(tables, stack)
    limits = tables.code[object_, 3]
    count = other_members(tables.stack[base, COUNT]) + 1
    if tables.edges[limits + MOST_MEMBERS] < 0:
        count = min(count, tables.edges[limits + LEAST_MEMBERS])  # more would only make equal things different
    node = push(tables, object_, -2 - count, tables.stack[base, PARENT])
    height, below = 0, stack
    while below != base:
        height += 1
        below = tables.stack[below, PARENT]
    return _pushed_again(tables, object_, stack, height, node)


@lean
def may_close(tables: Tables, stack: int, object_: int) -> bool:
    """Whether all required members were seen, and enough of all."""
    seen, total = 0, 0
    while tables.stack[stack, COUNT] >= 0:
        if required_index(tables, object_, tables.stack[stack, COUNT]) >= 0:
            seen += 1
        total += 1
        stack = tables.stack[stack, PARENT]
    limits = tables.code[object_, 3]
    if limits > 0 and total + other_members(tables.stack[stack, COUNT]) < tables.edges[limits + LEAST_MEMBERS]:
        return False
    return seen == tables.code[object_, 2]
