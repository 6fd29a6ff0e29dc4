"""Items and keys that must not come twice, where they can run out: no mask leads where nothing is left."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from structgen.grammar import Grammar, GrammarError, Matcher, Vocabulary
from structgen.grammar.json_reading import START, Reading, step
from structgen.grammar.repetition import may_repeat

Allowed = Callable[..., set[int]]

NULL = {"type": "null"}
LETTERS = frozenset(b'ab01{}[]":,. -nulTrefas')


def unique(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **more}


def names(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {pattern: NULL}, "additionalProperties": False, **more}


ONE_MEMBER = {
    "type": "object",
    "properties": {"a": {"enum": ["a", "b"]}},
    "required": ["a"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "enum": unique({"enum": ["a", "ab", "b", 1, None]}),
    "all booleans": unique({"type": "boolean"}, minItems=2),
    "integers": unique({"type": "integer", "minimum": 3, "maximum": 7}, minItems=3, maxItems=4),
    "containers": unique({"enum": [[1], {"a": 1}, {"a": 2}, True]}, minItems=2),
    "numbers": unique({"type": "number", "minimum": 0, "maximum": 1}),
    "short texts": unique({"type": "string", "maxLength": 1}),
    "few texts": unique({"type": "string", "pattern": "^[ab]{1,3}$"}, minItems=3),
    "small objects": unique(ONE_MEMBER),
    "objects": unique({"type": "object"}, minItems=2),
    "arrays": unique({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
    "anything": unique(True, minItems=2),
    "a prefix": {
        "prefixItems": [{"type": "string"}, {"enum": ["a", "b"]}],
        "type": "array",
        "uniqueItems": True,
        "minItems": 2,
    },
    "contains": unique({"enum": [1, 2, 3]}, contains={"const": 1}),
    "contains some": unique({"type": "string"}, contains={"pattern": "^a"}, minContains=2),
    "names": names("^[ab]{6,7}$"),
    "some names": names("^[a-c]{4}$", minProperties=2),
    "names that partly run out": names("^([ab]{6,7}|x+)$"),
    "short names": {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "boolean"}},
}


def tried(matcher: Matcher) -> set[int]:
    found = set()
    for token_id in range(matcher.compiled.vocabulary.size):
        if matcher.accept(token_id):
            found.add(token_id)
            matcher.rollback(1)
    return found


def among(mask: set[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens of few letters, so that things come again."""
    few = [one for one in mask if one in vocabulary.eos_token_ids or set(vocabulary.tokens[one] or b"") <= LETTERS]
    return sorted(few or mask)


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_walks(name: str, whitespace: str, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(f"{name} {whitespace}")
    grammar = Grammar.from_json_schema(SCHEMAS[name], whitespace=whitespace, property_order="any")
    compiled = grammar.compile(small_vocabulary)
    for _ in range(2):
        matcher = compiled.matcher()
        for _ in range(40):
            mask, bound = allowed(matcher), matcher.min_tokens_to_complete
            assert mask == tried(matcher)
            lowest = bound
            for token_id in mask:
                matcher.accept(token_id)
                lowest = min(lowest, matcher.min_tokens_to_complete)
                matcher.rollback(1)
            assert lowest < bound
            assert matcher.accept(chance.choice(among(mask, small_vocabulary)))
            if matcher.is_terminated:
                break


@pytest.mark.parametrize("whitespace", ["compact", "flexible", "pretty"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_budgets(name: str, whitespace: str, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(f"{name} {whitespace}")
    compiled = Grammar.from_json_schema(SCHEMAS[name], whitespace=whitespace).compile(small_vocabulary)
    least = compiled.matcher().min_tokens_to_complete
    for budget in (least, least + 1, least + chance.randrange(2, 40)):
        matcher, left = compiled.matcher(), budget
        while not matcher.is_terminated:
            mask = allowed(matcher, left)
            assert mask, (budget, left)
            going_on = mask - small_vocabulary.eos_token_ids
            assert matcher.accept(chance.choice(among(going_on or mask, small_vocabulary)))
            left -= 1
        text = b"".join(small_vocabulary.tokens[one] or b"" for one in matcher.tokens[:-1])
        assert Draft202012Validator(SCHEMAS[name]).is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        (names("^[ab]{5,6}$", minProperties=96), 96),
        (unique({"type": "string", "pattern": "^[ab]{0,3}$"}), 15),
        (unique({"type": "integer", "minimum": -3, "maximum": 12}, minItems=16), 16),
        (unique(ONE_MEMBER), 2),
        (unique({"type": ["boolean", "null"]}), 3),
    ],
)
def test_all_that_there_are(schema: Any, count: int, bytes_only: Vocabulary, allowed: Allowed) -> None:
    """Who never closes the container comes to all values, and then must close it."""
    compiled = Grammar.from_json_schema(schema, whitespace="compact").compile(bytes_only)
    matcher, chance, depth = compiled.matcher(), random.Random(count), 0
    while not matcher.is_complete:
        mask = allowed(matcher)
        closing = {ord("]"), ord("}")} if depth == 1 else set()
        byte = chance.choice(sorted(mask - closing or mask))
        depth += (byte in b"[{") - (byte in b"]}")
        assert matcher.accept(byte)
    value = json.loads(b"".join(bytes_only.tokens[one] or b"" for one in matcher.tokens))
    assert len(value) == count
    assert Draft202012Validator(schema).is_valid(value)


def test_true_is_used(bytes_only: Vocabulary, allowed: Allowed) -> None:
    schema = {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "boolean"}, "uniqueItems": True}
    matcher = Grammar.from_json_schema(schema, whitespace="compact").compile(bytes_only).matcher()
    assert all(matcher.accept(byte) for byte in b"[true,")
    assert allowed(matcher) == {ord("f")}
    assert all(matcher.accept(byte) for byte in b"false")
    assert allowed(matcher) == {ord("]")}


def test_rollback_and_copy(bytes_only: Vocabulary, allowed: Allowed) -> None:
    compiled = Grammar.from_json_schema(unique({"type": "string"}), whitespace="compact").compile(bytes_only)
    matcher = compiled.matcher()
    assert all(matcher.accept(byte) for byte in b'["a","')
    copy = matcher.copy()
    assert copy.accept(ord("a"))
    assert ord('"') not in allowed(copy)
    assert ord('"') in allowed(matcher)
    copy.rollback(5)  # "a" was not finished
    assert all(copy.accept(byte) for byte in b'b","a"')
    matcher.reset()
    assert all(matcher.accept(byte) for byte in b'["a"')
    assert copy.min_tokens_to_complete == matcher.min_tokens_to_complete


def test_whole_texts(bytes_only: Vocabulary) -> None:
    compiled = Grammar.from_json_schema(unique(True)).compile(bytes_only)
    equal = [
        "1,1.0",
        "10,1e1",
        "0,-0.0",
        '"a","\\u0061"',
        '{"a":1,"b":2},{"b":2,"a":1.0}',
        "[[]],[[]]",
        '"\\ud83d\\ude00","😀"',
    ]
    different = ["1,true", "0,false", '"1",1', "[1],[1,1]", '{"a":1},{"a":2}', "null,[]", '"a","A"']
    for text in equal + different:
        matcher = compiled.matcher()
        assert matcher.accept_string(f"[{text}]") == (text in different), text


UNIQUE_OR_NOT = {
    "anyOf": [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "array", "items": {"enum": [1, 2, "a"]}, "maxItems": 3},
    ]
}
NESTED = {
    "type": "object",
    "properties": {
        "s": {"type": "array", "uniqueItems": True, "items": {"anyOf": [{"$ref": "#"}, {"maxProperties": 1}]}},
    },
}


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_unique_or_not(whitespace: str, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    """What is read with uniqueItems and without goes on without where an item has come again."""
    compiled = Grammar.from_json_schema(UNIQUE_OR_NOT, whitespace=whitespace).compile(small_vocabulary)
    oracle, chance = Draft202012Validator(UNIQUE_OR_NOT), random.Random(whitespace)
    for text in (
        "[1,1]",
        "[1,2,1]",
        "[1,2,3,4]",
        '[1,"a",1]',
        "[3,3]",
        "[1,1,2,2]",
        "[1,2,1,2]",
        "[1,1,3]",
        "[1,2,3,3]",
    ):
        matcher = compiled.matcher()
        assert (matcher.accept_string(text) and matcher.is_complete) == oracle.is_valid(json.loads(text)), text
    for _ in range(6):
        matcher = compiled.matcher()
        while not matcher.is_terminated:
            mask = allowed(matcher)
            assert mask
            assert mask == tried(matcher)
            few = [one for one in mask if set(small_vocabulary.tokens[one] or b"") <= set(b"[]12,") and len(mask) > 1]
            assert matcher.accept(chance.choice(sorted(few or mask)))
        made = b"".join(small_vocabulary.tokens[one] or b"" for one in matcher.tokens[:-1])
        assert oracle.is_valid(json.loads(made)), made


def test_unique_or_not_in_each_other(bytes_only: Vocabulary) -> None:
    compiled = Grammar.from_json_schema(NESTED, property_order="any").compile(bytes_only)
    oracle = Draft202012Validator(NESTED)
    for inner in ("[1,1]", "[{},{}]", '[{"s":[{},{}]}]', '[{"s":[{},{}]},{"s":[{},{}]}]', '[{"a":1},{"a":1.0}]'):
        for text in (f'{{"s":{inner}}}', f'{{"s":[{{"s":{inner}}}]}}', f'{{"s":[{{"s":{inner},"b":1}}]}}'):
            matcher = compiled.matcher()
            assert (matcher.accept_string(text) and matcher.is_complete) == oracle.is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    "schema",
    [
        unique({"type": "boolean"}, minItems=3),
        unique({"enum": [1, 1.0]}, minItems=2),
        names("^[ab]{6}$", minProperties=65),
    ],
)
def test_more_than_there_are(schema: Any, bytes_only: Vocabulary) -> None:
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema).compile(bytes_only)
    assert caught.value.code == "unsatisfiable_schema"


