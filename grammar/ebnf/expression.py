"""Bodies of rules. The constructors fold regular parts into leaves, so that what remains structured is recursive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.charset import CharSet
from structgen.grammar.regex_tree import Chars, Empty, Node, alt, concat, repeat


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A regular part without assertions.

    Attributes:
        size: nodes of the tree, shared ones counted each time.
    """

    node: Node
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A regex with assertions, as the automaton of its own text."""

    dfa: CharDFA


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """A rule by name."""

    name: str
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Between `least` and `most` times; most None: without end."""

    item: Expression
    least: int
    most: int | None


Expression = Leaf | Scan | Ref | Sequence | Choice | Repetition

EMPTY_LEAF = Leaf(Empty(), 1)


def characters(chars: CharSet) -> Leaf:
    """One character of a set."""
    return Leaf(Chars(chars), 1)


def literal(text: str) -> Leaf:
    if not text:
        return EMPTY_LEAF
    return Leaf(concat([Chars(((ord(char), ord(char)),)) for char in text]), len(text))


def sequence(items: list[Expression]) -> Expression:
    """One after the other; neighbours that are leaves become one leaf."""
    merged: list[Expression] = []
    run: list[Leaf] = []
    for item in items:
        if isinstance(item, Leaf):
            run.append(item)
            continue
        merged += _leaf_of(run, concat)
        run = []
        merged.append(item)
    merged += _leaf_of(run, concat)
    if not merged:
        return EMPTY_LEAF
    return merged[0] if len(merged) == 1 else Sequence(tuple(merged))


def choice(items: list[Expression]) -> Expression:
    """Any of at least one; those that are leaves become one leaf."""
    leaves = [item for item in items if isinstance(item, Leaf)]
    others = [item for item in items if not isinstance(item, Leaf)]
    merged: list[Expression] = [*(_leaf_of(leaves, alt) if leaves else []), *others]
    return merged[0] if len(merged) == 1 else Choice(tuple(merged))


def _leaf_of(leaves: list[Leaf], join: Callable[[list[Node]], Node]) -> list[Leaf]:
    """The leaves as one, in a list; no leaf for none or for the empty text in a sequence."""
    node = join([leaf.node for leaf in leaves])
    if isinstance(node, Empty) and join is concat:
        return []
    return [Leaf(node, 1 + sum(leaf.size for leaf in leaves))]


def repetition(item: Expression, least: int, most: int | None) -> Expression:
    """A repetition in its simplest form."""
    if most == 0:
        return EMPTY_LEAF
    if isinstance(item, Leaf):
        return Leaf(repeat(item.node, least, most), item.size + 1)
    return item if (least, most) == (1, 1) else Repetition(item, least, most)


def references(body: Expression) -> Iterator[Ref]:
    """All rules that a body names, in the order of the text."""
    todo = [body]
    while todo:
        one = todo.pop()
        if isinstance(one, Ref):
            yield one
        elif isinstance(one, Sequence | Choice):
            todo += reversed(one.items)
        elif isinstance(one, Repetition):
            todo.append(one.item)


def replaced(body: Expression, replacement: Callable[[Ref], Expression]) -> Expression:
    """The body with every reference replaced, folded anew."""
    # Post-order with stacks of our own: groups nest deeper than Python's stack.
    todo: list[tuple[Expression, bool]] = [(body, False)]
    done: list[Expression] = []
    while todo:
        one, ready = todo.pop()
        if isinstance(one, Ref):
            done.append(replacement(one))
        elif isinstance(one, Leaf | Scan):
            done.append(one)
        elif not ready:
            todo.append((one, True))
            todo += [(item, False) for item in reversed([one.item] if isinstance(one, Repetition) else one.items)]
        elif isinstance(one, Repetition):
            done.append(repetition(done.pop(), one.least, one.most))
        else:
            items = done[-len(one.items) :]
            del done[-len(one.items) :]
            done.append(sequence(items) if isinstance(one, Sequence) else choice(items))
    return done[0]
