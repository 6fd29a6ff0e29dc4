"""From states that consume nothing to those that read a byte or accept: the closure of a set of (state, stack) pairs.

Pairs that no bytes can complete are dropped as they arise.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.frames import (
    may_close,
    missing_members,
    object_below,
    push,
    required_index,
    with_member,
    with_other,
)
from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.ops import (
    BYTE,
    CALL,
    CALLED,
    CHOOSE,
    CLOSE,
    EXCEPT,
    EXIT,
    FIRST,
    KEY_END,
    LEAST,
    LENGTHS,
    LOOP,
    MOST,
    OBJECT,
    RANGES,
    RESERVE,
    RETURN,
    SPLIT,
    TARGETS,
    TEXT,
)
from structgen.grammar.tables import (
    ALIVE,
    COUNT,
    ERROR,
    IN_BYTES,
    INFINITE,
    KEY_ENDS,
    LIMIT,
    MAX_ELEMENTS,
    PARENT,
    RETURN_TO,
    VISITED,
    Tables,
)


@lean_inline
def _visit(tables: Tables, key: int) -> bool:
    """Whether the pair is new in the closure under way."""
    stamp = tables.visited[VISITED, 1]
    slot = (key ^ (key >> np.int64(17)) ^ (key >> np.int64(32)) * np.int64(2654435761)) & np.int64(VISITED - 1)
    while tables.visited[slot, 1] == stamp:
        if tables.visited[slot, 0] == key:
            return False
        slot = (slot + 1) & (VISITED - 1)
    tables.visited[slot, 1] = stamp
    tables.visited[slot, 0] = key
    return True


@lean_inline
def offer(tables: Tables, top: int, state: int, stack: int) -> int:
    """Put a pair on the worklist, unless nothing can complete it."""
    if tables.distance[state, IN_BYTES] >= INFINITE or tables.stack[stack, ALIVE] == 0:
        return top
    if top >= tables.work.shape[1]:
        tables.meta[ERROR] = LIMIT
        return top
    tables.work[0, top] = np.int64(stack) << 32 | np.int64(state)
    return top + 1


@lean
def _text(tables: Tables, top: int, state: int, count: int, stack: int) -> int:
    """Go on from a TEXT state after `count` characters: end, or read one more."""
    edges, at = tables.edges, tables.code[state, 1]
    least, most = edges[at + LEAST], edges[at + MOST]
    if count >= least and edges[at + FIRST] == 0:  # the empty word ends here
        top = offer(tables, top, edges[at + EXIT], stack)
    if most >= 0 and count >= most:
        return top
    following = count + 1 if most >= 0 else min(count + 1, least)
    first = at + FIRST + edges[at + LENGTHS]
    for pair in range(first, first + 2 * edges[at + TARGETS], 2):
        top = offer(tables, top, edges[pair], push(tables, edges[pair + 1], following, stack))
    return top


@lean
def _return(tables: Tables, top: int, stack: int) -> int:
    """Pop a frame and go on where it says."""
    ret, count, parent = tables.stack[stack, RETURN_TO], tables.stack[stack, COUNT], tables.stack[stack, PARENT]
    if count == CALLED:
        return offer(tables, top, ret, parent)
    if tables.code[ret, 0] == TEXT:
        return _text(tables, top, ret, count, parent)
    offset, least, most = tables.code[ret, 1], tables.code[ret, 2], tables.code[ret, 3]
    done = count + 1
    if done >= least:
        top = offer(tables, top, tables.edges[offset + 1], parent)
    if most < 0 or done < most:
        if most < 0:
            done = min(done, least)  # further counting would only make equal things different
        top = offer(tables, top, tables.edges[offset], push(tables, ret, done, parent))
    return top


@lean
def _choose(tables: Tables, top: int, state: int, stack: int) -> int:
    object_ = tables.stack[object_below(tables, stack), RETURN_TO]
    offset = tables.code[state, 1]
    limited = tables.code[object_, 3] > 0
    required, room = 0, INFINITE
    if limited:
        required, room = missing_members(tables, object_, stack)
    for index in range(tables.code[state, 2]):
        member, start = tables.edges[offset + 2 * index], tables.edges[offset + 2 * index + 1]
        if tables.distance[start, IN_BYTES] >= INFINITE:
            continue
        if room <= required and (member < 0 or required_index(tables, object_, member) < 0):
            continue
        if member >= 0:
            after = with_member(tables, stack, object_, member)
        else:
            after = with_other(tables, stack, object_) if limited else stack
        if after >= 0:
            top = offer(tables, top, start, after)
    return top


@lean
def _expand(tables: Tables, top: int, state: int, stack: int) -> int:
    """Follow a state that consumes nothing."""
    code, edges = tables.code, tables.edges
    op, a, b = code[state, 0], code[state, 1], code[state, 2]
    if op == SPLIT:
        for index in range(a, a + b):
            top = offer(tables, top, edges[index], stack)
    elif op == CALL:
        # A call in tail position needs no frame: recursion at the end of a rule keeps the stack flat.
        top = offer(tables, top, a, stack if code[b, 0] == RETURN else push(tables, b, CALLED, stack))
    elif op == RETURN:
        top = _return(tables, top, stack)
    elif op == LOOP:
        if b == 0:
            top = offer(tables, top, edges[a + 1], stack)
        if code[state, 3] != 0:
            top = offer(tables, top, edges[a], push(tables, state, 0, stack))
    elif op == TEXT:
        top = _text(tables, top, state, 0, stack)
    elif op == OBJECT:
        top = offer(tables, top, edges[a], push(tables, state, -1, stack))
    elif op == CHOOSE:
        top = _choose(tables, top, state, stack)
    elif op == KEY_END:
        tables.meta[KEY_ENDS] += 1
        top = offer(tables, top, b, stack)
    elif op == RESERVE:
        top = offer(tables, top, b, stack)
    elif op == CLOSE and may_close(tables, stack, a):
        top = offer(tables, top, b, tables.stack[object_below(tables, stack), PARENT])
    return top


@lean
def close_over(tables: Tables, top: int) -> int:
    """Follow the worklist to pairs that consume a byte or accept; they land in work[1]. Returns how many."""
    tables.visited[VISITED, 1] += 1
    found, steps = 0, 0
    while top > 0:
        top -= 1
        key = tables.work[0, top]
        if not _visit(tables, key):
            continue
        steps += 1
        if steps >= 2 * MAX_ELEMENTS or found >= MAX_ELEMENTS:
            tables.meta[ERROR] = LIMIT
        if tables.meta[ERROR] != 0:
            return 0
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        op = tables.code[state, 0]
        if op in (BYTE, RANGES, EXCEPT) or (op == RETURN and stack == 0):
            tables.work[1, found] = key
            found += 1
        else:
            top = _expand(tables, top, state, stack)
    return found
