"""The lazy configuration automaton: the transition function of a program, computed when first needed.

A configuration is the set of all (state, stack) pairs that the bytes read so far can have led to. Stacks are
hash-consed linked lists, configurations are interned to small integers, and `transitions[config, byte]` remembers
every step, so that a configuration that was seen before costs one table look-up a byte.

Pairs that no bytes can complete are dropped as they arise: what is in a configuration is alive.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.closure import close_over, offer
from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.ops import BYTE, EXCEPT, RANGES, RETURN
from structgen.grammar.tables import (
    CONFIGS,
    COST,
    DEAD,
    ELEMENTS,
    ENDS_KEY,
    ERROR,
    FINAL,
    GROW,
    IN_BYTES,
    IN_TOKENS,
    INFINITE,
    KEY_ENDS,
    LENGTH,
    NEEDED,
    START,
    UNKNOWN,
    WANTED,
    Array,
    Tables,
    config_slot,
)

ENDED_KEY = 1 << 40  # added to a configuration by `follow`


@lean
def _sort(values: Array) -> None:
    """Shell's sort: in place, with nothing but the array; most have a handful of values."""
    gap = 1
    while gap * 3 < len(values):
        gap = gap * 3 + 1
    while gap > 0:
        for index in range(gap, len(values)):
            value = values[index]
            place = index
            while place >= gap and values[place - gap] > value:
                values[place] = values[place - gap]
                place -= gap
            values[place] = value
        gap //= 3


@lean
def intern(tables: Tables, found: int) -> int:
    """The configuration with the pairs work[1, :found]."""
    pairs = tables.work[1, :found]
    _sort(pairs)
    slot = config_slot(tables, pairs)
    mask = len(tables.config_hash) - 1
    while tables.config_hash[slot] >= 0:
        config = tables.config_hash[slot]
        if tables.config[config, LENGTH] == found:
            start = tables.config[config, START]
            same = True
            for index in range(found):
                if tables.elements[start + index] != pairs[index]:
                    same = False
                    break
            if same:
                return config
        slot = (slot + 1) & mask
    config, start = tables.meta[CONFIGS], tables.meta[ELEMENTS]
    if config >= len(tables.config) or start + found > len(tables.elements):
        tables.meta[ERROR], tables.meta[WANTED] = GROW, found
        return GROW
    tables.meta[CONFIGS] = config + 1
    tables.meta[ELEMENTS] = start + found
    tables.config_hash[slot] = config
    row = tables.config[config]
    row[START], row[LENGTH], row[NEEDED], row[FINAL], row[ENDS_KEY] = start, found, INFINITE, 0, 0
    tables.transitions[config, :] = DEAD
    tables.loops[config, 0] = -1  # not known
    for index in range(found):
        key = pairs[index]
        tables.elements[start + index] = key
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        if tables.code[state, 0] == RETURN:
            row[FINAL] = 1
        needed = np.int64(tables.distance[state, IN_TOKENS]) + tables.stack[stack, COST] + 1
        if needed < row[NEEDED]:
            row[NEEDED] = needed
        _open_row(tables, config, state)
    return config


@lean_inline
def interior_kind(tables: Tables, state: int) -> int:
    """The `Interior` of a state that reads bytes."""
    if tables.code[state, 0] == EXCEPT:
        state = tables.code[state, 3]
    return tables.code[state, 3] if tables.code[state, 0] == RANGES else 0


@lean
def _open_row(tables: Tables, config: int, state: int) -> None:
    """Mark the bytes that a state may read as not known yet; all others stay dead."""
    row = tables.transitions[config]
    if tables.code[state, 0] == EXCEPT:
        offset = tables.code[state, 1]
        for pair in range(offset, offset + 2 * tables.code[state, 2], 2):
            row[tables.edges[pair]] = UNKNOWN
        state = tables.code[state, 3]
    op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
    if op == BYTE:
        row[a] = UNKNOWN
    elif op == RANGES:
        for edge in range(a, a + 3 * b, 3):
            row[tables.edges[edge] : tables.edges[edge + 1] + 1] = UNKNOWN


