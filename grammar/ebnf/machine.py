"""An automaton whose edges read text or call rules, ready to become program states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from structgen.grammar.ebnf.network import Edge, Label

_FACTOR, _EXTRA = 3, 200  # how many edges more than before are worth it
_WORK = 30  # steps an edge that are worth it


@dataclass(slots=True)
class Machine:
    """State 0 is the start. `edges[state]` lists (label, target); label None takes nothing."""

    edges: list[list[Edge]] = field(default_factory=list)
    accepting: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(map(len, self.edges))

    def state(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def determinised(self) -> Machine:
        """The same language with at most one edge a label and state, and none that takes nothing.

        A rule that is called for several reasons at once is then called once: otherwise the stacks of a chain of
        such rules double with each. Labels are opaque, so texts may still overlap. Where subsets grow too many,
        the machine stays as it is.
        """
        found = Machine()
        steps = _Steps(self)
        numbers: dict[frozenset[int], int] = {}
        todo: list[frozenset[int]] = []

        def number(states: frozenset[int]) -> int:
            if states not in numbers:
                numbers[states] = found.state()
                todo.append(states)
                if states & self.accepting:
                    found.accepting.add(numbers[states])
            return numbers[states]

        number(steps.closure({0}))
        edges, work = _FACTOR * self.size + _EXTRA, _WORK * (self.size + _EXTRA)
        while todo:
            states = todo.pop()
            moves: dict[Label, set[int]] = {}
            for state in sorted(states):
                for label, target in steps.reading[state]:
                    moves.setdefault(label, set()).add(target)
            edges -= len(moves) + 1
            for label, reached in moves.items():
                found.edges[numbers[states]].append((label, number(steps.closure(reached))))
                if edges < 0 or steps.count > work:
                    return self
        return found


class _Steps:
    """The edges of a machine by kind; counts the states that closures have visited."""

    def __init__(self, machine: Machine) -> None:
        self.count = 0
        self.empty = [[target for label, target in edges if label is None] for edges in machine.edges]
        self.reading = [[(label, target) for label, target in edges if label is not None] for edges in machine.edges]
        self.matters = [bool(edges) or state in machine.accepting for state, edges in enumerate(self.reading)]

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """What is reached without reading; only states that read or accept."""
        seen = set(states)
        todo = list(seen)
        while todo:
            for target in self.empty[todo.pop()]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        self.count += len(seen)
        return frozenset(state for state in seen if self.matters[state])
