"""The intermediate form of every grammar: a flat program for a non-deterministic pushdown automaton over bytes.

A state is four int32 words `(op, a, b, c)`; a state number is its index. States either consume a byte (BYTE,
RANGES, EXCEPT), or are followed without consuming anything (the others). A frame on the stack is `(state, count)`:

    BYTE    a = byte, b = next
    RANGES  a = offset into edges, b = number of (low, high, next) triples, c = Interior
    SPLIT   a = offset into edges, b = number of targets
    CALL    a = first state of the callee, b = where to go on after its RETURN: pushes (b, -2)
    RETURN  pops; with an empty stack the whole word is accepted
    LOOP    a = offset into edges of [body, exit], b = min, c = max (-1: none): repeats the body, which ends in
            RETURN, between min and max times. Counts live in the frame, so `a{1,5000}` costs five states.
    OBJECT  a = offset into edges of [choose, after, (member, first state) of each required member], b = how many,
            c = offset into edges of `LimitField`s where the number of members is limited, else 0.
            Pushes the frame (OBJECT, -1): the members seen so far will be frames above it; `after` is where
            every member ends. With limits, n members of number -1 make it the frame (OBJECT, -2 - n)
    CHOOSE  a = offset into edges, b = number of (member, first state) pairs: each member that was not seen yet
            is marked as seen and entered; member -1 may come any number of times
    EXCEPT  a = offset into edges, b = number of (byte, next) pairs, c = the BYTE or RANGES state that reads all others
    TEXT    a = offset into edges, see `TextField`: one state of a character automaton whose words are limited in
            length. A frame (TEXT, n) says: the character being read is number n and leads to this state
    KEY_END goes to b; configurations behind it are marked, since a key that was not declared has just ended. With
            c = 1, what a detour around a key costs is counted in front of the key
    RESERVE goes to b, and holds a more tokens ready than what follows needs
    CLOSE   goes to b when all required members were seen, and enough of all, and forgets them; a = the OBJECT state

A word is accepted when RETURN is reached with an empty stack. Literals occupy consecutive states.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from structgen.grammar.charset import ByteRanges, CharSet, utf8_sequences
from structgen.grammar.errors import GrammarLimitError

MAX_STATES = 4_000_000

# A key that has come before may not end where it is: one more character, up to two more tokens.
KEY_DETOUR = 2


class Op(IntEnum):
    FAIL = 0
    BYTE = 1
    RANGES = 2
    SPLIT = 3
    CALL = 4
    RETURN = 5
    LOOP = 6
    OBJECT = 7
    CHOOSE = 8
    CLOSE = 9
    EXCEPT = 10
    TEXT = 11
    KEY_END = 12
    RESERVE = 13


_FAIL, _BYTE, _SPLIT = int(Op.FAIL), int(Op.BYTE), int(Op.SPLIT)
_CALL, _EXCEPT, _KEY_END = int(Op.CALL), int(Op.EXCEPT), int(Op.KEY_END)


class TextField(IntEnum):
    """The edges of a TEXT state: these fields, then `lengths` numbers, then (body, target) pairs.

    The k-th length is the least number of characters, at least k, that some word from here has; from place
    `lengths` on they repeat, larger by `period` each round. A body reads one character and ends in RETURN.
    """

    EXIT = 0  # where words end
    LEAST = 1
    MOST = 2  # -1: none
    WIDTH = 3  # the most bytes that the cheapest spelling of one step takes
    LENGTHS = 4
    PERIOD = 5
    TARGETS = 6
    FIRST = 7


class LimitField(IntEnum):
    """How many members an object must have: these fields, then (member, first state) of those not required."""

    LEAST_MEMBERS = 0
    MOST_MEMBERS = 1  # -1: none
    FILLERS = 2  # how many pairs follow
    FIRST_FILLER = 3


class Interior(IntEnum):
    """What a RANGES state knows about plain string content (characters that JSON does not escape), or about blanks."""

    BLANK = -1  # every blank leads to a SPLIT of the next such state, if there is one, and what follows the blanks

    NONE = 0
    FREE = 1  # any plain text leads back to this very state
    KEY = 3  # as FREE, spelled canonically, and the text is a key, which must not come twice
    CANONICAL = 4  # as FREE, spelled canonically
    COUNTED = 2  # any plain character leads to RETURN, with a LOOP on top of the stack


@dataclass(frozen=True)
class Distinct:
    """What a program says about values that must differ, and may run out; see `distinct.py`.

    Attributes:
        unique_arrays: the states to which arrays with unique items return: a frame on the stack tells them.
        free_arrays: those of them whose items cannot run out, not even when some of one has been read.
        finite_names: there are keys that were not declared whose names can run out.
    """

    unique_arrays: frozenset[int]
    free_arrays: frozenset[int]
    finite_names: bool


@dataclass(frozen=True)
class Program:
    """A finished program. `code` is int32[states, 4], `edges` int32[n]; both read-only."""

    code: npt.NDArray[np.int32]
    edges: npt.NDArray[np.int32]
    start: int
    has_other_keys: bool = False  # whether there is a KEY_END
    distinct: Distinct | None = None

    @property
    def size(self) -> int:
        return len(self.code)

    @cached_property
    def order(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """See `evaluation_order.py`; computed once."""
        from structgen.grammar.evaluation_order import evaluation_order

        return evaluation_order(self)

    @cached_property
    def byte_distance(self) -> npt.NDArray[np.int32]:
        """See `distance.byte_distances`; computed once."""
        from structgen.grammar.distance import byte_distances

        return byte_distances(self)


def _too_large() -> GrammarLimitError:
    return GrammarLimitError(
        f"the grammar needs more than {MAX_STATES:,} states", hint="shorten enums and counted patterns"
    )


class ProgramBuilder:
    """Builds a program. States are reserved, then set once; reserving ahead makes loops and recursion plain."""

    def __init__(self) -> None:
        self._code = array("i")
        self._edges = array("i")
        self._has_other_keys = False
        self._unique_arrays: dict[int, bool] = {}
        self.finite_names = False
        self._key_calls: list[int] = []
        self._tails: dict[tuple[ByteRanges, int], int] = {}
        self.rules: dict[Hashable, int] = {}  # for those who place a rule at most once
        self.fail = self.reserve()
        self.accept = self.reserve()
        self._set(self.accept, Op.RETURN)

    @property
    def size(self) -> int:
        return len(self._code) >> 2

    @property
    def edge_count(self) -> int:
        return len(self._edges)

    def reserve(self) -> int:
        return self._add(_FAIL, 0, 0)

    def _add(self, op: int, a: int, b: int, c: int = 0) -> int:
        """A new state."""
        code = self._code
        state = len(code) >> 2
        if state >= MAX_STATES:
            raise _too_large()
        code.extend((op, a, b, c))
        return state

    def append(self, code: npt.NDArray[np.int32], edges: npt.NDArray[np.int32], has_other_keys: bool) -> None:
        """Take over finished states, flat, and their edges."""
        if self.size + len(code) // 4 > MAX_STATES:
            raise _too_large()
        self._code.frombytes(code.tobytes())
        self._edges.frombytes(edges.tobytes())
        self._has_other_keys = self._has_other_keys or has_other_keys

    def _set(self, state: int, op: Op, a: int = 0, b: int = 0, c: int = 0) -> None:
        offset = state << 2
        code = self._code
        code[offset], code[offset + 1], code[offset + 2], code[offset + 3] = op, a, b, c

    def _add_edges(self, values: Iterable[int]) -> int:
        offset = len(self._edges)
        self._edges.extend(values)
        return offset

    def set_byte(self, state: int, byte: int, target: int) -> None:
        self._set(state, Op.BYTE, byte, target)

    def set_ranges(
        self, state: int, triples: Sequence[tuple[int, int, int]], interior: Interior = Interior.NONE
    ) -> None:
        """Byte edges `(low, high, next)`; overlapping ones are followed all."""
        if len(triples) == 1 and triples[0][0] == triples[0][1] and interior == Interior.NONE:
            self.set_byte(state, triples[0][0], triples[0][2])  # tokens are counted along chains of BYTE states
            return
        flat = [number for triple in triples for number in triple]
        self._set(state, Op.RANGES, self._add_edges(flat), len(triples), interior)

    def set_split(self, state: int, targets: Sequence[int]) -> None:
        self._set(state, Op.SPLIT, self._add_edges(targets), len(targets))

    def set_call(self, state: int, callee: int, then: int) -> None:
        self._set(state, Op.CALL, callee, then)

    def set_loop(self, state: int, body: int, exit_: int, least: int, most: int | None) -> None:
        self._set(state, Op.LOOP, self._add_edges((body, exit_)), least, -1 if most is None else most)

    def set_object(
        self,
        state: int,
        choose: int,
        after: int,
        required: Sequence[tuple[int, int]],
        limits: tuple[int, int | None] | None = None,
        optional: Sequence[tuple[int, int]] = (),
    ) -> None:
        flat = [number for pair in required for number in pair]
        offset, limited = self._add_edges([choose, after, *flat]), 0
        if limits is not None:
            least, most = limits
            flat = [number for pair in optional for number in pair]
            limited = self._add_edges([least, -1 if most is None else most, len(optional), *flat])
        self._set(state, Op.OBJECT, offset, len(required), limited)

    def set_choose(self, state: int, members: Sequence[tuple[int, int]]) -> None:
        flat = [number for pair in members for number in pair]
        self._set(state, Op.CHOOSE, self._add_edges(flat), len(members))

    def set_text(self, state: int, fields: Sequence[int], lengths: Sequence[int], targets: Sequence[int]) -> None:
        self._set(state, Op.TEXT, self._add_edges([*fields, *lengths, *targets]))

    def excepts(self, pairs: Sequence[Sequence[int]], defaults: Sequence[int]) -> int:
        """New EXCEPT states, one for each (byte, next) pairs, flat, and default; returns the first."""
        first = self.size
        if first + len(pairs) > MAX_STATES:
            raise _too_large()
        offset = len(self._edges)
        code: list[int] = []
        for flat, default in zip(pairs, defaults, strict=True):
            code += (_EXCEPT, offset, len(flat) >> 1, default)
            offset += len(flat)
        self._code.extend(code)
        self._edges.extend(chain.from_iterable(pairs))
        return first

    def follow(self, state: int, byte: int) -> int:
        """Where a BYTE or RANGES state that is already set goes on a byte; `fail` where it does not."""
        op, offset, count = self._code[state << 2 : (state << 2) + 3]
        if op == Op.BYTE:
            return count if offset == byte else self.fail
        if op != Op.RANGES:
            raise AssertionError(f"state {state} reads no bytes")
        for edge in range(offset, offset + 3 * count, 3):
            if self._edges[edge] <= byte <= self._edges[edge + 1]:
                return self._edges[edge + 2]
        return self.fail

    def key_end(self, then: int) -> int:
        self._has_other_keys = True
        return self._add(_KEY_END, 0, then)

    def set_close(self, state: int, object_: int, then: int) -> None:
        self._set(state, Op.CLOSE, object_, then)

    def split(self, targets: Sequence[int]) -> int:
        if len(targets) == 1:
            return targets[0]
        offset = len(self._edges)
        self._edges.extend(targets)
        return self._add(_SPLIT, offset, len(targets))

    def call(self, callee: int, then: int) -> int:
        return self._add(_CALL, callee, then)

    def call_key(self, key: int, then: int) -> int:
        """A call of the rule of a key that was not declared."""
        state = self.call(key, then)
        self._key_calls.append(state)
        return state

    def _reserve_before_keys(self) -> None:
        """Count what a detour around a key costs in front of it, not at its end.

        Who looks for ways around what came before (`distinct.py`) spends it on the way.
        """
        ops = np.array(self._code, np.int32)[::4]
        for state in np.flatnonzero(ops == Op.KEY_END).tolist():
            self._code[(state << 2) + 3] = 1
        for state in self._key_calls:
            _, key, then, _ = self._code[state << 2 : (state + 1) << 2]
            self._set(state, Op.RESERVE, KEY_DETOUR, self.call(key, then))

    def reserve_tokens(self, count: int, then: int) -> int:
        """A state before which bounds are `count` tokens higher than what follows needs, should that be detained."""
        if count == 0:
            return then
        state = self.reserve()
        self._set(state, Op.RESERVE, count, then)
        return state

    def unique_array(self, items: int, *, is_free: bool) -> int:
        """A state that calls `items`, to which the items of an array and what ends it belong; they must differ."""
        back = self.reserve()
        self.set_split(back, [self.accept])
        self._unique_arrays[back] = is_free
        return self.call(items, back)

    def literal(self, text: bytes, then: int) -> int:
        """A chain of BYTE states; returns the first."""
        if not text:
            return then
        start = len(self._code) >> 2
        if start + len(text) > MAX_STATES:
            raise _too_large()
        flat: list[int] = []
        state = start
        for byte in text:
            state += 1
            flat += (_BYTE, byte, state, 0)
        flat[-2] = then
        self._code.extend(flat)
        return start

    def steps(self, steps: Iterable[tuple[int, int]], then: int) -> int:
        """A row of states that each read a byte, `(Op.BYTE, byte)`, or call a rule, `(Op.CALL, rule)`."""
        start = state = len(self._code) >> 2
        flat: list[int] = []
        for op, operand in steps:
            state += 1
            flat += (op, operand, state, 0)
        if state > MAX_STATES:
            raise _too_large()
        flat[-2] = then
        self._code.extend(flat)
        return start

    def set_literal(self, state: int, text: bytes, then: int) -> None:
        if text:
            self.set_byte(state, text[0], self.literal(text[1:], then))
        else:
            self.set_split(state, [then])

    def tail(self, sequence: ByteRanges, then: int) -> int:
        """States for a fixed-length sequence of byte ranges, shared between equal tails."""
        if not sequence:
            return then
        key = (sequence, then)
        state = self._tails.get(key)
        if state is None:
            rest = self.tail(sequence[1:], then)
            state = self._tails[key] = self.reserve()
            low, high = sequence[0]
            if low == high:
                self.set_byte(state, low, rest)
            else:
                self.set_ranges(state, [(low, high, rest)])
        return state

    def sequences(self, sequences: Iterable[ByteRanges], then: int) -> list[tuple[int, int, int]]:
        """Edges for alternatives, each a non-empty sequence of byte ranges that ends in `then`."""
        return [(one[0][0], one[0][1], self.tail(one[1:], then)) for one in sequences]

    def characters(self, chars: CharSet, then: int) -> list[tuple[int, int, int]]:
        """Edges for one character of a set, spelled in UTF-8."""
        return self.sequences(utf8_sequences(chars), then)

    def finish(self, start: int) -> Program:
        distinct = None
        if self._unique_arrays or self.finite_names:
            self._reserve_before_keys()
            free = frozenset(back for back, is_free in self._unique_arrays.items() if is_free)
            distinct = Distinct(frozenset(self._unique_arrays), free, self.finite_names)
        code = np.frombuffer(self._code, dtype=np.int32).reshape(-1, 4) if self._code else np.zeros((0, 4), np.int32)
        edges = np.frombuffer(self._edges, dtype=np.int32) if self._edges else np.zeros(0, np.int32)
        code.flags.writeable = edges.flags.writeable = False
        return Program(code, edges, start, self._has_other_keys, distinct)
