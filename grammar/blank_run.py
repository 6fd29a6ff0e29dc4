"""Runs of blanks between the tokens of JSON: how many more may come, told from the configuration."""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import lean
from structgen.grammar.ops import BLANK, BYTE, EXCEPT, RANGES, SPLIT
from structgen.grammar.plain_bytes import SPACE, is_blank
from structgen.grammar.tables import LENGTH, START, Tables


@lean
def blanks_ahead(tables: Tables, config: int) -> int:
    """How many blanks may come: all pairs that read one are in the same run, at the same place of it. -1: not so.

    After one blank of such a run, the configuration holds what follows the run, and the rest of the run. So it does
    after two: as long as the run goes on, each further blank changes nothing but how many may still come.
    """
    run, start = -1, tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
        if op == RANGES and tables.code[state, 3] == BLANK:
            if run >= 0 and run != state:
                return -1
            run = state
        elif op == EXCEPT or (op == BYTE and is_blank(a)) or (op == RANGES and _reads_blanks(tables, a, b)):
            return -1
    return _length_of_run(tables, run) if run >= 0 else 0


@lean
def _reads_blanks(tables: Tables, offset: int, count: int) -> bool:
    for edge in range(offset, offset + 3 * count, 3):
        low, high = tables.edges[edge], tables.edges[edge + 1]
        if low <= SPACE <= high or low <= 0x0D <= high or (low <= 0x0A and high >= 0x09):
            return True
    return False


@lean
def _length_of_run(tables: Tables, state: int) -> int:
    """How many blanks a state with Interior.BLANK and those behind it read."""
    count = 0
    while tables.code[state, 0] == RANGES:
        count += 1
        either = tables.edges[tables.code[state, 1] + 2]
        if tables.code[either, 0] != SPLIT:
            break
        state = tables.edges[tables.code[either, 1]]
    return count
