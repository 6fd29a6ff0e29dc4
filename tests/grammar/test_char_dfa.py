"""The algebra of character automata, against enumeration of short words."""

from __future__ import annotations

import itertools
import random

import pytest

from structgen.grammar.char_dfa import CharDFA, minimised, trimmed
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import both, difference, word_lengths
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.refinement import representatives
from structgen.grammar.regex_program import without_end_assertions
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.tables import INFINITE

pytestmark = pytest.mark.nojit

WORDS = ["".join(letters) for length in range(6) for letters in itertools.product("ab ", repeat=length)]
PATTERNS = ["a*", "(?:ab|ba)+", "[^a]*a[^a]*", "a{2,3}b?", "(?:a|b){0,4}", "\\ba+\\b.*", "a?", "", "b+ b+", "[^]*"]


def dfa_of(pattern: str) -> CharDFA:
    return char_dfa(parse_regex(pattern))


def words_of(dfa: CharDFA) -> set[str]:
    return {word for word in WORDS if dfa.matches(word)}


@pytest.mark.parametrize("other", PATTERNS)
@pytest.mark.parametrize("one", PATTERNS)
def test_and_and_minus(one: str, other: str) -> None:
    left, right = dfa_of(one), dfa_of(other)
    assert words_of(both(left, right)) == words_of(left) & words_of(right)
    assert words_of(difference(left, right)) == words_of(left) - words_of(right)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_laws(pattern: str) -> None:
    dfa = dfa_of(pattern)
    everything = dfa_of("[^]*")
    assert difference(dfa, dfa).is_empty
    assert words_of(both(dfa, everything)) == words_of(dfa)
    complement = difference(everything, dfa)
    assert words_of(complement) == set(WORDS) - words_of(dfa)
    assert both(dfa, complement).is_empty
    nothing = difference(dfa, dfa)
    assert both(dfa, nothing).is_empty
    assert both(nothing, dfa).is_empty
    assert difference(nothing, dfa).is_empty
    assert words_of(difference(dfa, nothing)) == words_of(dfa)


@pytest.mark.parametrize(
    ("pattern", "states"), [("a*", 1), ("aa*|a", 2), ("(?:a|b)(?:c|d)|ac", 3), ("a|b|c", 2), ("(?:aa)*", 2), ("", 1)]
)
def test_minimal(pattern: str, states: int) -> None:
    dfa = dfa_of(pattern)
    assert len(dfa.rows) == states
    assert minimised(dfa) == dfa


def test_trimmed() -> None:
    classes = (((0, 0x10FFFF),),)
    assert trimmed(CharDFA(classes, ((1,), (1,)), frozenset())).is_empty
    assert len(trimmed(CharDFA((((97, 97),), ((98, 98),)), ((1, 2), (-1, -1), (2, 2)), frozenset({1}))).rows) == 2
    assert minimised(CharDFA((), (), frozenset())).is_empty


@pytest.mark.parametrize(
    ("pattern", "shortest", "longest"),
    [
        ("", 0, 0),
        ("a{3}", 3, 3),
        ("a|bcd", 1, 3),
        ("a{2,7}", 2, 7),
        ("a+", 1, None),
        ("(?:ab)*", 0, None),
        ("x(?:a|bb)?", 1, 3),
    ],
)
def test_lengths_of_words(pattern: str, shortest: int, longest: int | None) -> None:
    dfa = dfa_of(pattern)
    assert dfa.shortest() == shortest
    assert dfa.longest() == longest


@pytest.mark.parametrize(
    "pattern", [*PATTERNS, "(?:aaa)*b|(?:aa)*", "(?:a{4}|b{6})*", "a{2}(?:b{3})*|c{9}", "ab|a{20}"]
)
def test_word_lengths(pattern: str) -> None:
    dfa = dfa_of(pattern)
    rows, period = word_lengths(dfa)
    # Which states have a word of exactly so many characters, by the definition.
    exact = [set(dfa.accepting)]
    for _ in range(80):
        exact.append({state for state, row in enumerate(dfa.rows) if any(t in exact[-1] for t in row if t >= 0)})
    for state, row in enumerate(rows):
        for least in range(40):
            rounds = max(0, -(-(least - len(row) + 1) // period))
            found = row[least - rounds * period]
            expected = next((k for k in range(least, 80) if state in exact[k]), None)
            assert (None if found == INFINITE else found + rounds * period) == expected, (state, least)


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("(?:^|x)a", ["a", "xa"], ["", "x", "ya"]),
        ("a$b?", ["a"], ["ab"]),
        ("a\\B[ab]\\b", ["ab", "aa"], ["a", "a "]),
        ("(?:\\ba\\b ?)+", ["a", "a a", "a a "], ["aa", ""]),
        ("(?:$)*a", ["a"], [""]),
        ("\\b", [], ["", "a"]),
        ("^$", [""], ["a"]),
    ],
)
def test_assertions(pattern: str, accepted: list[str], rejected: list[str]) -> None:
    dfa = dfa_of(pattern)
    assert [text for text in [*accepted, *rejected] if dfa.matches(text)] == accepted


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("b", ["b", "abc", "\nb"], ["", "ac"]),
        ("^b", ["b", "bc"], ["ab"]),
        ("b$", ["b", "ab"], ["bc", "b\n"]),
        ("^a|b", ["a", "ac", "cb"], ["ca"]),
        ("(?:^a|b$)", ["ax", "xb"], ["xa", "bx"]),
        ("", ["", "a"], []),
    ],
)
def test_search(pattern: str, accepted: list[str], rejected: list[str]) -> None:
    dfa = char_dfa(without_end_assertions(parse_regex(pattern), search=True))
    assert [text for text in [*accepted, *rejected] if dfa.matches(text)] == accepted


@pytest.mark.parametrize("pattern", ["a{70000}", "(?:a|b)*a(?:a|b){20}"])
def test_limits(pattern: str) -> None:
    with pytest.raises(GrammarLimitError) as caught:
        dfa_of(pattern)
    assert caught.value.hint


@pytest.mark.parametrize("seed", range(40))
def test_refinement_against_words(seed: int) -> None:
    """States are merged exactly where no word of up to as many characters as there are states tells them apart."""
    chance = random.Random(seed)
    size = chance.randrange(2, 8)
    rows = tuple(tuple(chance.randrange(-1, size) for _ in range(2)) for _ in range(size))
    alive = trimmed(
        CharDFA((((97, 97),), ((98, 98),)), rows, frozenset(s for s in range(size) if chance.random() < 0.5))
    )
    if alive.is_empty:
        return
    rows, accepting, size = alive.rows, alive.accepting, len(alive.rows)
    first = representatives(rows, accepting) or list(range(size))

    def accepts(state: int, word: tuple[int, ...]) -> bool:
        for index in word:
            if state < 0:
                return False
            state = rows[state][index]
        return state in accepting

    words = [word for length in range(size + 1) for word in itertools.product(range(2), repeat=length)]
    behaviour = [tuple(accepts(state, word) for word in words) for state in range(size)]
    assert first == [behaviour.index(one) for one in behaviour]
