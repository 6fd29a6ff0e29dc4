"""Ready states: a rule that was built once, to be copied into other programs.

Most rules of strings and numbers come again in schema after schema. A block is the states of one rule, with the places
of all words that are numbers of states or of edges; in another program these are moved, and everything else is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from structgen.grammar.numba_cache import lean
from structgen.grammar.ops import (
    BYTE,
    CALL,
    CHOOSE,
    CLOSE,
    EXCEPT,
    EXIT,
    FIRST,
    KEY_END,
    LENGTHS,
    LOOP,
    OBJECT,
    RANGES,
    SPLIT,
    TARGETS,
    TEXT,
)
from structgen.grammar.program import ProgramBuilder

Ints = npt.NDArray[np.int32]
SHARED = 2  # `fail` and `accept` are the first two states of every program
MAX_WORDS = 4_000_000  # of all blocks kept, 12 bytes each


@dataclass(frozen=True, slots=True)
class Block:
    """`code` and `edges` of the states behind the shared ones, flat, numbered from 0; the masks are 1 where a word is
    the number of a state (`*_states`) or an offset into the edges (`code_offsets`)."""

    code: Ints
    code_states: Ints
    code_offsets: Ints
    edges: Ints
    edge_states: Ints
    start: int
    has_other_keys: bool

    @property
    def words(self) -> int:
        return len(self.code) + len(self.edges)

    def place(self, builder: ProgramBuilder) -> int:
        """Copy the states into a program; returns the first of the rule."""
        if self.start < 0:
            return self.start + SHARED
        base, offset = builder.size, builder.edge_count
        code = self.code + self.code_states * base + self.code_offsets * offset
        builder.append(code, self.edges + self.edge_states * base, self.has_other_keys)
        return self.start + base


def block_of(rule: Callable[[ProgramBuilder], int]) -> Block:
    """The states that a rule places in an empty program."""
    builder = ProgramBuilder()
    start = rule(builder)
    program = builder.finish(start)
    code, edges = program.code[SHARED:].copy(), program.edges.copy()
    in_code, offsets, in_edges = np.zeros_like(code), np.zeros_like(code), np.zeros_like(edges)
    if not _mark(code, edges, in_code, offsets, in_edges):
        raise AssertionError("objects are no blocks")
    # The shared states have the same numbers everywhere.
    in_code &= code >= SHARED
    in_edges &= edges >= SHARED
    code -= SHARED * in_code
    edges -= SHARED * in_edges
    flat = (code.reshape(-1), in_code.reshape(-1), offsets.reshape(-1), edges, in_edges)
    return Block(*flat, start - SHARED, program.has_other_keys)


@lean
def _mark(code: Ints, edges: Ints, in_code: Ints, offsets: Ints, in_edges: Ints) -> bool:
    """Set the masks of `Block` to 1 where words are numbers of states and offsets; False: objects are in the way."""
    for state in range(len(code)):
        op, a, b = code[state, 0], code[state, 1], code[state, 2]
        if op in (OBJECT, CHOOSE, CLOSE):
            return False
        if op in (BYTE, CALL, KEY_END):
            in_code[state, 2] = 1
        if op == CALL:
            in_code[state, 1] = 1
        if op == EXCEPT:
            in_code[state, 3] = 1
        if op in (RANGES, SPLIT, LOOP, EXCEPT, TEXT):
            offsets[state, 1] = 1
        first, step, count = a, 1, 0
        if op == RANGES:
            first, step, count = a + 2, 3, b
        elif op == SPLIT:
            count = b
        elif op == LOOP:
            count = 2
        elif op == EXCEPT:
            first, step, count = a + 1, 2, b
        elif op == TEXT:
            first, count = a + FIRST + edges[a + LENGTHS], 2 * edges[a + TARGETS]
            in_edges[a + EXIT] = 1
        for index in range(count):
            in_edges[first + step * index] = 1
    return True


class BlockCache:
    """The blocks of one process by what they depend on, the oldest dropped when there are too many."""

    def __init__(self, words: int = MAX_WORDS) -> None:
        self._limit = words
        self._words = 0
        self._blocks: dict[Hashable, Block] = {}
        self._lock = threading.Lock()

    def place(self, builder: ProgramBuilder, key: Hashable, rule: Callable[[ProgramBuilder], int]) -> int:
        """Place a rule that calls and leads to nothing outside of itself; built now if it was not before."""
        block = self._blocks.get(key)
        if block is None:
            block = block_of(rule)
            self._keep(key, block)
        return block.place(builder)

    def _keep(self, key: Hashable, block: Block) -> None:
        with self._lock:
            if key in self._blocks or block.words > self._limit // 8:
                return
            self._blocks[key] = block
            self._words += block.words
            while self._words > self._limit:
                oldest = next(iter(self._blocks))
                self._words -= self._blocks.pop(oldest).words


BLOCKS = BlockCache()
