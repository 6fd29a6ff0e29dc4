"""Lookahead by algebra: what follows a place must be in the language of the lookahead followed by anything.

`A(?=X)B` is A followed by the intersection of B with X and any text; `(?!X)` takes the difference. That holds where B
is all the rest of the text, so a lookahead may stand between the parts of a pattern or of one of its alternatives, and
not inside of a group that something follows.
"""

from __future__ import annotations

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.charset import ANY
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both, difference
from structgen.grammar.errors import GrammarSyntaxError
from structgen.grammar.regex_tree import (
    Alt,
    Assertion,
    Chars,
    Concat,
    Language,
    Look,
    Node,
    Repeat,
    alt,
    assertions,
    concat,
)

_ANY_TEXT = Repeat(Chars(ANY), 0, None)


def language(tree: Node) -> CharDFA:
    """The automaton of a tree for the whole text, with assertions and lookaheads.

    Raises:
        GrammarSyntaxError: a lookahead stands where algebra cannot reach it.
    """
    return char_dfa(_resolved(tree))


def _resolved(tree: Node) -> Node:
    if isinstance(tree, Alt):
        return alt([_resolved(option) for option in tree.options])
    items: list[Node] = list(tree.items) if isinstance(tree, Concat) else [tree]
    place = next((i for i in range(len(items) - 1, -1, -1) if isinstance(items[i], Look)), None)
    if place is None:
        _refuse_inner(items)
        return tree
    look = items[place]
    assert isinstance(look, Look)
    before, rest = items[:place], items[place + 1 :]
    _refuse_inner([*rest, look.item])
    if before:
        _refuse_context([*rest, look.item], look)
    ahead, following = char_dfa(concat([look.item, _ANY_TEXT])), char_dfa(concat(rest))
    meant = difference(following, ahead) if look.negative else both(following, ahead)
    return _resolved(concat([*before, Language(meant)]))


def _refuse_inner(items: list[Node]) -> None:
    for one in items:
        for found in assertions(one):
            if isinstance(found, Look):
                raise GrammarSyntaxError(
                    "a lookahead inside of a group is not supported",
                    position=found.position,
                    hint="put it between the parts of the pattern, or of one of its alternatives",
                )


def _refuse_context(items: list[Node], look: Look) -> None:
    """Word boundaries and `^` look at what comes before them, which is another automaton here."""
    for one in items:
        for found in assertions(one):
            if isinstance(found, Assertion) and found.kind != "end":
                raise GrammarSyntaxError(
                    "word boundaries and ^ behind a lookahead are not supported",
                    position=look.position,
                    hint="spell out what may follow",
                )
