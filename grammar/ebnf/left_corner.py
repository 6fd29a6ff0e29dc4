"""Left recursion becomes loops.

The pushdown program must not call a rule that calls itself before it reads: its stacks would grow without end. So
derivations are followed along their left edge from the bottom up, as left-corner parsers do (Rosenkrantz and Lewis
1970): to read rule A, begin with anything that a rule Y at the left edge can begin with; when Y ends, go on in a
rule Z behind its leading Y; at the end of A, done. The machine of A therefore holds a copy of the networks
of its members Y. Its size is the sum of theirs: grammars grow at most by the number of their rules.

Members are at least the rules that are left-recursive together with A. Where that is cheap they are all rules
at the left edge: then a byte is followed by one call at most, not by a tower of them.
"""

from __future__ import annotations

from structgen.grammar.ebnf.components import components
from structgen.grammar.ebnf.machine import Machine
from structgen.grammar.ebnf.network import END, START, Call, Edge, Network
from structgen.grammar.errors import GrammarLimitError

MAX_EDGES = 150_000  # of all machines of a grammar
SMALL_MACHINE = 600  # edges up to which all rules at the left edge become members
SMALL_TOTAL = 30_000  # ... while all machines together have fewer edges

_DONE = 1  # the accepting state of a machine under construction


class LeftCorners:
    """Makes machines out of networks."""

    def __init__(self, networks: dict[str, Network]) -> None:
        self._networks = networks
        self._firsts = {name: _firsts(network) for name, network in networks.items()}
        self._corners = {
            name: list(dict.fromkeys(label.name for label, _ in first if isinstance(label, Call)))
            for name, first in self._firsts.items()
        }
        self._component: dict[str, int] = {}
        for index, component in enumerate(components(self._corners)):
            self._component.update(dict.fromkeys(component, index))
        self._edges = 0

    def machine(self, name: str) -> Machine:
        """All texts of a rule but for the empty one.

        Raises:
            GrammarLimitError: the machines of the grammar become too large together.
        """
        members, size = self._members(name)
        self._edges += size
        if self._edges > MAX_EDGES:
            hint = "too many rules begin with each other: begin some of them with a literal"
            raise GrammarLimitError("the grammar is too large once its left recursion is resolved", hint=hint)
        return _Composition(name, members, self._networks, self._firsts).finish().determinised()

    def _members(self, name: str) -> tuple[list[str], int]:
        members, size = self._reached(name, within=False, limit=SMALL_MACHINE)
        if size <= SMALL_MACHINE and self._edges + size <= SMALL_TOTAL:
            return members, size
        return self._reached(name, within=True, limit=MAX_EDGES)

    def _reached(self, name: str, *, within: bool, limit: int) -> tuple[list[str], int]:
        """Rules at the left edge of a rule, and their edges; stops beyond the limit. `within`: its component."""
        seen = {name: None}
        todo, size = [name], 0
        while todo and size <= limit:
            one = todo.pop()
            size += self._networks[one].size
            for corner in self._corners[one]:
                if corner not in seen and (not within or self._component[corner] == self._component[name]):
                    seen[corner] = None
                    todo.append(corner)
        return list(seen), size


def _firsts(network: Network) -> list[Edge]:
    """The edges that can be taken first. Of a count, the first round is an edge of its own."""
    found: dict[Edge, None] = {}
    for state in network.closure(START):
        for label, target in list(network.edges[state]):
            if isinstance(label, Call) and label.most != 1:
                target = _behind_first(network, label, target)
                label = Call(label.name)
            if label is not None:
                found[label, target] = None
    return list(found)


def _behind_first(network: Network, call: Call, target: int) -> int:
    """A state that reads one round less of a counted call."""
    state = network.state()
    rest = Call(call.name, max(call.least - 1, 1), None if call.most is None else call.most - 1)
    network.add(state, rest, target)
    if call.least == 1:
        network.add(state, None, target)
    return state


class _Composition:
    """The machine of one rule under construction."""

    def __init__(
        self, name: str, members: list[str], networks: dict[str, Network], firsts: dict[str, list[Edge]]
    ) -> None:
        self.name = name
        self.networks = networks
        self.machine = Machine([[], []], {_DONE})
        self.base: dict[str, int] = {}
        for member in members:
            self.base[member] = len(self.machine.edges)
            self.machine.edges += [[] for _ in networks[member].edges]
        # Where to go on when a member has ended: (the rule that began with it, a state of its network).
        self.ends: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        self.inner_ends: dict[str, int] = {name: _DONE}
        self.pending: list[tuple[str, int]] = []
        for member in members:
            self.begin(member, firsts[member])
        for member in members:
            self.copy(member)

    def begin(self, member: str, first: list[Edge]) -> None:
        for label, target in first:
            if isinstance(label, Call) and label.name in self.base:
                self.ends[label.name].append((member, target))
            else:
                self.machine.edges[0].append((label, self.base[member] + target))

    def copy(self, member: str) -> None:
        network, base, edges = self.networks[member], self.base[member], self.machine.edges
        inner = Call(self.name)
        for source, listed in enumerate(network.edges):
            edges[base + source] += [
                (label, self.inner_end(member) if label == inner and _is_last(network, target) else base + target)
                for label, target in listed
            ]
        edges[base + END] += [(None, self.base[outer] + target) for outer, target in self.ends[member]]
        if member == self.name:
            edges[base + END].append((None, _DONE))

    def inner_end(self, member: str) -> int:
        """Where a member goes on when it has ended with the rule itself, as E does in `E: E "+" E`.

        What may follow the inner E as part of the outer one can as well be read by the inner one. So at the end of
        the outer one nothing more is read, the inner call is the last thing of all and needs no frame, and one way
        to read `1+1+1` is left of many.
        """
        todo = [member]
        while todo:
            one = todo.pop()
            if one in self.inner_ends:
                continue
            state = self.inner_ends[one] = self.machine.state()
            todo += [outer for outer, target in self.ends[one] if _is_last(self.networks[outer], target)]
            self.pending.append((one, state))
        return self.inner_ends[member]

    def finish(self) -> Machine:
        """Connect the inner ends; members that are nothing but this one end with it."""
        for member, state in self.pending:
            self.machine.edges[state] = [
                (
                    None,
                    self.inner_ends[outer] if _is_last(self.networks[outer], target) else self.base[outer] + target,
                )
                for outer, target in self.ends[member]
            ]
        return self.machine


def _is_last(network: Network, state: int) -> bool:
    """Whether nothing but the end of the rule follows."""
    return all(label is None for one in network.closure(state) for label, _ in network.edges[one])
