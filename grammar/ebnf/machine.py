"""An automaton whose edges read text or call rules, ready to become program states."""

from __future__ import annotations

from dataclasses import dataclass, field

from structgen.grammar.ebnf.network import Edge, Label

_FACTOR, _EXTRA = 2, 64  # how many states more than before are worth it


@dataclass(slots=True)
class Machine:
    """State 0 is the start. `edges[state]` lists (label, target); label None takes nothing."""

    edges: list[list[Edge]] = field(default_factory=list)
    accepting: set[int] = field(default_factory=set)

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
        numbers: dict[frozenset[int], int] = {}
        todo: list[frozenset[int]] = []

        def number(states: frozenset[int]) -> int:
            if states not in numbers:
                numbers[states] = found.state()
                todo.append(states)
                if states & self.accepting:
                    found.accepting.add(numbers[states])
            return numbers[states]

        number(self._closure({0}))
        while todo:
            if len(numbers) > _FACTOR * len(self.edges) + _EXTRA:
                return self
            states = todo.pop()
            moves: dict[Label, set[int]] = {}
            for state in sorted(states):
                for label, target in self.edges[state]:
                    if label is not None:
                        moves.setdefault(label, set()).add(target)
            targets: list[Edge] = [(label, number(self._closure(reached))) for label, reached in moves.items()]
            found.edges[numbers[states]] = targets
        return found

    def _closure(self, states: set[int]) -> frozenset[int]:
        """What is reached without reading; only states that read or accept count."""
        seen, todo = set(states), list(states)
        while todo:
            for label, target in self.edges[todo.pop()]:
                if label is None and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return frozenset(
            one for one in seen if one in self.accepting or any(label is not None for label, _ in self.edges[one])
        )
