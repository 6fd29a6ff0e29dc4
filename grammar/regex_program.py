"""Regexes and character automata as program states, in a given spelling of characters.

A single regex keeps its structure: counted repetition becomes a LOOP whose count lives on the stack, so nothing is
unrolled. Assertions at the ends of the pattern are resolved here; others go through the character automaton.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.charset import ANY, CharSet, union
from structgen.grammar.dfa_algebra import word_lengths
from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError
from structgen.grammar.lookahead import language
from structgen.grammar.program import Interior, Program, ProgramBuilder
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import (
    Alt,
    Assertion,
    Chars,
    Concat,
    Empty,
    Node,
    Repeat,
    Rule,
    alt,
    assertions,
    concat,
    nullable,
    repeat,
)

Edges = list[tuple[int, int, int]]


class Spelling(Protocol):
    """How characters are written.

    Attributes:
        interior: what a loop over any character is, in a JSON string; NONE outside of one.
    """

    interior: Interior

    def __call__(self, builder: ProgramBuilder, chars: CharSet, then: int, /) -> Edges:
        """Byte edges for one character of a set, and then a state."""


class Raw:
    """Characters in plain UTF-8."""

    interior = Interior.NONE

    def __call__(self, builder: ProgramBuilder, chars: CharSet, then: int, /) -> Edges:
        return builder.characters(chars, then)


raw = Raw()

ANY_TEXT = Repeat(Chars(ANY), 0, None)
UNROLLED = 4  # repetitions of one character that are cheaper as states than as a counter
MAX_STRIP_DEPTH = 200


def regex_program(pattern: str) -> Program:
    """All texts that a pattern matches as a whole."""
    tree = without_end_assertions(parse_regex(pattern), search=False)
    builder = ProgramBuilder()
    if assertions(tree):
        dfa = language(tree)
        if dfa.is_empty:
            raise UnsatisfiableError("the assertions in this pattern contradict each other", position=0)
        return builder.finish(place_dfa(builder, dfa, builder.accept, raw))
    start = builder.reserve()
    place_tree(builder, tree, start, builder.accept, raw)
    return builder.finish(start)


@lru_cache(maxsize=2048)
def search_tree(pattern: str) -> Node:
    """The tree of all texts in which a pattern is found, as JSON Schema means patterns."""
    return without_end_assertions(parse_regex(pattern), search=True)


def without_end_assertions(tree: Node, *, search: bool) -> Node:
    """A tree for the whole text, with `^` and `$` at the ends of alternatives resolved.

    With `search`, an end that is not anchored may be preceded or followed by any text.
    """
    options = list(tree.options) if isinstance(tree, Alt) else [tree]
    # Alternatives with the same open ends share the text before and behind them: with texts of their own, an automaton
    # would remember which of them were found.
    groups: dict[tuple[bool, bool], list[Node]] = {}
    for option in options:
        inner, open_ends = _without_anchors(option, search)
        groups.setdefault(open_ends, []).append(inner)
    return alt([_between(alt(group), *open_ends) for open_ends, group in groups.items()])


def _without_anchors(option: Node, search: bool) -> tuple[Node, tuple[bool, bool]]:
    """An alternative without `^` and `$` at its ends, and whether any text may come before and behind it."""
    items: list[Node] = list(option.items) if isinstance(option, Concat) else [option]
    first, last = 0, len(items)
    while first < last and _is_assertion(items[first], "start"):
        first += 1
    while last > first and _is_assertion(items[last - 1], "end"):
        last -= 1
    return concat(items[first:last]), (search and first == 0, search and last == len(items))


def _between(inner: Node, before: bool, behind: bool) -> Node:
    items = inner.items if isinstance(inner, Concat) else (inner,)
    return concat([*([ANY_TEXT] if before else []), *items, *([ANY_TEXT] if behind else [])])


def _is_assertion(node: Node, kind: str) -> bool:
    return isinstance(node, Assertion) and node.kind == kind


def place_tree(builder: ProgramBuilder, root: Node, entry: int, then: int, spelling: Spelling) -> None:
    """Set state `entry` so that it reads the tree, which has no assertions, and goes on at `then`."""
    todo: list[tuple[Node, int, int]] = [(root, entry, then)]
    rules: dict[Rule, int] = {}
    while todo:
        node, state, after = todo.pop()
        if isinstance(node, Chars):
            builder.set_ranges(state, spelling(builder, node.chars, after))
        elif isinstance(node, Empty):
            builder.set_split(state, [after])
        elif isinstance(node, Concat):
            places = [state, *(builder.reserve() for _ in node.items[1:]), after]
            todo += zip(node.items, places, places[1:], strict=False)
        elif isinstance(node, Alt):
            places = [builder.reserve() for _ in node.options]
            builder.set_split(state, places)
            todo += [(option, place, after) for option, place in zip(node.options, places, strict=True)]
        elif isinstance(node, Repeat):
            todo += _place_repeat(builder, node, state, after, spelling)
        elif isinstance(node, Rule) and node.body is not None:
            if node not in rules:
                rules[node] = builder.reserve()
                todo.append((node.body, rules[node], builder.accept))
            builder.set_call(state, rules[node], after)
        else:
            raise AssertionError("assertions are resolved before this")


def _place_repeat(
    builder: ProgramBuilder, node: Repeat, state: int, after: int, spelling: Spelling
) -> list[tuple[Node, int, int]]:
    """Set a repetition's own states; returns what is left to place."""
    item, least, most = node.item, node.least, node.most
    anything = isinstance(item, Chars) and item.chars == ANY
    if most is None and least <= 1:
        body = builder.reserve()
        hub = state if least == 0 else builder.reserve()
        builder.set_split(hub, [body, after])
        if least == 1:
            builder.set_split(state, [body])
        if anything:
            builder.set_ranges(body, spelling(builder, ANY, hub), spelling.interior)
            return []
        return [(item, body, hub)]
    if (least, most) == (0, 1):
        body = builder.reserve()
        builder.set_split(state, [body, after])
        return [(item, body, after)]
    if isinstance(item, Chars) and most is not None and most <= UNROLLED:
        return _unrolled(builder, item, least, most, state, after)
    if nullable(item):
        least, item = 0, without_empty(item)
    body = builder.reserve()
    builder.set_loop(state, body, after, least, most)
    return [(item, body, builder.accept)]


