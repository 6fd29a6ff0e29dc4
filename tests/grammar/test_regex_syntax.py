"""What the regex parser refuses, with the place and a way out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from structgen.grammar import (
    Grammar,
    GrammarLimitError,
    GrammarSyntaxError,
    UnsatisfiableError,
    Vocabulary,
)
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Alt, Chars, Concat, Empty, Node, Repeat, nullable, repeat

FAULTS = [
    ("a)", 1, "closes nothing"),
    ("(a", 0, "never closed"),
    ("x((a)", 1, "never closed"),
    ("[a", 0, "never closed"),
    ("a[^", 1, "never closed"),
    ("*a", 0, "nothing to repeat"),
    ("a|+", 2, "nothing to repeat"),
    ("(?", 0, "kind of group"),
    ("(?=a)*", 6, "lookahead cannot be repeated"),
    ("(?<=a)", 0, "lookbehind"),
    ("x(?<!a)", 1, "lookbehind"),
    ("(?P=n)", 0, "backreference"),
    ("(?i)a", 0, "kind of group"),
    ("(?>a)", 0, "kind of group"),
    ("(?<1>a)", 2, "identifier"),
    ("(?<n", 2, "identifier"),
    ("(a)\\1", 3, "backreference"),
    ("(?<n>a)\\k<n>", 7, "backreference"),
    ("a**", 2, "follows a quantifier"),
    ("a{2}{3}", 4, "follows a quantifier"),
    ("a+?+", 3, "follows a quantifier"),
    ("a++", 2, "possessive"),
    ("^*", 1, "assertion cannot be repeated"),
    ("\\b+", 2, "assertion cannot be repeated"),
    ("a{3,2}", 1, "wrong order"),
    ("[z-a]", 1, "wrong order"),
    ("a\\", 1, "backslash at the end"),
    ("\\A", 0, "no escape"),
    ("a\\Z", 1, "no escape"),
    ("\\q", 0, "no escape"),
    ("[\\q]", 1, "no escape"),
    ("[\\B]", 1, "no such escape"),
    ("[\\1]", 1, "no such escape"),
    ("\\x1", 0, "hexadecimal"),
    ("\\u12G4", 0, "hexadecimal"),
    ("\\u{110000}", 0, "code point"),
    ("\\u{}", 0, "code point"),
    ("\\u{12", 0, "code point"),
    ("\\ud800", 0, "surrogate"),
    ("\\ude00", 0, "surrogate"),
    ("\\ud83d\\u0041", 0, "surrogate"),
    ("a\ud800", 1, "surrogate"),
    ("\\c1", 0, "followed by a letter"),
    ("\\01", 0, "octal"),
    ("\\p{Nope}", 0, "unknown Unicode property"),
    ("\\pL", 0, "property in"),
    ("[\\P{L]", 1, "property in"),
]


@pytest.mark.nojit
@pytest.mark.parametrize(("pattern", "position", "message"), FAULTS)
def test_faults(pattern: str, position: int, message: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=message) as caught:
        Grammar.from_regex(pattern)
    assert caught.value.position == position
    assert caught.value.pointer is None
    lines = str(caught.value).splitlines()
    assert lines[-1].index("^") - 4 == position  # the caret stands under the fault
    assert lines[-2][4:] == pattern


@pytest.mark.nojit
@pytest.mark.parametrize(
    ("pattern", "hint"), [("*", r"\*"), ("(", r"\("), ("[", r"\["), ("a{2}{3}", "(?:"), ("\\Z", "$"), ("\\01", r"\x")]
)
def test_hints(pattern: str, hint: str) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        Grammar.from_regex(pattern)
    assert hint in caught.value.hint


def test_the_caret_in_a_long_pattern() -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        Grammar.from_regex("a" * 500 + ")" + "b" * 500)
    assert caught.value.position == 500
    _, excerpt, caret = str(caught.value).splitlines()
    assert excerpt[caret.index("^")] == ")"
    assert len(excerpt) < 80


def test_in_a_schema_the_fault_has_a_pointer() -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        Grammar.from_json_schema({"properties": {"a/b": {"type": "string", "pattern": "x(?<=y)"}}})
    assert caught.value.pointer == "/properties/a~1b/pattern"
    assert caught.value.position == 1


def test_limits(bytes_only: Vocabulary) -> None:
    with pytest.raises(GrammarLimitError) as caught:
        Grammar.from_regex("a{99999999999}")
    assert caught.value.hint
    with suppress(GrammarLimitError):  # counts that multiply beyond what an automaton holds
        Grammar.from_regex("((a{1,100000}){1,100000})").compile(bytes_only)
    with pytest.raises(GrammarLimitError):
        Grammar.from_json_schema({"type": "string", "pattern": "(?:a|b)*a(?:a|b){20}\\b"})


@pytest.mark.nojit
@pytest.mark.parametrize("pattern", ["[]", "a[]b", "[^\\s\\S]", "(?:[]|[])+"])
def test_nothing_matches(pattern: str, bytes_only: Vocabulary) -> None:
    with pytest.raises(UnsatisfiableError):
        Grammar.from_regex(pattern).compile(bytes_only)


@pytest.mark.parametrize("depth", [10, 5000])
def test_deep_nesting(depth: int, matches: Callable[..., bool]) -> None:
    grammar = Grammar.from_regex("(?:" * depth + "a" + "|b)" * depth)
    assert matches(grammar, "a")
    assert matches(grammar, "b")
    assert not matches(grammar, "ab")


def test_many_alternatives(matches: Callable[..., bool]) -> None:
    grammar = Grammar.from_regex("|".join(f"[ab]{number}" for number in range(3000)))
    assert matches(grammar, "a2999")
    assert not matches(grammar, "a3000")


def test_too_many_alternatives(bytes_only: Vocabulary) -> None:
    with pytest.raises(GrammarLimitError) as caught:
        Grammar.from_regex("|".join(f"[ab]{number}" for number in range(20_000))).compile(bytes_only)
    assert caught.value.hint


@pytest.mark.parametrize("depth", [50, 5000])
def test_deep_nesting_of_optional_repetitions(depth: int, bytes_only: Vocabulary) -> None:
    with suppress(GrammarLimitError):
        Grammar.from_regex("(?:" * depth + "a?b?" + "){2,3}" * depth).compile(bytes_only)


@pytest.mark.nojit
@pytest.mark.parametrize(
    ("inner", "outer", "merged"),
    [
        ((1, 3), (2, 2), (2, 6)),
        ((0, None), (0, None), (0, None)),
        ((1, None), (0, 1), (0, None)),
        ((2, None), (1, 3), (2, None)),
        ((2, 3), (0, 1), None),
        ((2, 2), (1, 2), None),
        ((2, 3), (1, 5), (2, 15)),
        ((3, 4), (1, 5), None),
        ((2, 3), (2, 5), (4, 15)),
        ((4, 5), (1, 2), None),
        ((3, 3), (4, 4), (12, 12)),
        ((0, 1), (5, 9), (0, 9)),
    ],
)
def test_nested_repetitions(
    inner: tuple[int, int | None], outer: tuple[int, int | None], merged: tuple[int, int | None] | None
) -> None:
    item = Chars(((97, 97),))
    found = repeat(repeat(item, *inner), *outer)
    assert isinstance(found, Repeat)
    if merged is None:
        assert isinstance(found.item, Repeat)
    else:
        assert (found.item, found.least, found.most) == (item, *merged)


def test_simplest_forms() -> None:
    item = Chars(((97, 97),))
    assert repeat(item, 1, 1) is item
    assert isinstance(repeat(item, 0, 0), Empty)
    assert isinstance(repeat(Empty(), 3, None), Empty)


@pytest.mark.nojit
@pytest.mark.parametrize(
    ("pattern", "kind", "empty"),
    [
        ("", Empty, True),
        ("a", Chars, False),
        ("ab", Concat, False),
        ("a|", Alt, True),
        ("a*b?", Concat, True),
        ("(?:a?){3}", Repeat, True),
        ("(?:a?b){0,3}", Repeat, True),
        ("a+", Repeat, False),
        ("(?:a*)+", Repeat, True),
        ("a{0}", Empty, True),
    ],
)
def test_trees(pattern: str, kind: type[Node], empty: bool) -> None:
    tree = parse_regex(pattern)
    assert isinstance(tree, kind)
    assert nullable(tree) == empty
