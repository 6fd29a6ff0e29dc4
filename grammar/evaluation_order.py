"""In which order distances are computed: each state behind those that it depends on."""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import jit, lean
from structgen.grammar.ops import (
    BYTE,
    CALL,
    CHOOSE,
    CLOSE,
    EXCEPT,
    EXIT,
    FILLERS,
    FIRST,
    FIRST_FILLER,
    KEY_END,
    LENGTHS,
    LOOP,
    OBJECT,
    RANGES,
    RESERVE,
    SPLIT,
    TARGETS,
    TEXT,
)
from structgen.grammar.program import Program
from structgen.grammar.tables import Array


def evaluation_order(program: Program) -> tuple[Array, Array]:
    """int32[n]: the states that can be reached, each behind those it depends on but for recursion and loops.

    In this order one sweep computes the distances of a grammar without recursion. The second array has, in the same
    order, the circular states: those that depend on a later one, and what leads to such a one by literal bytes. Where
    none of them can be improved behind a sweep, no state can.
    """
    size = program.size
    order, circular = np.empty(size, np.int32), np.empty(size, np.int32)
    count, found = _post_order(program.code, program.edges, program.start, order, circular)
    return order[:count].copy(), circular[:found].copy()


@lean
def _dependency(code: Array, edges: Array, state: int, index: int) -> int:
    """The `index`-th state whose distance the distance of `state` is computed from; -1 behind the last."""
    op, a, b, c = code[state, 0], code[state, 1], code[state, 2], code[state, 3]
    if op in (BYTE, CLOSE, KEY_END, RESERVE):
        return b if index == 0 else -1
    if op == RANGES:
        return edges[a + 3 * index + 2] if index < b else -1
    if op == SPLIT:
        return edges[a + index] if index < b else -1
    if op == CALL:
        return a if index == 0 else (b if index == 1 else -1)
    if op == LOOP:
        return edges[a + index] if index < 2 else -1
    if op == CHOOSE:
        return edges[a + 2 * index + 1] if index < b else -1
    if op == OBJECT:
        if index < 2:
            return edges[a + index]
        if index < b + 2 or c == 0:
            return edges[a + 2 * index - 1] if index < b + 2 else -1
        filler = index - b - 2
        return edges[c + FIRST_FILLER + 2 * filler + 1] if filler < edges[c + FILLERS] else -1
    if op == EXCEPT:
        return edges[a + 2 * index + 1] if index < b else _dependency_of_default(code, edges, c, index - b)
    if op == TEXT:
        first, pairs = a + FIRST + edges[a + LENGTHS], 2 * edges[a + TARGETS]
        return edges[first + index] if index < pairs else (edges[a + EXIT] if index == pairs else -1)
    return -1


@lean
def _dependency_of_default(code: Array, edges: Array, state: int, index: int) -> int:
    if code[state, 0] == BYTE:
        return code[state, 2] if index == 0 else -1
    return edges[code[state, 1] + 3 * index + 2] if index < code[state, 2] else -1


@jit
def _post_order(code: Array, edges: Array, start: int, order: Array, circular: Array) -> tuple[int, int]:
    """Depth first, with a stack of our own: programs are deeper than any call stack."""
    next_index = np.full(len(code), -1, np.int32)
    path = np.empty(len(code) + 1, np.int32)
    state_of = np.zeros(len(code), np.int8)  # 1: finished, 2: finished and circular, 3: not finished and circular
    path[0], next_index[start] = start, 0
    depth, count, found = 1, 0, 0
    while depth > 0:
        state = path[depth - 1]
        following = _dependency(code, edges, state, next_index[state])
        if following < 0:
            order[count] = state
            count += 1
            depth -= 1
            if state_of[state] == 3:
                circular[found] = state
                found += 1
                state_of[state] = 2
            else:
                state_of[state] = 1
            continue
        if next_index[following] < 0:
            next_index[following] = 0
            path[depth] = following
            depth += 1
            continue
        # A token may spell several bytes of a literal, and then reaches as far.
        if state_of[following] in (0, 3) or (state_of[following] == 2 and code[state, 0] == BYTE):
            state_of[state] = 3
        next_index[state] += 1
    return count, found
