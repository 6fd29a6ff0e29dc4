"""Constraints on one string, as a syntax tree or as one character automaton."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both, difference
from structgen.grammar.errors import GrammarError
from structgen.grammar.format_complements import outside_format
from structgen.grammar.formats import flat_format_tree, format_tree
from structgen.grammar.json_schema.names import name_dfa
from structgen.grammar.json_schema.shapes import TextShape
from structgen.grammar.literal_dfa import literal_dfa
from structgen.grammar.lookahead import language
from structgen.grammar.regex_program import ANY_TEXT, search_tree
from structgen.grammar.regex_tree import Chars, Node, Repeat, assertions, repeat


def text_trees(text: TextShape) -> list[Node]:
    """One tree for each pattern and format; without rules where there are several constraints.

    Raises:
        GrammarSyntaxError: with the pointer of the pattern.
    """
    trees = [_searched(pattern, pointer) for pattern, pointer in text.patterns]
    alone = not trees and len(text.formats) == 1 and text.least == 0 and text.most is None
    return trees + [format_tree(name) if alone else flat_format_tree(name) for name, _ in text.formats]


def _searched(pattern: str, pointer: str) -> Node:
    try:
        return search_tree(pattern)
    except GrammarError as error:
        error.pointer = pointer
        raise


def single_tree(text: TextShape) -> Node | None:
    """One tree that says everything, where there is one without algebra; it keeps its counters."""
    if text.excluded or text.without_patterns or text.without_formats:
        return None
    trees = text_trees(text)
    if len(trees) != 1 or assertions(trees[0]):
        return None
    tree = trees[0]
    if text.least == 0 and text.most is None:
        return tree
    if isinstance(tree, Repeat) and isinstance(tree.item, Chars):
        # One character class, counted: lengths are counts.
        least = max(tree.least, text.least)
        most = min((m for m in (tree.most, text.most) if m is not None), default=None)
        return Chars(()) if most is not None and most < least else repeat(tree.item, least, most)
    return None


def without_pointers(text: TextShape) -> TextShape:
    """The same constraints, wherever in a schema they stand."""
    if text.is_counted:
        return text
    return replace(
        text,
        patterns=_unplaced(text.patterns),
        formats=_unplaced(text.formats),
        without_patterns=_unplaced(text.without_patterns),
        without_formats=_unplaced(text.without_formats),
    )


def _unplaced(constraints: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((one, "") for one, _ in constraints)


def text_dfa(text: TextShape) -> tuple[CharDFA, int, int | None]:
    """The automaton of all constraints but lengths, and what it leaves to say about lengths.

    Lengths that the automaton keeps anyway are 0 and None. Without states the constraints contradict each other.

    Raises:
        GrammarLimitError: too many states, with the pointer of a constraint.
    """
    for pattern in (*text.patterns, *text.without_patterns):
        _searched(*pattern)  # syntax errors know their pattern
    constraints = (*text.patterns, *text.formats, *text.without_patterns, *text.without_formats)
    try:
        return _text_dfa(without_pointers(text))
    except GrammarError as error:
        if error.pointer is None and constraints:
            error.pointer = constraints[0][1]
        raise


@lru_cache(maxsize=512)
def _text_dfa(text: TextShape) -> tuple[CharDFA, int, int | None]:
    dfa = _together(text)
    least, most = text.least, text.most
    if dfa.is_empty or (least and dfa.shortest() >= least):
        least = 0
    longest = dfa.longest() if most is not None else None
    if longest is not None and most is not None and longest <= most:
        most = None
    return dfa, least, most


def _together(text: TextShape) -> CharDFA:
    automata = [name_dfa(pattern) for pattern, _ in text.patterns] + [_format_dfa(name) for name, _ in text.formats]
    dfa = automata[0] if automata else char_dfa(ANY_TEXT)
    for other in automata[1:]:
        dfa = both(dfa, other)
    for pattern, _ in text.without_patterns:
        dfa = difference(dfa, name_dfa(pattern))
    for name, _ in text.without_formats:
        dfa = both(dfa, outside_format(name))
    return difference(dfa, literal_dfa(text.excluded)) if text.excluded else dfa


def is_word(text: TextShape, word: str) -> bool:
    """Whether a text satisfies all constraints; each is asked by itself."""
    if len(word) < text.least or (text.most is not None and len(word) > text.most) or word in text.excluded:
        return False
    return (
        all(_matches(*pattern, word) for pattern in text.patterns)
        and all(_format_dfa(name).matches(word) for name, _ in text.formats)
        and not any(_matches(*pattern, word) for pattern in text.without_patterns)
        and all(outside_format(name).matches(word) for name, _ in text.without_formats)
    )


def _matches(pattern: str, pointer: str, word: str) -> bool:
    _searched(pattern, pointer)
    return name_dfa(pattern).matches(word)


@lru_cache(maxsize=64)
def _format_dfa(name: str) -> CharDFA:
    return language(flat_format_tree(name))
