"""Random regexes and random schemas against independent implementations.

`STRUCTGEN_NIGHTLY=1` runs 10,000 examples of each instead of 300.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import regress
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from structgen.grammar import CompiledGrammar, Grammar, GrammarLimitError, Matcher, UnsatisfiableError, Vocabulary

NIGHTLY = bool(os.environ.get("STRUCTGEN_NIGHTLY"))
LIMITS = settings(
    max_examples=10_000 if NIGHTLY else 300,
    deadline=None,
    derandomize=not NIGHTLY,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)

Allowed = Callable[..., set[int]]

# --- regexes: pairs of (our pattern, the same for Python) ----------------------------------------------------------

Pair = tuple[str, str]
BOTH = [
    "a",
    "b",
    "é",
    "😀",
    " ",
    "-",
    "[ab]",
    "[^a]",
    "[a-cé]",
    r"\d",
    r"\w",
    r"\W",
    r"\D",
    r"\.",
    r"[\w-]",
    r"[^\d]",
    r"\u00e9",
    r"\x61",
]
# The dot and \s differ: ECMA-262 knows more line ends and spaces.
ATOMS = [
    *((one, one) for one in BOTH),
    (".", "[^\n\r\u2028\u2029]"),
    (r"\s", "[\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"),
]
QUANTIFIERS = ["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "*?", "+?", "{0,1}?"]
ASSERTIONS = [("^", "^"), ("$", r"\Z"), (r"\b", r"\b")]


def _sequence(parts: list[Pair]) -> Pair:
    return "".join(ours for ours, _ in parts), "".join(theirs for _, theirs in parts)


def _either(parts: list[Pair]) -> Pair:
    return "(?:" + "|".join(ours for ours, _ in parts) + ")", "(?:" + "|".join(theirs for _, theirs in parts) + ")"


def _repeated(part: Pair, quantifier: str) -> Pair:
    return f"(?:{part[0]}){quantifier}", f"(?:{part[1]}){quantifier}"


def _never_empty(pair: Pair) -> bool:
    # `regress` can fill the memory on repetitions of what may be empty.
    return re.fullmatch(pair[1], "", re.ASCII) is None


ATOM = st.sampled_from(ATOMS)
TREE = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(_sequence),
        st.lists(inner, min_size=2, max_size=3).map(_either),
        st.tuples(inner.filter(_never_empty), st.sampled_from(QUANTIFIERS)).map(lambda both: _repeated(*both)),
    ),
    max_leaves=6,
)
WITH_ASSERTIONS = st.lists(st.one_of(TREE, TREE, st.sampled_from(ASSERTIONS)), min_size=1, max_size=4).map(_sequence)
LETTERS = "ab1é😀 -.\n\u2028_"
TEXTS = st.lists(st.text(LETTERS, max_size=7), min_size=8, max_size=8)


def _found(matcher: Matcher, allowed: Allowed, chance: random.Random, budget: int) -> bytes:
    """A text by a random walk over the masks."""
    text, left = bytearray(), budget
    while True:
        mask = allowed(matcher, left)
        token_id = chance.choice(sorted(mask))
        assert matcher.accept(token_id)
        if matcher.is_terminated:
            return bytes(text)
        text += matcher.compiled.vocabulary.tokens[token_id] or b""
        left -= 1


def _agrees(text: str, ours: bool, pair: Pair) -> bool:
    """Whether one of two oracles says the same: each has faults of its own."""
    if (re.fullmatch(pair[1], text, re.ASCII) is not None) == ours:
        return True
    found = regress.Regex(f"^(?:{pair[0]})$", "u").find(text)
    return (found is not None) == ours


def _check_pattern(pair: Pair, texts: list[str], seed: int, vocabulary: Vocabulary, allowed: Allowed) -> None:
    try:
        compiled = Grammar.from_regex(pair[0]).compile(vocabulary)
    except UnsatisfiableError:
        assert all(_agrees(text, False, pair) for text in texts)
        return
    for text in texts:
        ours = _accepts(compiled, text)
        assert _agrees(text, ours, pair), (pair, text, ours)
    matcher = compiled.matcher()
    made = _found(matcher, allowed, random.Random(seed), matcher.min_tokens_to_complete + 8)
    assert _agrees(made.decode(), True, pair), (pair, made)


@LIMITS
@given(TREE, TEXTS, st.integers(0, 999))
def test_regexes(merged: Vocabulary, allowed: Allowed, pair: Pair, texts: list[str], seed: int) -> None:
    _check_pattern(pair, texts, seed, merged, allowed)


@LIMITS
@given(WITH_ASSERTIONS, TEXTS, st.integers(0, 999))
def test_regexes_with_assertions(merged: Vocabulary, allowed: Allowed, pair: Pair, texts: list[str], seed: int) -> None:
    _check_pattern(pair, texts, seed, merged, allowed)


# --- schemas ---------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "ab", "name", "é", 'q"']
WORDS = ["", "a", "b", "ab", "é😀", 'q"\\', "\n", "2024", "a" * 9]
NUMBERS: list[Any] = [0, 1, -1, 2, 10, 99, 2.5, -0.25, 10**20]
SCALARS = st.sampled_from([None, True, False, *WORDS, *NUMBERS])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)),
    max_leaves=5,
)
PATTERNS = ["a", "^a", "b$", "^[ab]*$", "^.{1,3}$", "^(?:ab|é)+$", "[0-9]{4}"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    count = st.integers(0, 3)
    text = _some(minLength=count, maxLength=st.integers(1, 5), pattern=st.sampled_from(PATTERNS))
    number = _some(
        minimum=st.sampled_from(NUMBERS), maximum=st.sampled_from(NUMBERS), exclusiveMinimum=st.sampled_from(NUMBERS)
    )
    array = _some(items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=count, maxItems=count)
    object_ = _some(
        properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        additionalProperties=inner,
    )
    typed = st.tuples(st.sampled_from(TYPES), text, number, array, object_).map(
        lambda parts: {"type": parts[0], **parts[1], **parts[2], **parts[3], **parts[4]}
    )
    combined = _some(
        type=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        anyOf=st.lists(inner, min_size=1, max_size=3),
        allOf=st.lists(inner, min_size=1, max_size=2),
        minimum=st.sampled_from(NUMBERS),
        maxLength=count,
    )
    return st.one_of(typed, typed, combined, combined)


LEAF = st.one_of(
    st.booleans(),
    st.sampled_from(TYPES).map(lambda name: {"type": name}),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/shared"}),
    st.just({"$ref": "#"}),
)
SCHEMAS = st.tuples(st.recursive(LEAF, _schemas_of, max_leaves=7), st.recursive(LEAF, _schemas_of, max_leaves=3)).map(
    lambda both: {**both[0], "$defs": {"shared": both[1]}} if isinstance(both[0], dict) else both[0]
)
LAYOUTS = st.fixed_dictionaries(
    {
        "property_order": st.sampled_from(["schema", "any"]),
        "whitespace": st.sampled_from(["flexible", "compact", "pretty"]),
    }
)


def _compiled(schema: Any, vocabulary: Vocabulary, **options: Any) -> Any:
    try:
        return Grammar.from_json_schema(schema, **options).compile(vocabulary)
    except GrammarLimitError:
        return None
    except UnsatisfiableError:
        return None


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    # In Python's regexes, `$` matches before a line end too.
    if isinstance(value, str) and regress.Regex(pattern, "u").find(value) is None:
        yield ValidationError(pattern)


ORACLE = extend(Draft202012Validator, {"pattern": _pattern})


def _oracle(schema: Any, value: Any) -> bool:
    return bool(ORACLE(schema).is_valid(value))


def _accepts(compiled: CompiledGrammar, text: str) -> bool:
    matcher = compiled.matcher()
    return matcher.accept_string(text) and matcher.is_complete


def _is_canonical(value: Any) -> bool:
    """Whether json.dumps writes its numbers as a grammar does: no exponents, integers without a fraction."""
    if isinstance(value, list | dict):
        return all(map(_is_canonical, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or not (value.is_integer() or "e" in repr(value))


def _changed(value: Any, chance: random.Random) -> Any:
    """The value with one small change somewhere."""
    kind = chance.randrange(6)
    if isinstance(value, list) and value and kind < 5:
        index = chance.randrange(len(value))
        return value[:index] + ([_changed(value[index], chance)] if kind < 3 else []) + value[index + (kind != 3) :]
    if isinstance(value, dict) and value and kind < 5:
        name = chance.choice(list(value))
        rest = {key: one for key, one in value.items() if key != name}
        if kind < 3:
            return {**rest, name: _changed(value[name], chance)}
        return {**rest, "b": value[name]} if kind == 3 else rest
    if isinstance(value, str) and kind < 4:
        return value[:-1] if kind < 2 else value + chance.choice("ab\n😀")
    if isinstance(value, int | float) and kind < 4:
        return value + chance.choice([-1, 1, 10, -100])
    return chance.choice([None, True, 0, "", "a", [], {}, [value], {"a": value}])


@LIMITS
@given(SCHEMAS, LAYOUTS, st.integers(0, 999))
def test_what_is_generated_is_valid(
    merged: Vocabulary, allowed: Allowed, schema: Any, layout: dict[str, Any], seed: int
) -> None:
    compiled = _compiled(schema, merged, **layout)
    if compiled is None:
        return
    for walk in range(3):
        matcher = compiled.matcher()
        made = _found(matcher, allowed, random.Random(seed + walk), matcher.min_tokens_to_complete + 25)
        value = json.loads(made)
        assert _oracle(schema, value), (schema, made)


@LIMITS
@given(SCHEMAS, st.lists(VALUES, min_size=6, max_size=6), st.integers(0, 999))
def test_what_is_valid_is_accepted(
    bytes_only: Vocabulary, allowed: Allowed, schema: Any, values: list[Any], seed: int
) -> None:
    try:
        compiled = Grammar.from_json_schema(schema, property_order="any", whitespace="compact").compile(bytes_only)
    except GrammarLimitError:
        return
    except UnsatisfiableError as error:
        if "refers to itself" in error.message:  # what that means is anyone's guess
            return
        compiled = None
    chance = random.Random(seed)
    if compiled is not None:
        for _ in range(2):  # what was generated, and its neighbours, are nearer the edge than values by chance
            matcher = compiled.matcher()
            made = json.loads(_found(matcher, allowed, chance, matcher.min_tokens_to_complete + 25))
            values += [made, *(_changed(made, chance) for _ in range(4))]
    for value in filter(_is_canonical, values):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        ours = compiled is not None and _accepts(compiled, text)
        assert ours == _oracle(schema, value), (schema, text)
