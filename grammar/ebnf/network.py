"""Each rule as a non-deterministic automaton whose edges read text or call rules: a recursive transition network.

Every label takes at least one character. What may also be empty is an edge beside a step that takes nothing (label
None), so that "nothing was read yet" is a matter of the path alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from structgen.grammar.ebnf.expression import Choice, Expression, Leaf, Ref, Repetition, Scan, Sequence
from structgen.grammar.regex_program import without_empty
from structgen.grammar.regex_tree import Alt, Chars, Concat, Empty, Node, Repeat, nullable


@dataclass(frozen=True, slots=True)
class Read:
    """A part of a regex that is not empty; equal keys read the same."""

    key: Hashable
    node: Node = field(compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """What a rule matches but for the empty text, between `least` >= 1 and `most` times (None: without end)."""

    name: str
    least: int = 1
    most: int | None = 1


Label = bytes | Read | Call  # bytes: a literal
Edge = tuple[Label | None, int]

START, END = 0, 1


class Network:
    """The automaton of one rule. `edges[state]` lists (label, target)."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = [[], []]

    def state(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def add(self, source: int, label: Label | None, target: int) -> None:
        self.edges[source].append((label, target))

    def closure(self, *states: int) -> list[int]:
        """The states that are reached without reading, these included."""
        seen = dict.fromkeys(states)
        todo = list(seen)
        while todo:
            for label, target in self.edges[todo.pop()]:
                if label is None and target not in seen:
                    seen[target] = None
                    todo.append(target)
        return list(seen)

    def calls(self) -> Iterator[tuple[int, Call, int]]:
        for source, edges in enumerate(self.edges):
            for label, target in edges:
                if isinstance(label, Call):
                    yield source, label, target

    @property
    def size(self) -> int:
        return sum(map(len, self.edges))


def networks(bodies: Mapping[str, Expression]) -> tuple[dict[str, Network], set[str]]:
    """The networks of all rules, and the names of those that match the empty text.

    Repeated parts that are neither regular nor a name get networks of their own.
    """
    made: dict[str, Network] = {}
    todo = list(bodies.items())
    while todo:
        name, body = todo.pop()
        made[name] = network = Network()
        _Placement(network, name, todo).place(body)
    return made, _settle_empty(made)


def _settle_empty(made: dict[str, Network]) -> set[str]:
    """Find the rules that match the empty text, and add the steps beside their calls."""
    users: dict[str, list[tuple[str, int, Call, int]]] = {name: [] for name in made}
    todo = []
    for name, network in made.items():
        for source, call, target in list(network.calls()):
            users[call.name].append((name, source, call, target))
        if END in network.closure(START):
            todo.append(name)
    empty = set(todo)
    while todo:
        for name, source, call, target in users[todo.pop()]:
            network = made[name]
            # Of a count, any number may be empty.
            network.edges[source].remove((call, target))
            network.edges[source] += [(Call(call.name, 1, call.most), target), (None, target)]
            if name not in empty and END in network.closure(START):
                empty.add(name)
                todo.append(name)
    return empty


class _Placement:
    """Adds expressions and regexes to a network between two states; with lists of its own, not recursion."""

    def __init__(self, network: Network, name: str, more: list[tuple[str, Expression]]) -> None:
        self.network = network
        self.name = name
        self.more = more  # further rules
        self.parts = 0
        self.todo: list[tuple[Expression | Node, int, int]] = []

    def place(self, body: Expression) -> None:
        self.todo.append((body, START, END))
        while self.todo:
            one, source, target = self.todo.pop()
            if isinstance(one, Leaf):
                self.todo.append((one.node, source, target))
            elif isinstance(one, Ref):
                self.network.add(source, Call(one.name), target)
            elif isinstance(one, Scan):
                self.scan(one, source, target)
            elif isinstance(one, Sequence | Choice):
                self.chain(list(one.items), isinstance(one, Sequence), source, target)
            elif isinstance(one, Repetition):
                self.repetition(one, source, target)
            else:
                self.regular(one, source, target)

    def chain(self, items: list[Expression] | list[Node], in_turn: bool, source: int, target: int) -> None:
        """Items in turn, or any of them."""
        for index, item in enumerate(items):
            following = target if not in_turn or index == len(items) - 1 else self.network.state()
            self.todo.append((item, source, following))
            source = following if in_turn else source

    def scan(self, scan: Scan, source: int, target: int) -> None:
        states = [self.network.state() for _ in scan.dfa.rows]
        if states:
            self.network.add(source, None, states[0])
        for state, row in enumerate(scan.dfa.rows):
            for chars, following in zip(scan.dfa.classes, row, strict=True):
                if following >= 0:
                    self.regular(Chars(chars), states[state], states[following])
            if state in scan.dfa.accepting:
                self.network.add(states[state], None, target)

    def repetition(self, one: Repetition, source: int, target: int) -> None:
        if self.simple_repetition(one.item, one.least, one.most, source, target):
            return
        name = one.item.name if isinstance(one.item, Ref) else f"{self.name}, part {self.parts}"
        if not isinstance(one.item, Ref):
            self.parts += 1
            self.more.append((name, one.item))
        self.network.add(source, Call(name, max(one.least, 1), one.most), target)
        if one.least == 0:
            self.network.add(source, None, target)

    def simple_repetition(
        self, item: Expression | Node, least: int, most: int | None, source: int, target: int
    ) -> bool:
        """Place an optional item or a loop without counts; False for others."""
        add, state = self.network.add, self.network.state
        if (least, most) == (0, 1):
            add(source, None, target)
            self.todo.append((item, source, target))
        elif most is None and least == 0:
            hub = state()
            add(source, None, hub)
            add(hub, None, target)
            self.todo.append((item, hub, hub))
        elif most is None and least == 1:
            first, last = state(), state()
            add(source, None, first)
            self.todo.append((item, first, last))
            add(last, None, first)
            add(last, None, target)
        else:
            return False
        return True

    def regular(self, node: Node, source: int, target: int) -> None:
        if isinstance(node, Empty):
            self.network.add(source, None, target)
        elif isinstance(node, Chars):
            self.network.add(source, _read(node), target)
        elif isinstance(node, Alt):
            self.chain(list(node.options), False, source, target)
        elif isinstance(node, Concat):
            self.concat(node, source, target)
        elif isinstance(node, Repeat):
            self.repeat(node, source, target)
        else:
            raise AssertionError("assertions became a Scan before this")

    def concat(self, node: Concat, source: int, target: int) -> None:
        """Runs of single characters become literals."""
        items = _flat(node)
        index = 0
        while index < len(items):
            text = bytearray()
            while index < len(items) and (char := _single(items[index])):
                text += char
                index += 1
            following = target if index + (not text) >= len(items) else self.network.state()
            if text:
                self.network.add(source, bytes(text), following)
            else:
                self.todo.append((items[index], source, following))
                index += 1
            source = following

    def repeat(self, node: Repeat, source: int, target: int) -> None:
        item, least, most = node.item, node.least, node.most
        simple = (least, most) == (0, 1) or not isinstance(item, Chars)
        if simple and self.simple_repetition(item, least, most, source, target):
            return
        if nullable(item):
            item, least = without_empty(item), 0
        if least == 0:
            self.network.add(source, None, target)
        self.network.add(source, _read(Repeat(item, max(least, 1), most)), target)


def _flat(node: Concat) -> list[Node]:
    """The parts of a sequence, and of sequences in it."""
    items: list[Node] = []
    todo: list[Node] = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, Concat):
            todo += reversed(one.items)
        else:
            items.append(one)
    return items


def _read(node: Chars | Repeat) -> Label:
    if isinstance(node, Chars):
        return _single(node) or Read(node.chars, node)
    if isinstance(node.item, Chars):
        return Read((node.item.chars, node.least, node.most), node)
    return Read(id(node), node)


def _single(node: Node) -> bytes:
    """The one character that a node matches, in UTF-8; b"" where it matches others."""
    if isinstance(node, Chars) and len(node.chars) == 1 and node.chars[0][0] == node.chars[0][1]:
        return chr(node.chars[0][0]).encode()
    return b""
