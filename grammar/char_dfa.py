"""Deterministic automata over characters, and their algebra: and, not, difference, emptiness, lengths.

Transitions are on classes of characters: `classes` is a partition of all characters, and a row holds one target a
class, -1 for none. Automata are trimmed: from every state a word can be completed (the empty language has no
states at all).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from structgen.grammar.charset import CharSet, contains, union
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.refinement import representatives

S = TypeVar("S")

MAX_DFA_STATES = 20_000
MAX_WORK = 3_000_000  # steps of one construction
MAX_MINIMISED = 2_000  # refinement is quadratic on long chains; larger automata stay as they are


@dataclass(frozen=True, slots=True)
class CharDFA:
    """State 0 is the start; without states, nothing matches."""

    classes: tuple[CharSet, ...]
    rows: tuple[tuple[int, ...], ...]
    accepting: frozenset[int]
    _known: dict[int, int] = field(default_factory=dict, compare=False, repr=False)  # classes of characters met so far

    @property
    def is_empty(self) -> bool:
        return not self.rows

    def matches(self, text: str) -> bool:
        """Whether a text is in the language; the slow twin of the byte automata."""
        if self.is_empty:
            return False
        state = 0
        for code in map(ord, text):
            found = self._known.get(code)
            if found is None:
                found = self._known[code] = self._class_of(code)
            state = self.rows[state][found] if found >= 0 else -1
            if state < 0:
                return False
        return state in self.accepting

    def _class_of(self, code: int) -> int:
        return next((i for i, one in enumerate(self.classes) if contains(one, code)), -1)

    def shortest(self) -> int:
        """The length in characters of the shortest word. The language must not be empty."""
        seen, layer, length = {0}, {0}, 0
        while not layer & self.accepting:
            layer = {target for state in layer for target in self.rows[state] if target >= 0} - seen
            seen |= layer
            length += 1
        return length

    def longest(self) -> int | None:
        """The length of the longest word; None without a bound."""
        order = topological_order(self.rows)
        if order is None:
            return None
        lengths = [0] * len(self.rows)
        for state in reversed(order):
            lengths[state] = max((lengths[t] + 1 for t in self.rows[state] if t >= 0), default=0)
        return lengths[0] if lengths else 0


def topological_order(rows: tuple[tuple[int, ...], ...]) -> list[int] | None:
    """The states, each in front of those it leads to; None where there is a circle."""
    degree = [0] * len(rows)
    for row in rows:
        for target in set(row):
            if target >= 0:
                degree[target] += 1
    ready = [state for state, count in enumerate(degree) if count == 0]
    order = []
    while ready:
        state = ready.pop()
        order.append(state)
        for target in set(rows[state]):
            if target >= 0:
                degree[target] -= 1
                if degree[target] == 0:
                    ready.append(target)
    return order if len(order) == len(rows) else None


def explore(
    start: S, classes: tuple[CharSet, ...], step: Callable[[S, int], S | None], accepts: Callable[[S], bool]
) -> CharDFA:
    """The trimmed, minimal automaton of a transition function that is given class numbers.

    Raises:
        GrammarLimitError: too many states.
    """
    numbers = {start: 0}
    order = [start]
    rows: list[tuple[int, ...]] = []
    while len(rows) < len(order):
        state = order[len(rows)]
        row = []
        for index in range(len(classes)):
            target = step(state, index)
            if target is None:
                row.append(-1)
                continue
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(order)
                order.append(target)
            row.append(number)
        rows.append(tuple(row))
        refuse_many(len(order), len(classes))
    accepting = frozenset(i for i, state in enumerate(order) if accepts(state))
    return minimised(trimmed(CharDFA(classes, tuple(rows), accepting)))


def refuse_many(states: int, classes: int) -> None:
    """
    Raises:
        GrammarLimitError: a table of that size.
    """
    if states > MAX_DFA_STATES or states * classes > MAX_WORK:
        raise GrammarLimitError(
            f"the constraints on one value need more than {MAX_DFA_STATES:,} states together",
            hint="use smaller counts, or fewer constraints on one value",
        )


def trimmed(dfa: CharDFA) -> CharDFA:
    """Only states from which a word can be completed."""
    sources: list[set[int]] = [set() for _ in dfa.rows]
    for state, row in enumerate(dfa.rows):
        for target in set(row):
            if target >= 0:
                sources[target].add(state)
    alive, todo = set(dfa.accepting), list(dfa.accepting)
    while todo:
        for source in sources[todo.pop()]:
            if source not in alive:
                alive.add(source)
                todo.append(source)
    if 0 not in alive:
        return CharDFA(dfa.classes, (), frozenset())
    if len(alive) == len(dfa.rows):
        return dfa
    return _renumbered(dfa, [state if state in alive else -1 for state in range(len(dfa.rows))])


def minimised(dfa: CharDFA) -> CharDFA:
    """Merge equivalent states, unless there are too many for that to pay, and classes that lead to the same states."""
    if 1 < len(dfa.rows) <= MAX_MINIMISED:
        first = representatives(dfa.rows, dfa.accepting)
        dfa = dfa if first is None else _renumbered(dfa, first)
    columns: dict[tuple[int, ...], list[CharSet]] = {}
    for chars, column in zip(dfa.classes, zip(*dfa.rows, strict=True), strict=False):
        columns.setdefault(column, []).append(chars)
    if not dfa.rows or len(columns) == len(dfa.classes):
        return dfa
    classes = tuple([union(*sets) for sets in columns.values()])
    return CharDFA(classes, tuple(zip(*columns, strict=True)), dfa.accepting)


def _renumbered(dfa: CharDFA, representative: list[int]) -> CharDFA:
    """The part reachable from the start, each state replaced by its representative (-1: dropped)."""
    numbers, order, rows = {-1: -1, representative[0]: 0}, [representative[0]], []
    representative = [*representative, -1]  # of -1
    for state in order:
        row = [representative[target] for target in dfa.rows[state]]
        for target in dict.fromkeys(row):
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        rows.append(tuple([numbers[target] for target in row]))
    return CharDFA(dfa.classes, tuple(rows), frozenset(numbers[s] for s in order if s in dfa.accepting))
