"""A regex as a non-deterministic automaton over characters, with assertions as edges (Thompson's construction).

Used where algebra is needed (several constraints on one string, assertions in the middle of a pattern). A single
pattern goes to the program directly and keeps its counters; here counts are unrolled, under a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from structgen.grammar.charset import CharSet
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.regex_tree import Alt, Assertion, AssertionKind, Chars, Concat, Empty, Language, Node, Repeat

MAX_NFA_STATES = 60_000


@dataclass(slots=True)
class CharNFA:
    """State 0 is the start, state 1 accepts. All lists are indexed by state."""

    epsilon: list[list[int]] = field(default_factory=lambda: [[], []])
    chars: list[list[tuple[CharSet, int]]] = field(default_factory=lambda: [[], []])
    asserts: list[list[tuple[AssertionKind, int]]] = field(default_factory=lambda: [[], []])

    def add(self) -> int:
        if len(self.epsilon) >= MAX_NFA_STATES:
            raise GrammarLimitError(
                f"the pattern needs more than {MAX_NFA_STATES:,} states when it is combined with other constraints",
                hint="use smaller counts, or drop the length limits beside the pattern",
            )
        self.epsilon.append([])
        self.chars.append([])
        self.asserts.append([])
        return len(self.epsilon) - 1

    @property
    def has_assertions(self) -> bool:
        return any(self.asserts)


def char_nfa(root: Node) -> CharNFA:
    """The automaton of a syntax tree."""
    nfa = CharNFA()
    todo: list[tuple[Node, int, int]] = [(root, 0, 1)]
    while todo:
        node, start, end = todo.pop()
        if isinstance(node, Empty):
            nfa.epsilon[start].append(end)
        elif isinstance(node, Chars):
            nfa.chars[start].append((node.chars, end))
        elif isinstance(node, Assertion):
            nfa.asserts[start].append((node.kind, end))
        elif isinstance(node, Alt):
            todo += [(option, start, end) for option in node.options]
        elif isinstance(node, Concat):
            places = [start, *(nfa.add() for _ in node.items[1:]), end]
            todo += list(zip(node.items, places, places[1:], strict=False))
        elif isinstance(node, Repeat):
            todo += _repeat(nfa, node, start, end)
        elif isinstance(node, Language):
            _embed(nfa, node, start, end)
        else:
            raise AssertionError("lookaheads are resolved before this")
    return nfa


def _embed(nfa: CharNFA, node: Language, start: int, end: int) -> None:
    """Copy a finished automaton between two states."""
    states = [nfa.add() for _ in node.dfa.rows]
    if states:
        nfa.epsilon[start].append(states[0])
    for state, row in zip(states, node.dfa.rows, strict=True):
        nfa.chars[state] += [(node.dfa.classes[i], states[target]) for i, target in enumerate(row) if target >= 0]
    for state in node.dfa.accepting:
        nfa.epsilon[states[state]].append(end)


def _repeat(nfa: CharNFA, node: Repeat, start: int, end: int) -> list[tuple[Node, int, int]]:
    todo: list[tuple[Node, int, int]] = []
    for _ in range(node.least):
        after = nfa.add()
        todo.append((node.item, start, after))
        start = after
    if node.most is None:
        hub = nfa.add()
        nfa.epsilon[start].append(hub)
        nfa.epsilon[hub].append(end)
        todo.append((node.item, hub, hub))
        return todo
    for _ in range(node.most - node.least):
        nfa.epsilon[start].append(end)
        after = nfa.add()
        todo.append((node.item, start, after))
        start = after
    nfa.epsilon[start].append(end)
    return todo
