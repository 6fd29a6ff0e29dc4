"""Equivalent states of a deterministic automaton, by Moore's refinement: blocks are split until each leads to one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from structgen.grammar.numba_cache import jit

Ints = npt.NDArray[np.int32]
_PRIME = 1_000_003


def representatives(rows: Sequence[Sequence[int]], accepting: Collection[int]) -> list[int] | None:
    """The first equivalent state of each state; None where no two are. Rows hold targets, -1 for none."""
    table = np.array(rows, np.int32)
    blocks = np.zeros(len(rows), np.int32)
    blocks[list(accepting)] = 1
    first = _refined(table, blocks)
    return None if bool((first == np.arange(len(rows))).all()) else [int(one) for one in first]


@jit
def _refined(table: Ints, blocks: Ints) -> Ints:
    """table: int32[states, classes]; blocks: a first division, 0 or 1. Returns the first state of each block."""
    states, classes = table.shape
    size = 1
    while size < 2 * states:
        size *= 2
    buckets = np.empty(size, np.int32)  # first states of blocks, by hash; -1: empty
    refined, first = np.empty(states, np.int32), np.empty(states, np.int32)
    count = 0
    while True:
        buckets[:] = -1
        found = 0
        for state in range(states):
            # Small factors and masks: plain Python integers and machine integers agree.
            key = int(blocks[state])
            for k in range(classes):
                target = table[state, k]
                key = (key & 0xFFFFFFFFFF) * _PRIME + (int(blocks[target]) + 2 if target >= 0 else 1)
                key ^= key >> 29
            place = key & (size - 1)
            while True:
                other = buckets[place]
                if other < 0:
                    buckets[place] = state
                    first[found], refined[state] = state, found
                    found += 1
                    break
                if _alike(table, blocks, state, other):
                    refined[state] = refined[other]
                    break
                place = (place + 1) & (size - 1)
        blocks[:] = refined
        if found == count:
            break
        count = found
    for state in range(states):
        refined[state] = first[blocks[state]]
    return refined


@jit
def _alike(table: Ints, blocks: Ints, one: int, other: int) -> bool:
    if blocks[one] != blocks[other]:
        return False
    for k in range(table.shape[1]):
        left, right = table[one, k], table[other, k]
        if (left < 0) != (right < 0) or (left >= 0 and blocks[left] != blocks[right]):
            return False
    return True
