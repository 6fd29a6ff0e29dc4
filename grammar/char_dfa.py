"""Deterministic automata over characters, and their algebra: and, not, difference, emptiness, lengths.

Transitions are on classes of characters: `classes` is a partition of all characters, and a row holds one target a
class, -1 for none. Automata are trimmed: from every state a word can be completed (the empty language has no
states at all).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from structgen.grammar.char_nfa import CharNFA, char_nfa
from structgen.grammar.charset import ANY, WORD, CharSet, contains, intersect, partition
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.regex_tree import Node

S = TypeVar("S")

MAX_DFA_STATES = 20_000
MAX_WORK = 3_000_000  # steps of one construction
MAX_MINIMISED = 2_000  # refinement is quadratic on long chains; larger automata stay as they are

# What an assertion that was passed demands of the next character.
Promise = Literal["any", "word", "not word", "end"]


@dataclass(frozen=True, slots=True)
class CharDFA:
    """State 0 is the start; without states, nothing matches."""

    classes: tuple[CharSet, ...]
    rows: tuple[tuple[int, ...], ...]
    accepting: frozenset[int]

    @property
    def is_empty(self) -> bool:
        return not self.rows

    def matches(self, text: str) -> bool:
        """Whether a text is in the language; the slow twin of the byte automata."""
        if self.is_empty:
            return False
        state = 0
        for char in text:
            code = ord(char)
            found = next((i for i, one in enumerate(self.classes) if contains(one, code)), None)
            state = -1 if found is None else self.rows[state][found]
            if state < 0:
                return False
        return state in self.accepting

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
        order = _topological_order(self.rows)
        if order is None:
            return None
        lengths = [0] * len(self.rows)
        for state in reversed(order):
            lengths[state] = max((lengths[t] + 1 for t in self.rows[state] if t >= 0), default=0)
        return lengths[0] if lengths else 0


def _topological_order(rows: tuple[tuple[int, ...], ...]) -> list[int] | None:
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
    start: S,
    classes: tuple[CharSet, ...],
    step: Callable[[S, int], S | None],
    accepts: Callable[[S], bool],
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
        if len(order) > MAX_DFA_STATES or len(order) * len(classes) > MAX_WORK:
            raise GrammarLimitError(
                f"the constraints on a string need more than {MAX_DFA_STATES:,} states together",
                hint="use smaller counts, or fewer constraints on one string",
            )
    accepting = frozenset(i for i, state in enumerate(order) if accepts(state))
    return minimised(trimmed(CharDFA(classes, tuple(rows), accepting)))


def trimmed(dfa: CharDFA) -> CharDFA:
    """Only states from which a word can be completed."""
    sources: list[set[int]] = [set() for _ in dfa.rows]
    for state, row in enumerate(dfa.rows):
        for target in row:
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
    """Merge equivalent states (Moore's refinement), unless there are too many for that to pay."""
    if dfa.is_empty or len(dfa.rows) > MAX_MINIMISED:
        return dfa
    blocks = [int(state in dfa.accepting) for state in range(len(dfa.rows))]
    count = len(set(blocks))
    while True:
        names: dict[tuple[int, ...], int] = {}
        refined = [
            names.setdefault((block, *(blocks[t] if t >= 0 else -1 for t in row)), len(names))
            for block, row in zip(blocks, dfa.rows, strict=True)
        ]
        if len(names) == count:
            break
        blocks, count = refined, len(names)
    first: dict[int, int] = {}
    for state, block in enumerate(blocks):
        first.setdefault(block, state)
    return dfa if count == len(dfa.rows) else _renumbered(dfa, [first[block] for block in blocks])


def _renumbered(dfa: CharDFA, representative: list[int]) -> CharDFA:
    """The part reachable from the start, each state replaced by its representative (-1: dropped)."""
    numbers, order, rows = {representative[0]: 0}, [representative[0]], []
    for state in order:
        row = []
        for target in dfa.rows[state]:
            target = representative[target] if target >= 0 else -1
            if target >= 0 and target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target] if target >= 0 else -1)
        rows.append(tuple(row))
    return CharDFA(dfa.classes, tuple(rows), frozenset(numbers[s] for s in order if s in dfa.accepting))


def both(one: CharDFA, other: CharDFA) -> CharDFA:
    """The intersection."""
    if one.is_empty or other.is_empty:
        return CharDFA((), (), frozenset())
    classes, left, right = _common_classes(one, other)

    def step(state: tuple[int, int], index: int) -> tuple[int, int] | None:
        a, b = one.rows[state[0]][left[index]], other.rows[state[1]][right[index]]
        return (a, b) if a >= 0 and b >= 0 else None

    return explore((0, 0), classes, step, lambda s: s[0] in one.accepting and s[1] in other.accepting)


