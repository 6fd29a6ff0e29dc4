"""The tables of a lazy automaton: flat arrays that numba functions read and fill, and how they grow.

Everything is append-only between two resets, so an index stays valid once it is known. A numba function that
finds no room sets `meta[ERROR]`; Python then doubles what is full and calls again. Nothing is lost: whatever was
added before is found again through the hash tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from structgen.grammar.numba_cache import jit
from structgen.grammar.program import Program

# Results of functions that return a configuration; real ones are >= 0.
DEAD = -1
UNKNOWN = -2
GROW = -3
LIMIT = -4

INFINITE = 1 << 29  # a distance that nothing reaches; sums of two still fit int32

# Slots of `meta`.
STACKS, CONFIGS, ELEMENTS, STAMP, ERROR = range(5)

VISITED = 1 << 15
MAX_ELEMENTS = 1 << 13  # (state, stack) pairs in one configuration, and steps of one closure times two

Array = npt.NDArray[Any]


class Tables(NamedTuple):
    """Shapes: S states, K stack nodes, C configurations, E elements, H hash slots (powers of two)."""

    code: Array  # int32[S, 4]      the program
    edges: Array  # int32[n]
    byte_distance: Array  # int32[S]  least bytes from a state to its RETURN
    token_distance: Array  # int32[S] an upper bound of the least tokens to RETURN
    stack_return: Array  # int32[K]   node 0 is the empty stack
    stack_count: Array  # int32[K]
    stack_parent: Array  # int32[K]
    stack_cost: Array  # int32[K]     tokens still needed after the frame above it has returned
    stack_alive: Array  # bool[K]     bytes can complete it
    stack_hash: Array  # int32[H]     -1: free
    config_start: Array  # int32[C+1] offsets into elements
    config_cost: Array  # int32[C]    min_tokens_to_complete, EOS included
    config_final: Array  # bool[C]
    config_hash: Array  # int32[H]
    elements: Array  # int64[E]       stack << 32 | state, sorted within a configuration
    transitions: Array  # int32[C, 256]
    meta: Array  # int64[8]
    visited_key: Array  # int64[VISITED]
    visited_stamp: Array  # int64[VISITED]
    work: Array  # int64[2, 2 * VISITED]  closure worklist, result


def new_tables(program: Program, byte_distance: Array, token_distance: Array) -> Tables:
    configs, stacks, elements = 64, 256, 512
    tables = Tables(
        code=program.code,
        edges=program.edges,
        byte_distance=byte_distance,
        token_distance=token_distance,
        stack_return=np.zeros(stacks, np.int32),
        stack_count=np.zeros(stacks, np.int32),
        stack_parent=np.zeros(stacks, np.int32),
        stack_cost=np.zeros(stacks, np.int32),
        stack_alive=np.ones(stacks, np.bool_),
        stack_hash=np.full(stacks * 2, -1, np.int32),
        config_start=np.zeros(configs + 1, np.int32),
        config_cost=np.zeros(configs, np.int32),
        config_final=np.zeros(configs, np.bool_),
        config_hash=np.full(configs * 2, -1, np.int32),
        elements=np.zeros(elements, np.int64),
        transitions=np.full((configs, 256), UNKNOWN, np.int32),
        meta=np.zeros(8, np.int64),
        visited_key=np.zeros(VISITED, np.int64),
        visited_stamp=np.zeros(VISITED, np.int64),
        work=np.zeros((2, 2 * VISITED), np.int64),
    )
    tables.meta[STACKS] = 1
    return tables


def _longer(array: Array, size: int, fill: int = 0) -> Array:
    out = np.full((size, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out


def grown(tables: Tables) -> Tables:
    """Tables with room again: whatever is more than half full is doubled. Clears the error."""
    tables.meta[ERROR] = 0
    changed: dict[str, Array] = {}
    stacks, configs, elements = (int(tables.meta[slot]) for slot in (STACKS, CONFIGS, ELEMENTS))
    if stacks * 2 >= len(tables.stack_return):
        size = len(tables.stack_return) * 2
        for name in ("stack_return", "stack_count", "stack_parent", "stack_cost", "stack_alive"):
            changed[name] = _longer(getattr(tables, name), size)
        changed["stack_hash"] = np.full(size * 2, -1, np.int32)
    if configs * 2 >= len(tables.config_cost):
        size = len(tables.config_cost) * 2
        changed["config_start"] = _longer(tables.config_start, size + 1)
        changed["config_cost"] = _longer(tables.config_cost, size)
        changed["config_final"] = _longer(tables.config_final, size)
        changed["transitions"] = _longer(tables.transitions, size, UNKNOWN)
        changed["config_hash"] = np.full(size * 2, -1, np.int32)
    if elements * 2 >= len(tables.elements):
        changed["elements"] = _longer(tables.elements, max(len(tables.elements) * 2, 4 * MAX_ELEMENTS))
    tables = tables._replace(**changed)
    if "stack_hash" in changed:
        _rehash_stacks(tables)
    if "config_hash" in changed:
        _rehash_configs(tables)
    return tables


def size_in_bytes(tables: Tables) -> int:
    """What one automaton holds for itself, without the program that it shares."""
    return sum(int(getattr(tables, name).nbytes) for name in Tables._fields[4:])


@jit
def stack_slot(tables: Tables, ret: int, count: int, parent: int) -> int:
    key = ret * 0x9E3779B1 + count * 0x85EBCA77 + parent * 0xC2B2AE3D
    return (key ^ (key >> 15)) & (len(tables.stack_hash) - 1)


@jit
def config_slot(tables: Tables, elements: Array) -> int:
    key = np.int64(len(elements))
    for element in elements:
        key = (key ^ element) * np.int64(0x100000001B3)
        key ^= key >> np.int64(29)
    return int(key & np.int64(len(tables.config_hash) - 1))


@jit
def _rehash_stacks(tables: Tables) -> None:
    for node in range(1, tables.meta[STACKS]):
        slot = stack_slot(tables, tables.stack_return[node], tables.stack_count[node], tables.stack_parent[node])
        while tables.stack_hash[slot] >= 0:
            slot = (slot + 1) & (len(tables.stack_hash) - 1)
        tables.stack_hash[slot] = node


@jit
def _rehash_configs(tables: Tables) -> None:
    for config in range(tables.meta[CONFIGS]):
        slot = config_slot(tables, tables.elements[tables.config_start[config] : tables.config_start[config + 1]])
        while tables.config_hash[slot] >= 0:
            slot = (slot + 1) & (len(tables.config_hash) - 1)
        tables.config_hash[slot] = config
