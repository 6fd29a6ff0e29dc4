"""The tables of a lazy automaton: flat arrays that numba functions read and fill, and how they grow.

Everything is append-only, so an index stays valid once it is known. A numba function that finds no room sets
`meta[ERROR]`; Python then doubles what is full and calls again. Nothing is lost: whatever was added before is found
again through the hash tables. Fields that are used together lie in one row: fewer arrays make calls cheaper
(measured: 0.05 us an argument) and touch fewer cache lines.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from structgen.grammar.memory_pool import POOL
from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.program import Program

# Results of functions that return a configuration; real ones are >= 0.
DEAD = -1
UNKNOWN = -2
GROW = -3
LIMIT = -4

INFINITE = 1 << 29  # a distance that nothing reaches; sums of two still fit int32
BLOCKED = INFINITE + 1  # the token distance of a TEXT state that may meet a character without tokens

# Slots of `meta`: rows in use, an error, how many keys ended, how many elements did not fit.
STACKS, CONFIGS, ELEMENTS, ERROR, KEY_ENDS, WANTED = range(6)

# Columns of `distance`: the fewest bytes, and an upper bound of the fewest tokens, to the RETURN of a frame.
IN_BYTES, IN_TOKENS = range(2)

# Columns of `stack`. COST: tokens still needed after the frame above has returned; ALIVE: bytes can complete it.
RETURN_TO, COUNT, PARENT, COST, ALIVE = range(5)

# Columns of `config`: its elements are [START, START + LENGTH); NEEDED is min_tokens_to_complete, EOS included;
# ENDS_KEY: a key that was not declared has just ended.
START, LENGTH, NEEDED, FINAL, ENDS_KEY = range(5)

VISITED = 1 << 15
MAX_ELEMENTS = 1 << 13  # (state, stack) pairs in one configuration; a closure takes at most twice as many steps

Array = npt.NDArray[Any]


class Tables(NamedTuple):
    """Shapes: S states, K stack nodes, C configurations, E elements, H hash slots (powers of two)."""

    code: Array  # int32[S, 4]          the program
    edges: Array  # int32[n]
    distance: Array  # int32[S, 2]
    stack: Array  # int32[K, 5]         node 0 is the empty stack
    stack_hash: Array  # int32[H]       -1: free
    config: Array  # int32[C, 5]
    config_hash: Array  # int32[H]
    elements: Array  # int64[E]         stack << 32 | state, sorted within a configuration
    transitions: Array  # int32[C, 256]
    loops: Array  # int64[C, 2]         see loops.py
    meta: Array  # int64[8]
    seen: Array  # int64[6] what `token_mask.fill` has seen, and `loops.know_loop`
    loop_mask: Array  # int32[mask_words] the mask of the loop that was met last, see mask_walk.py
    loop_seen: Array  # int64[5] which loop, within which limit, and what `seen` was
    path: Array  # int32[2 * (height + 1)] scratch: the configurations along a token
    visited: Array  # int64[VISITED + 1, 2] scratch: key and stamp; the last row holds the current stamp
    work: Array  # int64[2, 2 * VISITED] scratch: closure worklist, result


class _Scratch(threading.local):
    """Working memory of one thread, shared by all automata: it means nothing between two calls."""

    def __init__(self) -> None:
        self.visited = np.zeros((VISITED + 1, 2), np.int64)
        self.work = np.zeros((2, 2 * VISITED), np.int64)


_SCRATCH = _Scratch()


def with_scratch(tables: Tables) -> Tables:
    """The same tables with the calling thread's scratch memory."""
    if tables.work is _SCRATCH.work:
        return tables
    return tables._replace(visited=_SCRATCH.visited, work=_SCRATCH.work)


def new_tables(program: Program, distance: Array, height: int = 0, mask_words: int = 0) -> Tables:
    """Empty tables; rows are set when they are taken. `height` is that of the token trie."""
    configs, stacks, elements = 512, 1024, 4096
    stack_hash, config_hash = POOL.take((stacks * 2,), np.int32), POOL.take((configs * 2,), np.int32)
    stack_hash.fill(-1)
    config_hash.fill(-1)
    tables = Tables(
        code=program.code,
        edges=program.edges,
        distance=distance,
        stack=POOL.take((stacks, 5), np.int32),
        stack_hash=stack_hash,
        config=POOL.take((configs, 5), np.int32),
        config_hash=config_hash,
        elements=POOL.take((elements,), np.int64),
        transitions=POOL.take((configs, 256), np.int32),
        loops=POOL.take((configs, 2), np.int64),
        meta=np.zeros(8, np.int64),
        seen=np.zeros(6, np.int64),
        loop_mask=POOL.take((mask_words,), np.int32),
        loop_seen=np.full(5, -1, np.int64),
        path=np.empty(2 * (height + 1), np.int32),
        visited=_SCRATCH.visited,
        work=_SCRATCH.work,
    )
    tables.meta[STACKS] = 1
    tables.stack[0] = (0, 0, 0, 0, 1)
    return tables


def release(tables: Tables) -> None:
    """Give the memory back. Nobody may use the tables after this."""
    for name in ("stack", "stack_hash", "config", "config_hash", "elements", "transitions", "loops", "loop_mask"):
        POOL.give(getattr(tables, name))


def size_in_bytes(tables: Tables) -> int:
    """What one automaton has written, without the program and the scratch memory that it shares."""
    used = {"stack": STACKS, "config": CONFIGS, "transitions": CONFIGS, "loops": CONFIGS, "elements": ELEMENTS}
    rows = sum(int(tables.meta[slot]) * getattr(tables, name)[:1].nbytes for name, slot in used.items())
    return int(rows + tables.stack_hash.nbytes + tables.config_hash.nbytes)


@lean_inline
def stack_slot(tables: Tables, ret: int, count: int, parent: int) -> int:
    key = int(ret) * 0x9E3779B1 + int(count) * 0x85EBCA77 + int(parent) * 0xC2B2AE3D
    return int((key ^ (key >> 15)) & (len(tables.stack_hash) - 1))


@lean_inline
def config_slot(tables: Tables, elements: Array) -> int:
    key = len(elements)
    for pair in elements:
        element = int(pair)
        # Small factors and masks: plain Python integers and machine integers agree.
        key = ((key ^ element ^ (element >> 27)) & 0xFFFFFFFF) * 0x1B873593 & 0xFFFFFFFFFFFFFFF
        key ^= key >> 29
    return int(key & (len(tables.config_hash) - 1))


@lean
def rehash_stacks(tables: Tables) -> None:
    """Enter all stacks in an empty hash table."""
    for node in range(1, tables.meta[STACKS]):
        row = tables.stack[node]
        slot = stack_slot(tables, row[RETURN_TO], row[COUNT], row[PARENT])
        while tables.stack_hash[slot] >= 0:
            slot = (slot + 1) & (len(tables.stack_hash) - 1)
        tables.stack_hash[slot] = node


@lean
def rehash_configs(tables: Tables) -> None:
    """Enter all configurations in an empty hash table."""
    for config in range(tables.meta[CONFIGS]):
        start = tables.config[config, START]
        slot = config_slot(tables, tables.elements[start : start + tables.config[config, LENGTH]])
        while tables.config_hash[slot] >= 0:
            slot = (slot + 1) & (len(tables.config_hash) - 1)
        tables.config_hash[slot] = config
