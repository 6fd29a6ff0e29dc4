"""Two backends that share nothing but the regex parser: masks are equal along random walks."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest

from structgen.grammar import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableError,
    UnsupportedSchemaError,
    Vocabulary,
)
from structgen.grammar.outlines_backend import MissingBackendError

PATTERNS = [
    "",
    "a",
    "abc|abd|b",
    "(a|b)*c",
    "a{2,5}",
    "(ab){0,3}",
    "(a|ab)(c|bcd)(d*)",
    "((a*)*)*b",
    "[0-9]{3}-[0-9]{2,4}",
    r"\d+(\.\d+)?",
    r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    r"[^\d\s]+",
    r"\w+@\w+\.(com|org)",
    r".{0,4}",
    r"[^\0]{1,3}",
    r"[^a]{2}",
    "é+|漢字?",
    "[à-ü]{1,3}",
    r"\p{Lu}\p{Ll}*",
    "😀{1,2}x?",
    r"\u00e9\x41",
    "(?:yes|no)( maybe)?",
    "(?<year>20[0-9]{2})-(?P<month>0[1-9]|1[0-2])",
    "a+?b??c*?",
    "^start.*end$",
    r'"[^"\\]*"',
    r'\{"name": "[a-z]{1,8}", "age": [1-9][0-9]?\}',
    r"(0x[0-9a-f]+|0b[01]+)(, (0x[0-9a-f]+|0b[01]+))*",
    "x(?:y(?:z(?:w)?)?)?",
    r"\t\n\r ",
    r"[\-\]\\^]+",
    "[a-z&&^~|#]+",
]
CHOICES = [["yes", "no"], ["a", "ab", "abc", ""], ["é", "è", "ê", "e"], ["{}[]()*+?.|^$\\", "\n", '"'], ["漢字", "漢"]]
GRAMMARS = [pytest.param(Grammar.from_regex(one), id=one) for one in PATTERNS]
GRAMMARS += [pytest.param(Grammar.from_choices(one), id="/".join(one)) for one in CHOICES]

pytest.importorskip("outlines_core", reason="outlines-core is the second backend")


def bits(matcher: Any, budget: int | None = None) -> set[int]:
    row = np.full(matcher.compiled.vocabulary.mask_words, 0x55555555, np.int32)
    matcher.fill_mask(row, budget)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def walk(grammar: Grammar, vocabulary: Vocabulary, rng: random.Random, steps: int) -> None:
    ours = grammar.compile(vocabulary).matcher()
    theirs = grammar.compile(vocabulary, backend="outlines-core").matcher()
    for _ in range(steps):
        allowed = bits(ours)
        assert bits(theirs) == allowed
        assert ours.is_complete == theirs.is_complete
        token = rng.choice([*allowed, rng.randrange(vocabulary.size)])
        assert ours.accept(token) == theirs.accept(token)
        if ours.is_terminated or rng.random() < 0.1:
            back = rng.randrange(len(ours.tokens) + 1)
            ours.rollback(back)
            theirs.rollback(back)
        assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_masks_are_equal_on_random_walks(grammar: Grammar, small_vocabulary: Vocabulary) -> None:
    walk(grammar, small_vocabulary, random.Random(7), 60)


@pytest.mark.parametrize("pattern", [r"\d+(\.\d+)?", "(?:yes|no)( maybe)?", r"\w+@\w+\.(com|org)", "[à-ü]{1,3}"])
def test_masks_are_equal_on_a_real_vocabulary(pattern: str, smollm2: Vocabulary) -> None:
    walk(Grammar.from_regex(pattern), smollm2, random.Random(7), 12)


def test_masks_of_choices_are_equal_on_a_real_vocabulary(smollm2: Vocabulary) -> None:
    walk(Grammar.from_choices(["positive", "negative", "neither of them", "posit"]), smollm2, random.Random(7), 20)


@pytest.mark.parametrize("pattern", ["abc|abd|b", "(ab){0,3}c", "a{3}", "(é|漢字)+"])
def test_a_budget_leaves_what_can_be_completed(pattern: str, merged: Vocabulary) -> None:
    compiled = Grammar.from_regex(pattern).compile(merged, backend="outlines-core")
    rng = random.Random(2)
    for _ in range(20):
        matcher = compiled.matcher()
        budget = matcher.min_tokens_to_complete + rng.randrange(3)
        assert not bits(matcher, matcher.min_tokens_to_complete - 1)
        while not matcher.is_terminated:
            allowed = bits(matcher, budget)
            assert allowed <= bits(matcher)
            assert matcher.accept(rng.choice(sorted(allowed)))
            budget -= 1
            assert matcher.min_tokens_to_complete <= budget


def test_narrowing_is_told(bytes_only: Vocabulary) -> None:
    matcher = Grammar.from_regex("a|bc").compile(bytes_only, backend="outlines-core").matcher()
    assert matcher.min_tokens_to_complete == 2
    assert bits(matcher, 3) == {ord("a"), ord("b")}
    assert not matcher.mask_was_narrowed
    assert bits(matcher, 2) == {ord("a")}
    assert matcher.mask_was_narrowed


def test_copies_and_resets_are_independent(bytes_only: Vocabulary) -> None:
    matcher = Grammar.from_choices(["ab", "ac"]).compile(bytes_only, backend="outlines-core").matcher()
    assert matcher.accept(ord("a"))
    copy = matcher.copy()
    assert copy.accept(ord("b"))
    assert copy.accept(256)
    assert copy.is_terminated
    assert copy.min_tokens_to_complete == 0
    assert not bits(copy)
    assert matcher.tokens == [ord("a")]
    assert matcher.forced_tokens() == []
    matcher.reset()
    assert matcher.tokens == []
    assert bits(matcher) == {ord("a")}
    with pytest.raises(ValueError, match="cannot take back"):
        matcher.rollback(1)


def test_ways_that_tokens_cannot_complete_are_not_begun() -> None:
    without = [bytes((byte,)) for byte in range(256) if byte != ord("z")]
    vocabulary = Vocabulary([*without, b"zz", None], [256])
    grammar = Grammar.from_regex("b|a+(zz)*c|d(zz)+")
    theirs = grammar.compile(vocabulary, backend="outlines-core").matcher()
    assert bits(theirs) == bits(grammar.compile(vocabulary).matcher())
    with pytest.raises(UnsatisfiableError):
        Grammar.from_regex("a+z").compile(vocabulary, backend="outlines-core")


def test_what_it_cannot_do_is_refused(bytes_only: Vocabulary) -> None:
    refused: list[tuple[Grammar, type[GrammarError]]] = [
        (Grammar.any_json(), UnsupportedSchemaError),
        (Grammar.from_regex(r"a\b b"), UnsupportedSchemaError),
        (Grammar.from_regex(r"[\s\S]"), UnsupportedSchemaError),
        (Grammar.from_regex("x{1000000}"), GrammarLimitError),
    ]
    for grammar, error in refused:
        with pytest.raises(error):
            grammar.compile(bytes_only, backend="outlines-core")


def test_an_unknown_backend_is_refused(bytes_only: Vocabulary) -> None:
    with pytest.raises(ValueError, match="outlines-core"):
        Grammar.from_regex("a").compile(bytes_only, backend="guidance")  # type: ignore[call-overload]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(MissingBackendError, match="not installed") as caught:
        Grammar.from_regex("a").compile(Vocabulary([b"a", None], [1]), backend="outlines-core")
    assert "structgen[outlines]" in caught.value.hint
