"""Budgets: whoever starts with at least `min_tokens_to_complete` and takes allowed tokens ends in time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, Matcher, Vocabulary

Allowed = Callable[..., set[int]]

ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "minLength": 3},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "tags": {"type": "array", "items": {"enum": ["home", "work"]}, "minItems": 2, "maxItems": 9},
    },
    "required": ["zip", "tags"],
}
LIST = {
    "anyOf": [{"type": "null"}, {"type": "object", "properties": {"v": True, "n": {"$ref": "#"}}, "required": ["n"]}]
}
MANY = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("alpha", "beta", "gamma", "delta", "epsilon")},
    "required": ["beta", "epsilon", "alpha"],
    "additionalProperties": False,
}
KEYS = {
    "type": "object",
    "properties": {name: {"type": "null"} for name in ("a", "aa", "aaa", "aaaa", "aaaab", "b", "ba")},
    "additionalProperties": {
        "type": "object",
        "additionalProperties": False,
        "required": ["deep"],
        "properties": {"deep": {}},
    },
}
NESTED = {
    "type": "object",
    "properties": {"x": {"type": "object", "properties": {"y": MANY}, "required": ["y"]}},
    "required": ["x"],
}
TEXTS = {
    "type": "array",
    "prefixItems": [
        {"type": "string", "pattern": "a|bc", "minLength": 3, "maxLength": 6},
        {"type": "string", "format": "date-time"},
        {"type": "string", "pattern": "^[^]{4,9}$"},
        {"type": "string", "pattern": "\\bword\\b"},
        {"type": "string", "pattern": "^(?:ab|[^x]{3})+$", "minLength": 5, "maxLength": 40},
    ],
    "minItems": 5,
}
NUMBERS = {"type": "array", "items": {"type": "number", "minimum": 12345, "exclusiveMaximum": 123456789}, "minItems": 3}
COUNTED = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("alpha", "beta", "b")} | {"long": {"const": "a" * 9}},
    "required": ["beta"],
    "minProperties": 3,
    "maxProperties": 4,
}
CLOSED = COUNTED | {"minProperties": 4, "additionalProperties": False}
SCHEMAS = {
    "counted": COUNTED, "counted and open": {"type": "object", "minProperties": 2}, "counted and closed": CLOSED,
    "address": ADDRESS, "list": LIST, "many": MANY, "keys": KEYS, "nested": NESTED, "texts": TEXTS, "numbers": NUMBERS,
    "anything": True, "object": {"type": "object"}, "const": {"const": {"a": ["é漢😀", {"b": "\u0001"}], "c": 1.5}},
}  # fmt: skip
LAYOUTS = [
    ("schema", "flexible"),
    ("schema", "compact"),
    ("schema", "pretty"),
    ("any", "flexible"),
    ("any", "compact"),
    ("any", "pretty"),
]
REGEXES = [
    "a{3,50}b",
    "(?:ab|cde){2,9}",
    "[^]{5,}",
    "x|yyyyyyyyyyyyyyy",
    "(?:0|[1-9][0-9]*)(?:\\.[0-9]{2,})?",
    "\\bfoo\\b.*bar",
    "",
]


def narrowed(matcher: Matcher) -> bool:
    return matcher.mask_was_narrowed


def finish(matcher: Matcher, allowed: Allowed, budget: int, chance: random.Random, greedy: bool) -> int:
    """Take allowed tokens until the end; returns how many."""
    taken = 0
    while not matcher.is_terminated:
        left = budget - taken
        mask = allowed(matcher, left)
        assert mask, f"nothing is allowed with {left} of {budget} left"
        free = allowed(matcher)
        assert mask <= free
        matcher.fill_mask(np.zeros(matcher.compiled.vocabulary.mask_words, np.int32), left)
        assert matcher.mask_was_narrowed == (mask != free)
        ends = matcher.compiled.vocabulary.eos_token_ids
        going_on = sorted(mask - ends) if greedy else []  # never end before it must
        assert matcher.accept(chance.choice(going_on or sorted(mask)))
        taken += 1
    return taken


def check(grammar: Grammar, vocabulary: Vocabulary, allowed: Allowed, chance: random.Random, budgets: int) -> None:
    compiled = grammar.compile(vocabulary)
    least = compiled.matcher().min_tokens_to_complete
    for budget in [least, least, least + 1, *(least + chance.randrange(2, 50) for _ in range(budgets))]:
        assert finish(compiled.matcher(), allowed, budget, chance, chance.random() < 0.7) <= budget


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_end_in_time(
    name: str, layout: tuple[str, str], small_vocabulary: Vocabulary, allowed: Allowed
) -> None:
    order, whitespace = layout
    grammar = Grammar.from_json_schema(SCHEMAS[name], property_order=order, whitespace=whitespace)
    check(grammar, small_vocabulary, allowed, random.Random(f"{name} {layout}"), 3)


@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes_end_in_time(pattern: str, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    check(Grammar.from_regex(pattern), small_vocabulary, allowed, random.Random(pattern), 5)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_end_in_time_with_a_real_vocabulary(name: str, smollm2: Vocabulary, allowed: Allowed) -> None:
    check(Grammar.from_json_schema(SCHEMAS[name]), smollm2, allowed, random.Random(name), 1)


def test_corpus_ends_in_time(case: Any, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    check(case.grammar, small_vocabulary, allowed, random.Random(case.name), 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("name", SCHEMAS)
def test_some_token_lowers_the_bound(
    name: str, layout: tuple[str, str], small_vocabulary: Vocabulary, allowed: Allowed
) -> None:
    order, whitespace = layout
    matcher = (
        Grammar.from_json_schema(SCHEMAS[name], property_order=order, whitespace=whitespace)
        .compile(small_vocabulary)
        .matcher()
    )
    chance = random.Random(f"{name} {layout} lowers")
    for _ in range(40):
        bound = matcher.min_tokens_to_complete
        after = {}
        for token_id in allowed(matcher):
            matcher.accept(token_id)
            after[token_id] = matcher.min_tokens_to_complete
            matcher.rollback(1)
        assert min(after.values()) <= bound - 1
        token_id = chance.choice([one for one in after if one not in small_vocabulary.eos_token_ids] or list(after))
        matcher.accept(token_id)
        if matcher.is_terminated:
            break


@pytest.mark.parametrize("order", ["schema", "any"])
def test_keys_that_need_a_long_way_round(order: str, allowed: Allowed) -> None:
    # With so few letters, leaving the taken keys takes more than one of them.
    vocabulary = Vocabulary([*(bytes((byte,)) for byte in sorted(b'{}":,anul')), b"aa", b'"a', b'a"', None], [12])
    schema = {
        "type": "object",
        "properties": {"a" * length: {"type": "null"} for length in range(1, 6)},
        "additionalProperties": {"type": "null"},
    }
    grammar = Grammar.from_json_schema(schema, property_order=order, whitespace="compact")
    check(grammar, vocabulary, allowed, random.Random(order), 60)


@pytest.mark.parametrize("order", ["schema", "any"])
def test_many_keys_with_one_beginning(order: str, bytes_only: Vocabulary, allowed: Allowed) -> None:
    """A key that has come before must be made longer, and so must that one."""
    schema = {"type": "object", "additionalProperties": {"type": "null"}}
    compiled = Grammar.from_json_schema(schema, property_order=order, whitespace="compact").compile(bytes_only)
    text = b"{" + b"".join(b'"%s":null,' % (b"a" * length) for length in range(9)) + b'"aaa'
    for budget in range(40):
        matcher = compiled.matcher()
        assert all(matcher.accept(byte) for byte in text)
        least = matcher.min_tokens_to_complete
        assert finish(matcher, allowed, least + budget, random.Random(budget), budget % 2 == 0) <= least + budget


@pytest.mark.nojit
def test_the_bound_of_literals_is_exact(bytes_only: Vocabulary, smollm2: Vocabulary) -> None:
    value = {"name": "value", "other": ["x", None]}
    text = json.dumps(value, separators=(",", ":")).encode()
    grammar = Grammar.from_json_schema({"const": value}, whitespace="compact")
    assert grammar.compile(bytes_only).matcher().min_tokens_to_complete == len(text) + 1
    assert grammar.compile(smollm2).matcher().min_tokens_to_complete < len(text)


@pytest.mark.nojit
def test_a_budget_below_the_bound(bytes_only: Vocabulary, allowed: Allowed) -> None:
    matcher = Grammar.from_choices(["aaaa", "bb"]).compile(bytes_only).matcher()
    assert matcher.min_tokens_to_complete == 3
    assert allowed(matcher) == {ord("a"), ord("b")}
    assert not narrowed(matcher)
    assert allowed(matcher, 5) == {ord("a"), ord("b")}
    assert not narrowed(matcher)
    assert allowed(matcher, 4) == {ord("b")}
    assert narrowed(matcher)
    assert allowed(matcher, 3) == {ord("b")}
    assert allowed(matcher, 2) == set()
    assert narrowed(matcher)


@pytest.mark.nojit
def test_a_budget_inside_a_string(bytes_only: Vocabulary, allowed: Allowed) -> None:
    matcher = Grammar.from_json_schema({"type": "string"}).compile(bytes_only).matcher()
    matcher.accept(ord('"'))
    assert allowed(matcher, 2) == {ord('"')}
    assert narrowed(matcher)
    assert ord("a") in allowed(matcher, 3)
    assert ord("\\") not in allowed(matcher, 3)
    assert ord("\\") in allowed(matcher, 4)
    matcher.accept(ord('"'))
    assert allowed(matcher, 1) == {256}
    assert not narrowed(matcher)


def test_keys_that_can_only_be_made_longer_by_much(bytes_only: Vocabulary, allowed: Allowed) -> None:
    """Then a budget may be overdrawn, rather than that nothing is left."""
    schema = {"type": "object", "patternProperties": {"^(?:abc)+$": {"type": "null"}}, "additionalProperties": False}
    matcher = Grammar.from_json_schema(schema, whitespace="compact").compile(bytes_only).matcher()
    assert all(matcher.accept(byte) for byte in b'{"abc":null,"abc')
    assert allowed(matcher, matcher.min_tokens_to_complete) == {ord("a")}
