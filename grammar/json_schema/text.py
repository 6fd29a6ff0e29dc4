"""Constraints on one string, as a syntax tree or as one character automaton."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.dfa_algebra import both
from structgen.grammar.errors import GrammarError
from structgen.grammar.formats import flat_format_tree, format_tree
from structgen.grammar.json_schema.shapes import TextShape
from structgen.grammar.lookahead import language
from structgen.grammar.regex_program import search_tree
from structgen.grammar.regex_tree import Chars, Node, Repeat, assertions


def text_trees(text: TextShape) -> list[Node]:
    """One tree for each pattern and format; without rules where there are several constraints.

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
    alone = not trees and len(text.formats) == 1 and text.least == 0 and text.most is None
    return trees + [format_tree(name) if alone else flat_format_tree(name) for name, _ in text.formats]


def single_tree(text: TextShape) -> Node | None:
    """One tree that says everything, where there is one without algebra; it keeps its counters."""
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
        return Chars(()) if most is not None and most < least else Repeat(tree.item, least, most)
    return None


def without_pointers(text: TextShape) -> TextShape:
    """The same constraints, wherever in a schema they stand."""
    if not text.patterns and not text.formats:
        return text
    patterns, formats = (tuple((one, "") for one, _ in found) for found in (text.patterns, text.formats))
    return replace(text, patterns=patterns, formats=formats)


def text_dfa(text: TextShape) -> tuple[CharDFA, int, int | None]:
    """The automaton of all patterns and formats together, and what it leaves to say about lengths.

    Lengths that the automaton keeps anyway are 0 and None. Without states the constraints contradict each other.

    Raises:
        GrammarLimitError: too many states, with the pointer of a constraint.
    """
    text_trees(text)  # syntax errors know their pattern
    try:
        return _text_dfa(without_pointers(text))
    except GrammarError as error:
        error.pointer = error.pointer or (*text.patterns, *text.formats)[0][1]
        raise


@lru_cache(maxsize=512)
def _text_dfa(text: TextShape) -> tuple[CharDFA, int, int | None]:
    automata = [_pattern_dfa(pattern) for pattern, _ in text.patterns]
    automata += [_format_dfa(name) for name, _ in text.formats]
    dfa = automata[0]
    for other in automata[1:]:
        dfa = both(dfa, other)
    least, most = text.least, text.most
    if dfa.is_empty or (least and dfa.shortest() >= least):
        least = 0
    longest = dfa.longest() if most is not None else None
    if longest is not None and most is not None and longest <= most:
        most = None
    return dfa, least, most


@lru_cache(maxsize=512)
def _pattern_dfa(pattern: str) -> CharDFA:
    return language(search_tree(pattern))


@lru_cache(maxsize=64)
def _format_dfa(name: str) -> CharDFA:
    return language(flat_format_tree(name))
