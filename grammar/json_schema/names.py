"""Languages of member names: which names a pattern matches, and the parts into which patterns divide all names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import count

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both, difference
from structgen.grammar.errors import GrammarError, GrammarLimitError
from structgen.grammar.literal_dfa import literal_dfa
from structgen.grammar.lookahead import language
from structgen.grammar.regex_program import ANY_TEXT, search_tree

MAX_PARTS = 64
MAX_LISTED = 64  # a finite set of names becomes optional members, up to this many


class NameLanguage(str):
    """A language of names that stands where a pattern does; its text is only its identity."""

    dfa: CharDFA

    @classmethod
    def of(cls, dfa: CharDFA) -> NameLanguage:
        language = cls(f"(?#names {next(_numbers)})")
        language.dfa = dfa
        return language


_numbers = count()


def name_dfa(pattern: str) -> CharDFA:
    """All names in which a pattern is found."""
    return pattern.dfa if isinstance(pattern, NameLanguage) else _searched(pattern)


@lru_cache(maxsize=512)
def _searched(pattern: str) -> CharDFA:
    return language(search_tree(pattern))


def name_matches(pattern: str, name: str) -> bool:
    return name_dfa(pattern).matches(name)


def parts_of_names(
    patterns: Mapping[str, str], taken: Iterable[str], allowed: CharDFA | None = None
) -> list[tuple[frozenset[str], CharDFA]]:
    """All names but those taken, divided by which patterns they match; empty parts are left out.

    Args:
        patterns: each with its pointer.
        allowed: all names are in this language.

    Raises:
        GrammarLimitError: too many parts.
    """
    return list(_parts(tuple(patterns.items()), frozenset(taken), allowed))


@lru_cache(maxsize=256)
def _parts(
    patterns: tuple[tuple[str, str], ...], taken: frozenset[str], allowed: CharDFA | None
) -> tuple[tuple[frozenset[str], CharDFA], ...]:
    free = difference(char_dfa(ANY_TEXT) if allowed is None else allowed, literal_dfa(taken))
    parts = [(frozenset[str](), free)] if not free.is_empty else []
    for pattern, pointer in patterns:
        try:
            dfa = name_dfa(pattern)
            split = []
            for matched, names in parts:
                split += [(matched | {pattern}, both(names, dfa)), (matched, difference(names, dfa))]
        except GrammarError as error:
            error.pointer = pointer
            raise
        parts = [part for part in split if not part[1].is_empty]
        if len(parts) > MAX_PARTS:
            raise GrammarLimitError("too many patterns overlap", pointer=pointer, hint="use fewer patterns")
    return tuple(part for part in parts if not part[1].is_empty)


def listed_names(names: CharDFA) -> list[str] | None:
    """All words of a small finite language, shortest first; None for others."""
    if names.longest() is None:
        return None
    found: list[str] = []
    layer = [(0, "")]
    while layer:
        following = []
        for state, word in layer:
            if state in names.accepting:
                found.append(word)
            for index, target in enumerate(names.rows[state]):
                if target >= 0:
                    # A range that is cut short here has too many words for a list anyway.
                    for low, high in names.classes[index]:
                        codes = range(low, min(high, low + 8 * MAX_LISTED) + 1)
                        following += [(target, word + chr(code)) for code in codes]
            if len(found) + len(following) > 8 * MAX_LISTED:
                return None
        layer = following
    return found if len(found) <= MAX_LISTED else None
