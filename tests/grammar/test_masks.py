"""The mask is exactly the set of tokens that `accept` takes, and the one that the slow twin finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, Matcher, UnsatisfiableError, Vocabulary, fill_masks
from structgen.grammar.reference import ReferenceMatcher

Allowed = Callable[..., set[int]]

BYTES = [bytes((byte,)) for byte in range(256)]


def tried(matcher: Matcher) -> set[int]:
    """Every token tried, and taken back."""
    found = set()
    for token_id in range(matcher.compiled.vocabulary.size):
        if matcher.accept(token_id):
            found.add(token_id)
            matcher.rollback(1)
    return found


def test_mask_of_a_small_vocabulary(case: Any, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(case.name)
    matcher = case.grammar.compile(small_vocabulary).matcher()
    twin = ReferenceMatcher(case.grammar.program, small_vocabulary)
    looked_at = {0, 1, *chance.sample(range(2, 24), 3)}
    for step in range(24):
        mask = allowed(matcher)
        assert mask == tried(matcher), step
        if step in looked_at:
            assert mask == twin.allowed_tokens(), step
        assert mask, "a dead end"
        token_id = chance.choice(sorted(mask))
        assert matcher.accept(token_id)
        assert twin.accept(token_id)
        assert matcher.is_complete == twin.is_complete
        if matcher.is_terminated:
            assert allowed(matcher) == tried(matcher) == set()
            break


WALKED = [
    "string", "lengths count characters", "keys that share bytes of a character", "extra properties come last",
    "extra properties in any order", "true", "a searched pattern and lengths", "an unbounded tail of any characters",
    "the dot is all but line ends", "format uri", "enum texts are canonical", "a recursive list", "pretty",
    "an anchored pattern", "counted any characters", "number",
]  # fmt: skip


@pytest.mark.parametrize("name", WALKED)
def test_mask_of_a_large_vocabulary(
    name: str, all_cases: list[Any], allowed: Allowed, large_vocabulary: Vocabulary
) -> None:
    case = next(one for one in all_cases if one.name == name)
    chance = random.Random(name)
    matcher = case.grammar.compile(large_vocabulary).matcher()
    # Into one of the accepted texts, to where most is going on.
    text = chance.choice(case.accepted)
    for token_id in large_vocabulary.encode(text)[: chance.randrange(3)]:
        assert matcher.accept(token_id)
    for _ in range(3):
        mask = allowed(matcher)
        assert mask == tried(matcher)
        matcher.accept(chance.choice([0, *sorted(mask)]))


TEXT = {"type": "string"}
A_AND_AB = {"type": "object", "properties": {"a": TEXT, "ab": TEXT}, "required": ["a"]}
THREE = {"type": "object", "properties": {"a": {}, "aa": {}, 'a"': {}}, "additionalProperties": TEXT}
ONLY_A = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}
UNION = {"anyOf": [TEXT | {"minLength": 3}, TEXT | {"pattern": "^a"}, {"enum": ["b", "abc"]}]}
INSIDE: list[tuple[Any, list[bytes]]] = [
    (True, [b'"', b'"a', b'"\\', b'"\xc3', b'["', b'{"', b'{"a', b'{"a":"', b'{"a":1,"', b'{"a":1,"a', b'[{"a":1},{"']),
    (True, [b'{"a":1,"ab":{"', b'{"a":1,"\xc3', b'{"a":1,"\\', b'{"a":1,"a\\']),
    ({"type": "object", "additionalProperties": TEXT}, [b'{"', b'{"a":"', b'{"a":"x","', b'{"a":"x","a', b'{"":"","']),
    (A_AND_AB, [b'{"a":"', b'{"a":"","', b'{"a":"","a']),
    (ONLY_A, [b'{"a":"', b'{"a":"\\']),
    (THREE, [b'{"', b'{"a', b'{"x":"', b'{"x":"","']),
    ({"type": "array", "items": TEXT, "maxItems": 2}, [b'["', b'["a","', b'["a","x']),
    (TEXT | {"maxLength": 3}, [b'"', b'"a', b'"ab', b'"abc', b'"\xc3']),
    (TEXT | {"minLength": 2, "maxLength": 9}, [b'"', b'"a', b'"ab']),
    (TEXT | {"pattern": "b+"}, [b'"', b'"a', b'"b', b'"ab', b'"\\']),
    (TEXT | {"pattern": "^[^]{2,5}$"}, [b'"', b'"a', b'"abc']),
    (TEXT | {"pattern": "a", "maxLength": 4}, [b'"', b'"a', b'"xyz']),
    (UNION, [b'"', b'"a', b'"b', b'"x', b'"abc']),
    ({"anyOf": [TEXT | {"maxLength": 2}, TEXT | {"pattern": "x"}]}, [b'"', b'"a', b'"ab', b'"abc', b'"ax']),
]


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("whitespace", ["flexible", "compact"])
@pytest.mark.parametrize("index", range(len(INSIDE)))
def test_masks_inside_of_strings(index: int, whitespace: str, order: str, merged: Vocabulary, allowed: Allowed) -> None:
    schema, beginnings = INSIDE[index]
    compiled = Grammar.from_json_schema(schema, whitespace=whitespace, property_order=order).compile(merged)
    id_of = {token: token_id for token_id, token in enumerate(merged.tokens) if token and len(token) == 1}
    for text in beginnings:
        matcher, twin = compiled.matcher(), ReferenceMatcher(compiled.grammar.program, merged)
        for byte in text:
            assert matcher.accept(id_of[bytes((byte,))])
            assert twin.accept(id_of[bytes((byte,))])
        assert allowed(matcher) == tried(matcher) == twin.allowed_tokens(), text
        for budget in (matcher.min_tokens_to_complete, matcher.min_tokens_to_complete + 4):
            assert allowed(matcher, budget) <= tried(matcher), (text, budget)


@pytest.mark.nojit
def test_padding_is_never_allowed(allowed: Allowed) -> None:
    vocabulary = Vocabulary([*BYTES, None], [256], size=1000)
    assert vocabulary.mask_words == 32
    matcher = Grammar.from_regex("[^]*").compile(vocabulary).matcher()
    mask = allowed(matcher)
    assert 256 in mask
    assert max(mask) == 256
    assert not matcher.accept(257)
    assert not matcher.accept(999)
    assert not matcher.accept(1_000_000)
    assert not matcher.accept(-1)


@pytest.mark.nojit
def test_special_tokens_are_never_text(allowed: Allowed) -> None:
    # 256: the text of an EOS token fits the grammar; 257 is special; 258 is empty; 259 is ordinary.
    vocabulary = Vocabulary([*BYTES, b"</s>", None, b"", b"</s>"], [256])
    matcher = Grammar.from_regex("(?:</s>)+").compile(vocabulary).matcher()
    assert allowed(matcher) == {ord("<"), 259}
    assert not matcher.accept(256)
    assert matcher.accept(259)
    assert allowed(matcher) == {ord("<"), 256, 259}
    assert matcher.accept(256)
    assert matcher.is_terminated


@pytest.mark.nojit
def test_an_eos_id_in_the_padding(allowed: Allowed) -> None:
    vocabulary = Vocabulary(BYTES, [300], size=320)
    matcher = Grammar.from_choices([""]).compile(vocabulary).matcher()
    assert allowed(matcher) == {300}
    assert matcher.accept(300)


@pytest.mark.nojit
def test_equal_tokens_are_allowed_together(allowed: Allowed) -> None:
    vocabulary = Vocabulary([b"ab", b"a", b"b", b"ab", b"ab", None], [5])
    assert allowed(Grammar.from_regex("ab").compile(vocabulary).matcher()) == {0, 1, 3, 4}


def test_last_bit_of_a_word(allowed: Allowed) -> None:
    tokens: list[bytes | None] = [None] * 96
    tokens[31], tokens[63], tokens[95] = b"a", b"b", b"c"
    matcher = Grammar.from_regex("[abc]").compile(Vocabulary(tokens, [0])).matcher()
    assert allowed(matcher) == {31, 63, 95}


def test_missing_bytes_make_no_dead_ends(allowed: Allowed) -> None:
    # Without "c", the branch that starts with "b" has no end.
    vocabulary = Vocabulary([b"a", b"b", b"ab", b"d", None], [4])
    matcher = Grammar.from_regex("bc|ab?d").compile(vocabulary).matcher()
    assert allowed(matcher) == {0, 2} == tried(matcher)


def test_missing_bytes_inside_limited_patterns(allowed: Allowed) -> None:
    # "x" and "xw" must be followed by a letter that cannot be spelled. Refusing that is right too: what never comes
    # is a mask that leads there and then is empty.
    limited = {"type": "string", "pattern": "^(?:xwé{1,5}|z+)$", "minLength": 2, "maxLength": 3}
    vocabulary = Vocabulary([b'"', b"x", b"z", None, b"w", b"1"], [3])
    with suppress(UnsatisfiableError):
        matcher = Grammar.from_json_schema(limited).compile(vocabulary).matcher()
        assert matcher.accept(0)
        assert allowed(matcher) == tried(matcher) == {2}
    matcher = Grammar.from_json_schema({"anyOf": [limited, {"const": 1}]}).compile(vocabulary).matcher()
    assert 5 in allowed(matcher)
    if matcher.accept(0):
        assert allowed(matcher) == tried(matcher) == {2}


def test_a_character_that_only_longer_tokens_spell(allowed: Allowed) -> None:
    # No token is a byte of the accented letter alone, as in vocabularies without byte fallback.
    vocabulary = Vocabulary([b'"', "é".encode(), b"a", None], [3])
    matcher = Grammar.from_json_schema({"const": "éa"}).compile(vocabulary).matcher()
    assert [token_id for token_id in (0, 1, 2, 0, 3) if matcher.accept(token_id)] == [0, 1, 2, 0, 3]


def test_fill_masks_fills_a_batch(bytes_only: Vocabulary) -> None:
    compiled = Grammar.from_regex("a*b").compile(bytes_only)
    matchers = [compiled.matcher() for _ in range(3)]
    matchers[1].accept(ord("b"))
    matchers[2].accept(ord("b"))
    matchers[2].accept(256)
    rows = np.full((3, bytes_only.mask_words), -1, np.int32)
    fill_masks(matchers, rows)
    found = [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in rows]
    assert found == [{ord("a"), ord("b")}, {256}, set()]


# Patterns inside which most characters change nothing, so that most tokens are decided by their atoms.
LOOPS = [
    "[a-zA-Z0-9_-]+", r"[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*", "[^/]+/[^/]+", r".*\.(png|jpg)", r"\S+",
    r"[\w\s-]*", "~[a-f]+|[g-z 0-5]+", "[^\u4e00-\u9fff]*x", r"\p{L}+", "(Hpt_|Int_|[^_]*_Armour_).*",
    "[^\u00e9]*(\u00e9b)?", "[^\u2028]+",
]  # fmt: skip


@pytest.mark.parametrize("pattern", LOOPS)
def test_mask_where_most_characters_change_nothing(
    pattern: str, allowed: Allowed, large_vocabulary: Vocabulary
) -> None:
    quoted = LOOPS.index(pattern) % 2 == 0
    grammar = Grammar.from_json_schema({"pattern": f"^(?:{pattern})$"}) if quoted else Grammar.from_regex(pattern)
    matcher = grammar.compile(large_vocabulary).matcher()
    chance = random.Random(pattern)
    if quoted:
        matcher.accept(large_vocabulary.encode(b'"')[0])
    assert allowed(matcher) == tried(matcher)
    if LOOPS.index(pattern) < 4:
        matcher.accept(chance.choice(sorted(allowed(matcher))))
        assert allowed(matcher) == tried(matcher)