def test_what_cannot_be_promised(bytes_only: Vocabulary) -> None:
    schema = {"type": "array", "prefixItems": [{"enum": [1, 2]}, {"const": 1}], "uniqueItems": True, "minItems": 2}
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema({"properties": {"a": schema}}).compile(bytes_only)
    assert caught.value.code == "unsupported_schema"
    assert caught.value.pointer == "/properties/a"
    assert caught.value.hint


def read(text: bytes) -> Reading | None:
    """Arrays are unique that begin with a blank."""
    reading: Reading | None = START
    for place, byte in enumerate(text):
        assert reading is not None
        reading = step(reading, byte, frozenset([1]) if text[place + 1 : place + 2] == b" " else frozenset())
        if reading is None:
            return None
    return reading


@pytest.mark.nojit
def test_readings() -> None:
    assert read(b'{"a":[1,1],"b":{"a":1}}') is not None
    assert read(b'{"a":1,"a"') is None
    assert read(b'[ {"a":[1]},{"a":[1.0]}') is None
    assert read(b"[ 1,1") is not None
    assert read(b"[ 1,1,") is None
    assert read(b"[ [1,1],[1]") is not None
    assert read(b'[ "\\"","\\""') is None


@pytest.mark.nojit
@pytest.mark.parametrize(
    ("text", "risk"),
    [
        (b"[ 1,", True),
        (b"[ 1,1", True),
        (b"[ 1,1.00", True),
        (b"[ 1,1.01", False),
        (b"[ 10,1", True),
        (b"[ 2,-", True),
        (b"[ 100,1e", True),
        (b'[ "ab","a', True),
        (b'[ "ab","b', False),
        (b'[ "ab","\\u006', True),
        (b'[ "ab","\\u007', False),
        (b'[ "\xc3\xa9","\xc3', True),
        (b'[ "\xc3\xa9","\xc4', False),
        (b'[ "\xf0\x9f\x98\x80","\\ud83', True),
        (b'[ {"a":1},{', True),
        (b'[ {"a":1},{"a"', True),
        (b'[ {"a":1},{"b', False),
        (b'[ {"a":1},{"a":1,', False),
        (b'[ {"a":1,"b":2},{"a":1,', True),
        (b"[ [1],[1", True),
        (b"[ [1],[1,", False),
        (b"[ [1],[", True),
        (b"[ true,t", True),
        (b"[ 1", False),
        (b"[ 1,2]", False),
        (b'{"ab":1,"a', True),
        (b'{"ab":1,"b', False),
        (b'{"ab":1,', False),
    ],
)
def test_risks(text: bytes, risk: bool) -> None:
    reading = read(text)
    assert reading is not None
    assert may_repeat(reading, finite_names=False) == risk