def difference(one: CharDFA, other: CharDFA) -> CharDFA:
    """What is in `one` and not in `other`."""
    if one.is_empty or other.is_empty:
        return one
    classes, left, right = _common_classes(one, other)

    def step(state: tuple[int, int], index: int) -> tuple[int, int] | None:
        a = one.rows[state[0]][left[index]]
        b = other.rows[state[1]][right[index]] if state[1] >= 0 else -1
        return (a, b) if a >= 0 else None

    return explore((0, 0), classes, step, lambda s: s[0] in one.accepting and s[1] not in other.accepting)


def word_lengths(dfa: CharDFA) -> tuple[list[list[int | None]], int]:
    """For each state and k, the least length of a word from there that is at least k; None when there is none.

    Which states have a word of length k is a sequence of sets that ends in a circle; the rows are as long as the
    way into it and once around. Returns the rows and the length of the circle: beyond the end of its row, an entry
    is the one a whole number of rounds before it, plus those rounds.

    Raises:
        GrammarLimitError: the circle is too long.
    """
    successors = [sum(1 << target for target in {t for t in row if t >= 0}) for row in dfa.rows]
    layers: list[int] = []
    places: dict[int, int] = {}
    layer = sum(1 << state for state in dfa.accepting)
    while layer not in places:
        places[layer] = len(layers)
        layers.append(layer)
        if len(layers) * len(dfa.rows) > MAX_WORK:
            raise GrammarLimitError(
                "the lengths of the texts that match are too irregular to be limited",
                hint="drop minLength or maxLength",
            )
        layer = sum(1 << state for state, mask in enumerate(successors) if mask & layer)
    count, period = len(layers), len(layers) - places[layer]
    rows: list[list[int | None]] = []
    for state in range(len(dfa.rows)):
        row: list[int | None] = [None] * count
        # In the circle, the next length may lie one round ahead.
        following = next((k + period for k in range(count - period, count) if layers[k] >> state & 1), None)
        for k in range(count - 1, -1, -1):
            if layers[k] >> state & 1:
                following = k
            row[k] = following
        rows.append(row)
    return rows, period


def _common_classes(one: CharDFA, other: CharDFA) -> tuple[tuple[CharSet, ...], list[int], list[int]]:
    """A partition finer than both, and for each part its class in either."""
    classes, left, right = [], [], []
    for i, first in enumerate(one.classes):
        for j, second in enumerate(other.classes):
            part = intersect(first, second)
            if part:
                classes.append(part)
                left.append(i)
                right.append(j)
    return tuple(classes), left, right


def char_dfa(root: Node) -> CharDFA:
    """The automaton of a syntax tree, assertions included (the whole text is matched)."""
    return determinised(char_nfa(root))


State = tuple[str, frozenset[tuple[int, Promise]]]


def determinised(nfa: CharNFA) -> CharDFA:
    """Subset construction; a state also knows what came before it, for the assertions."""
    sets = [chars for edges in nfa.chars for chars, _ in edges]
    classes = tuple(partition([*sets, WORD] if nfa.has_assertions else sets)) or (ANY,)
    is_word = [bool(intersect(part, WORD)) for part in classes]
    members = {chars: [bool(intersect(part, chars)) for part in classes] for chars in set(sets)}

    def step(state: State, index: int) -> State | None:
        kind: Promise = "word" if is_word[index] else "not word"
        moved = {
            target
            for source, promise in state[1]
            if promise in ("any", kind)
            for chars, target in nfa.chars[source]
            if members[chars][index]
        }
        if not moved:
            return None
        before = kind if nfa.has_assertions else "any"
        return before, _closure(nfa, moved, before)

    start: State = ("start", _closure(nfa, {0}, "start"))
    return explore(start, classes, step, lambda s: any(n == 1 and promise != "word" for n, promise in s[1]))


def _closure(nfa: CharNFA, states: set[int], before: str) -> frozenset[tuple[int, Promise]]:
    seen: set[tuple[int, Promise]] = {(state, "any") for state in states}
    todo = list(seen)
    while todo:
        state, promise = todo.pop()
        reached = [(target, promise) for target in nfa.epsilon[state]]
        for kind, target in nfa.asserts[state]:
            kept = _assert(kind, before, promise)
            if kept is not None:
                reached.append((target, kept))
        for pair in reached:
            if pair not in seen:
                seen.add(pair)
                todo.append(pair)
    return frozenset(pair for pair in seen if pair[0] == 1 or nfa.chars[pair[0]])


def _assert(kind: str, before: str, promise: Promise) -> Promise | None:
    """The promise after passing an assertion; None where it fails."""
    if kind == "start":
        return promise if before == "start" else None
    if kind == "end":
        return "end" if promise != "word" else None
    wanted_word = (before != "word") == (kind == "word")
    if wanted_word:
        return "word" if promise in ("any", "word") else None
    if promise == "word":
        return None
    return "end" if promise == "end" else "not word"