def _unrolled(
    builder: ProgramBuilder, item: Node, least: int, most: int, state: int, after: int
) -> list[tuple[Node, int, int]]:
    todo = []
    for count in range(most):
        following = after if count == most - 1 else builder.reserve()
        place = state
        if count >= least:
            place = builder.reserve()
            builder.set_split(state, [place, after])
        todo.append((item, place, following))
        state = following
    return todo


def without_empty(node: Node, depth: int = 0) -> Node:
    """The tree without the empty text: a counted body that takes nothing would make counts meaningless."""
    if depth > MAX_STRIP_DEPTH:
        raise GrammarLimitError("repetitions of optional parts are nested too deeply", hint="simplify the pattern")
    if not nullable(node):
        return node
    if isinstance(node, Alt):
        kept = [without_empty(option, depth + 1) for option in node.options if not isinstance(option, Empty)]
        return alt(kept) if kept else Chars(())
    if isinstance(node, Repeat):
        item = without_empty(node.item, depth + 1)
        most = None if node.most is None else node.most - 1
        return concat([item, repeat(item, 0, most)])
    if isinstance(node, Concat):
        # The first part that takes something, each in turn.
        items = node.items
        return alt([concat([without_empty(one, depth + 1), *items[i + 1 :]]) for i, one in enumerate(items)])
    return Chars(())


def place_dfa(builder: ProgramBuilder, dfa: CharDFA, then: int, spelling: Spelling) -> int:
    """States for a character automaton that is not empty; returns the first."""
    entries = [builder.reserve() for _ in dfa.rows]
    moves = _moves(dfa)
    for state in range(len(dfa.rows)):
        edges: Edges = []
        loops_freely = False
        for target, chars in moves[state]:
            loops_freely = loops_freely or (target == state and chars == ANY)
            edges += spelling(builder, chars, entries[target])
        entry = entries[state]
        if state in dfa.accepting:
            entry = builder.reserve()
            builder.set_split(entries[state], [entry, then])
        # Text that leads from the split back to the split is as good as a loop of the RANGES state itself.
        builder.set_ranges(entry, edges, spelling.interior if loops_freely else Interior.NONE)
    return entries[0]


def _moves(dfa: CharDFA) -> list[list[tuple[int, CharSet]]]:
    """For each state, the characters that lead to each other state."""
    unions: dict[tuple[int, ...], CharSet] = {}  # the same classes go together in many states
    moves = []
    for row in dfa.rows:
        sets: dict[int, list[int]] = {}
        for index, target in enumerate(row):
            if target >= 0:
                sets.setdefault(target, []).append(index)
        move = []
        for target, found in sets.items():
            key = tuple(found)
            chars = unions.get(key)
            if chars is None:
                chars = unions[key] = union(*(dfa.classes[index] for index in found))
            move.append((target, chars))
        moves.append(move)
    return moves


def place_limited(
    builder: ProgramBuilder, dfa: CharDFA, limits: tuple[int, int | None], then: int, spelling: Spelling
) -> int:
    """As `place_dfa`, for the words of `limits` characters only. Counts live on the stack, so limits cost nothing."""
    least, most = limits
    lengths, period = word_lengths(dfa)
    entries = [builder.reserve() for _ in dfa.rows]
    moves = _moves(dfa)
    bodies: dict[CharSet, int] = {}
    for move in moves:
        for _, chars in move:
            if chars not in bodies:
                bodies[chars] = builder.reserve()
                builder.set_ranges(bodies[chars], spelling(builder, chars, builder.accept))
    width = max((_cheapest_spelling(chars) for chars in bodies), default=1)
    for state, entry in enumerate(entries):
        row = lengths[state].tolist()
        fields = (then, least, -1 if most is None else most, width, len(row), period, len(moves[state]))
        targets = [number for target, chars in moves[state] for number in (bodies[chars], entries[target])]
        builder.set_text(entry, fields, row, targets)
    return entries[0]


def _cheapest_spelling(chars: CharSet) -> int:
    """An upper bound of the bytes of the cheapest character in a set, whatever the spelling."""
    return min(6 if low < 0x20 else (2 if low in (0x22, 0x5C) else len(chr(low).encode())) for low, _ in chars)
