"""What propertyNames leaves of all names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.charset import ANY
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both
from structgen.grammar.json_schema.shapes import Shape, TextShape
from structgen.grammar.json_schema.text import text_dfa
from structgen.grammar.regex_tree import Chars, Language, Node, Repeat, alt, concat


def language_of_names(shapes: Iterable[Shape]) -> CharDFA:
    """The names that are valid, as strings, under one of some shapes; without states when there are none.

    Raises:
        GrammarLimitError: too many states.
    """
    words: dict[str, None] = {}
    automata: list[CharDFA] = []
    for shape in shapes:
        if shape.values is not None:
            words |= dict.fromkeys(value for value in shape.values if isinstance(value, str))
        elif shape.text is not None:
            automata.append(words_of(shape.text))
    if len(automata) == 1 and not words:
        return automata[0]
    trees: list[Node] = [Language(dfa) for dfa in automata if not dfa.is_empty]
    trees += [concat([Chars(((ord(char), ord(char)),)) for char in word]) for word in words]
    return char_dfa(alt(trees) if trees else Chars(()))


@lru_cache(maxsize=256)
def words_of(text: TextShape) -> CharDFA:
    """All words of a text, lengths included."""
    limits = Repeat(Chars(ANY), text.least, text.most)
    if text.is_counted:
        return char_dfa(limits)
    dfa, least, most = text_dfa(text)
    return dfa if least == 0 and most is None else both(dfa, char_dfa(Repeat(Chars(ANY), least, most)))
