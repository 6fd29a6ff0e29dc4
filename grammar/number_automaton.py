"""Automata over the decimal spellings of numbers: no exponent, no leading zeros, `-0` only with a fraction.

Each constraint is a small automaton that reads the same characters; the automaton of a `NumberRange` runs them side
by side.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from structgen.grammar.char_dfa import CharDFA, explore
from structgen.grammar.charset import CharSet
from structgen.grammar.json_number import NumberRange
from structgen.grammar.number_bounds import Bounds
from structgen.grammar.number_multiples import Multiples
from structgen.grammar.number_values import Values

CLASSES: tuple[CharSet, ...] = (((0x2D, 0x2D),), ((0x2E, 0x2E),), *(((0x30 + d, 0x30 + d),) for d in range(10)))
MAX_LISTED = 2_000  # multiples between two bounds that are cheaper as a list
LISTED_FROM = 100  # of remainders


class Reader(Protocol):
    """Reads a number character by character, given as an index into `CLASSES`."""

    @property
    def start(self) -> Any: ...

    def step(self, state: Any, index: int, /) -> Any:
        """The next state; None where no number of the set can follow."""

    def accepts(self, state: Any, /) -> bool: ...


def number_length(wanted: NumberRange) -> int:
    """How many characters a number may have: as free numbers, and enough for the bounds."""
    named = [wanted.low, wanted.high, wanted.multiple_of, *wanted.excluded]
    return 310 + max((len(format(one, "f")) for one in named if one is not None), default=0)


@lru_cache(maxsize=4096)
def number_dfa(wanted: NumberRange) -> CharDFA:
    """The decimal spellings of the numbers in a set; without states when there are none.

    Raises:
        GrammarLimitError: remainders by a number that is too large.
    """
    if wanted.is_empty:
        return CharDFA((), (), frozenset())
    readers = _readers(wanted)
    if len(readers) == 1:
        only = readers[0]
        return explore(only.start, CLASSES, only.step, only.accepts)

    def step(states: tuple[Any, ...], index: int) -> tuple[Any, ...] | None:
        following = []
        for reader, state in zip(readers, states, strict=True):
            state = reader.step(state, index)
            if state is None:
                return None
            following.append(state)
        return tuple(following)

    def accepts(states: tuple[Any, ...]) -> bool:
        return all(reader.accepts(state) for reader, state in zip(readers, states, strict=True))

    return explore(tuple(reader.start for reader in readers), CLASSES, step, accepts)


def _readers(wanted: NumberRange) -> list[Reader]:
    modulus = wanted.modulus
    if modulus is not None and Multiples.size(modulus) > LISTED_FROM:
        listed = wanted.listed(MAX_LISTED)
        if listed is not None:
            return [Bounds(replace(wanted, low=None, high=None)), Values(listed, among=True)]
    readers: list[Reader] = [Bounds(wanted)]
    if modulus is not None and modulus != 1:  # integers are told apart by their spelling
        readers.append(Multiples(modulus, wanted=True))
    readers += [Multiples(one, wanted=False) for one in wanted.not_multiple_of]
    if wanted.excluded:
        readers.append(Values(wanted.excluded, among=False))
    return readers
