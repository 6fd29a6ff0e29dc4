"""Constraints on one string, as a syntax tree or as one character automaton."""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both, difference
from structgen.grammar.errors import GrammarError
from structgen.grammar.format_complements import outside_format
from structgen.grammar.formats import format_tree
from structgen.grammar.json_schema.names import name_dfa
from structgen.grammar.json_schema.shapes import TextShape
from structgen.grammar.literal_dfa import literal_dfa
from structgen.grammar.lookahead import language
from structgen.grammar.regex_program import ANY_TEXT, search_tree
from structgen.grammar.regex_tree import Chars, Node, Repeat, assertions, repeat


def text_trees(text: TextShape) -> list[Node]:
    """One tree for each pattern and format.

    Raises:
        GrammarSyntaxError: with the pointer of the pattern.
    """
    trees = []
    for pattern, pointer in text.patterns:
        try:
            trees.append(search_tree(pattern))
        except GrammarError as error:
            error.pointer = pointer
            raise
    return trees + [format_tree(name) for name, _ in text.formats]


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


@lru_cache(maxsize=512)
def text_dfa(text: TextShape) -> tuple[CharDFA, int, int | None]:
    """The automaton of all constraints but lengths, and what it leaves to say about lengths.

    Lengths that the automaton keeps anyway are 0 and None. Without states the constraints contradict each other.

    Raises:
        GrammarLimitError: too many states, with the pointer of a constraint.
    """
    constraints = (*text.patterns, *text.formats, *text.without_patterns, *text.without_formats)
    try:
        dfa = _together(text)
    except GrammarError as error:
        if error.pointer is None and constraints:
            error.pointer = constraints[0][1]
        raise
    least, most = text.least, text.most
    if dfa.is_empty or (least and dfa.shortest() >= least):
        least = 0
    longest = dfa.longest() if most is not None else None
    if longest is not None and most is not None and longest <= most:
        most = None
    return dfa, least, most


def _together(text: TextShape) -> CharDFA:
    automata = [_searched(*pattern) for pattern in text.patterns] + [_formatted(name) for name, _ in text.formats]
    dfa = automata[0] if automata else char_dfa(ANY_TEXT)
    for other in automata[1:]:
        dfa = both(dfa, other)
    for pattern, pointer in text.without_patterns:
        dfa = difference(dfa, _searched(pattern, pointer))
    for name, _ in text.without_formats:
        dfa = both(dfa, outside_format(name))
    return difference(dfa, literal_dfa(text.excluded)) if text.excluded else dfa


def _searched(pattern: str, pointer: str) -> CharDFA:
    try:
        return name_dfa(pattern)
    except GrammarError as error:
        error.pointer = pointer
        raise


def is_word(text: TextShape, word: str) -> bool:
    """Whether a text satisfies all constraints; each is asked by itself."""
    if len(word) < text.least or (text.most is not None and len(word) > text.most) or word in text.excluded:
        return False
    for pattern in text.patterns:
        if not _searched(*pattern).matches(word):
            return False
    for name, _ in text.formats:
        if not _formatted(name).matches(word):
            return False
    if any(_searched(*pattern).matches(word) for pattern in text.without_patterns):
        return False
    return all(outside_format(name).matches(word) for name, _ in text.without_formats)


@lru_cache(maxsize=64)
def _formatted(name: str) -> CharDFA:
    return language(format_tree(name))
