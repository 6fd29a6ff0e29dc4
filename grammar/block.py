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

from structgen.grammar.program import Op, ProgramBuilder, TextField

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
    for state, (op, a, b, _) in enumerate(code.tolist()):
        if op in (Op.BYTE, Op.CALL, Op.KEY_END):
            in_code[state, 2] = 1
        if op == Op.CALL:
            in_code[state, 1] = 1
        if op in (Op.RANGES, Op.SPLIT, Op.LOOP, Op.EXCEPT, Op.TEXT):
            offsets[state, 1] = 1
        if op == Op.RANGES:
            in_edges[a + 2 : a + 3 * b : 3] = 1
        elif op == Op.SPLIT:
            in_edges[a : a + b] = 1
        elif op == Op.LOOP:
            in_edges[a : a + 2] = 1
        elif op == Op.EXCEPT:
            in_code[state, 3] = 1
            in_edges[a + 1 : a + 2 * b : 2] = 1
        elif op == Op.TEXT:
            first, pairs = a + TextField.FIRST + edges[a + TextField.LENGTHS], int(edges[a + TextField.TARGETS])
            in_edges[a + TextField.EXIT] = 1
            in_edges[first : first + 2 * pairs] = 1
        elif op in (Op.OBJECT, Op.CHOOSE, Op.CLOSE):
            raise AssertionError("objects are no blocks")
    # The shared states have the same numbers everywhere.
    in_code &= code >= SHARED
    in_edges &= edges >= SHARED
    code -= SHARED * in_code
    edges -= SHARED * in_edges
    flat = (code.reshape(-1), in_code.reshape(-1), offsets.reshape(-1), edges, in_edges)
    return Block(*flat, start - SHARED, program.has_other_keys)


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
