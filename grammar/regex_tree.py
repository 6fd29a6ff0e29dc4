"""The syntax tree of a regex, and what can be said of it without building an automaton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from structgen.grammar.charset import CharSet
from structgen.grammar.errors import GrammarLimitError

if TYPE_CHECKING:
    from structgen.grammar.char_dfa import CharDFA

MAX_COUNT = 1 << 30

AssertionKind = Literal["start", "end", "word", "not word"]


@dataclass(frozen=True, slots=True, eq=False)
class Empty:
    """The empty text."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a set; with the empty set, nothing at all."""

    chars: CharSet


@dataclass(frozen=True, slots=True, eq=False)
class Concat:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Between `least` and `most` times; most None: without end."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    """A place in the text: consumes nothing."""

    kind: AssertionKind
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A lookahead: what follows must (not) begin with `item`. Consumes nothing."""

    item: Node
    negative: bool
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """The words of a finished automaton."""

    dfa: CharDFA


@dataclass(slots=True, eq=False)
class Rule:
    """A part with a name of its own, which it may use itself: `body` is set once. Without assertions."""

    body: Node | None = None


Node = Empty | Chars | Concat | Alt | Repeat | Assertion | Look | Language | Rule


def concat(items: list[Node]) -> Node:
    kept = [item for item in items if not isinstance(item, Empty)]
    if not kept:
        return Empty()
    return kept[0] if len(kept) == 1 else Concat(tuple(kept))


def alt(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Alt(tuple(options))


def repeat(item: Node, least: int, most: int | None) -> Node:
    """A repetition in its simplest form.

    Nested repetitions become one where their counts leave no gap: (x{a,b}){c,d} = x{ac,bd} when every multiple of
    a run reaches the next. That keeps `((a{1,100}){1,100}){1,100}` at a single counter.
    """
    if isinstance(item, Empty) or most == 0:
        return Empty()
    if (least, most) == (1, 1):
        return item
    if isinstance(item, Repeat) and _no_gap(item, least, most):
        inner_most = None if item.most is None or most is None else item.most * most
        if item.least * least > MAX_COUNT:
            raise GrammarLimitError(f"counts that multiply beyond {MAX_COUNT:,}", hint="use smaller counts")
        # No text comes near the limit from above: beyond it, counting is left out.
        return Repeat(item.item, item.least * least, None if (inner_most or 0) > MAX_COUNT else inner_most)
    return Repeat(item, least, most)


def _no_gap(inner: Repeat, least: int, most: int | None) -> bool:
    if least == 0 and inner.least > 1:
        return False
    if inner.most is None:
        return True
    # The gap after `count` rounds is smallest growth: (count + 1) * a - count * b <= 1, worst at the least count.
    count = max(least, 1)
    if most is not None and most <= count:
        return True
    return (count + 1) * inner.least - count * inner.most <= 1


def assertions(node: Node) -> list[Assertion | Look]:
    """All assertions and lookaheads of a tree, in no particular order."""
    found: list[Assertion | Look] = []
    todo = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, Assertion | Look):
            found.append(one)
        elif isinstance(one, Concat):
            todo += one.items
        elif isinstance(one, Alt):
            todo += one.options
        elif isinstance(one, Repeat):
            todo.append(one.item)
    return found


def nullable(root: Node) -> bool:
    """Whether the empty text matches (assertions taken as true)."""
    # Post-order with an explicit stack: patterns nest deeper than Python's stack.
    values: dict[int, bool] = {}
    todo: list[tuple[Node, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if isinstance(node, Concat | Alt) and not ready:
            children = node.items if isinstance(node, Concat) else node.options
            todo.append((node, True))
            todo += [(child, False) for child in children]
        elif isinstance(node, Concat):
            values[id(node)] = all(values[id(child)] for child in node.items)
        elif isinstance(node, Alt):
            values[id(node)] = any(values[id(child)] for child in node.options)
        elif isinstance(node, Repeat) and not ready and node.least > 0:
            todo += [(node, True), (node.item, False)]
        elif isinstance(node, Repeat):
            values[id(node)] = node.least == 0 or values[id(node.item)]
        else:
            values[id(node)] = not isinstance(node, Chars)
    return values[id(root)]