@lean
def start_config(tables: Tables, state: int) -> int:
    """The first configuration of a program; DEAD when nothing matches."""
    found = close_over(tables, offer(tables, 0, state, 0))
    if tables.meta[ERROR] != 0:
        return tables.meta[ERROR]
    return intern(tables, found) if found else DEAD


@lean_inline
def _read(tables: Tables, top: int, state: int, stack: int, byte: int, same: tuple[int, int]) -> tuple[int, int, int]:
    """Follow one pair on a byte; narrows `same`, the range of bytes around it that all pairs treat alike."""
    low, high = same
    if tables.code[state, 0] == EXCEPT:
        offset = tables.code[state, 1]
        for pair in range(offset, offset + 2 * tables.code[state, 2], 2):
            other = tables.edges[pair]
            if other == byte:
                return offer(tables, top, tables.edges[pair + 1], stack), byte, byte
            if other < byte:
                low = max(low, other + 1)
            else:
                high = min(high, other - 1)
        state = tables.code[state, 3]
    op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
    if op == BYTE:
        if a == byte:
            return offer(tables, top, b, stack), byte, byte
        if a < byte:
            low = max(low, a + 1)
        else:
            high = min(high, a - 1)
    elif op == RANGES:
        for edge in range(a, a + 3 * b, 3):
            first, last = tables.edges[edge], tables.edges[edge + 1]
            if last < byte:
                low = max(low, last + 1)
            elif first > byte:
                high = min(high, first - 1)
            else:
                low, high = max(low, first), min(high, last)
                top = offer(tables, top, tables.edges[edge + 2], stack)
    return top, low, high


@lean
def transition(tables: Tables, config: int, byte: int) -> int:
    """The configuration after one more byte, computed and remembered for all bytes that lead to the same.

    DEAD, or GROW / LIMIT with nothing stored.
    """
    top, low, high = 0, 0, 255
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        key = tables.elements[index]
        top, low, high = _read(tables, top, key & np.int64(0xFFFFFFFF), key >> np.int64(32), byte, (low, high))
    result = DEAD
    ends = tables.meta[KEY_ENDS]
    if top > 0:
        found = close_over(tables, top)
        if tables.meta[ERROR] != 0:
            return tables.meta[ERROR]
        if found > 0:
            result = intern(tables, found)
            if result < 0:
                return result
            if tables.meta[KEY_ENDS] != ends:
                tables.config[result, ENDS_KEY] = 1
    tables.transitions[config, low : high + 1] = result
    return result


@lean
def advance(tables: Tables, config: int, text: Array, start: int, stop: int) -> int:
    """Read text[start:stop] (uint8) from a configuration on; `meta[KEY_ENDS]` is raised when a key ends on the way."""
    for index in range(start, stop):
        following = tables.transitions[config, text[index]]
        if following == UNKNOWN:
            following = transition(tables, config, text[index])
        if following < 0:
            return following
        config = following
        tables.meta[KEY_ENDS] += tables.config[config, ENDS_KEY]
    return config


@lean
def follow(tables: Tables, config: int, text: Array, start: int, stop: int) -> int:
    """As `advance` where every step is known already, else UNKNOWN. Changes nothing.

    With ENDED_KEY added when a key ended on the way.
    """
    ends = 0
    for index in range(start, stop):
        config = tables.transitions[config, text[index]]
        if config < 0:
            return config
        ends |= tables.config[config, ENDS_KEY]
    return int(config) + ENDED_KEY if ends != 0 else int(config)


@lean
def single_byte(tables: Tables, config: int) -> int:
    """The one byte that can follow when exactly one can; -1 otherwise. (Acceptance here is the caller's matter.)"""
    only = -1
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
        if op == BYTE:
            if only >= 0 and only != a:
                return -1
            only = a
        elif op == RANGES:
            for edge in range(a, a + 3 * b, 3):
                if tables.distance[tables.edges[edge + 2], IN_BYTES] >= INFINITE:
                    continue
                low = tables.edges[edge]
                if low != tables.edges[edge + 1] or (only >= 0 and only != low):
                    return -1
                only = low
        elif op == EXCEPT:
            return -1
    return only
