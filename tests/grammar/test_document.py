"""Documents: identifiers, references, drafts, keyword values, options."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from structgen.grammar import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    SchemaError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from structgen.grammar.json_schema.keywords import KEYWORDS, known
from structgen.grammar.json_schema.options import JsonOptions

pytestmark = pytest.mark.nojit

Accepts = Callable[..., bool]

D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7))
D2019, D2020 = (f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12"))


def error_of(schema: Any, **options: Any) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema, **options)
    return caught.value


def test_a_one_of_with_too_many_pairs_is_a_limit() -> None:
    def strings(first: str) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": f"^{first}{number}"} for number in range(300)]}

    error = error_of({"items": {"oneOf": [strings("a"), strings("b")]}})
    assert isinstance(error, GrammarLimitError)
    assert error.pointer == "/items"


@pytest.mark.parametrize("name", ["unevaluatedItems", "propertyNames", "not"])
def test_harmless_is_not_merely_equal(name: str) -> None:
    """0 is not false and 1 is not true."""
    wrong = {"unevaluatedItems": 1, "propertyNames": 1, "not": 0}[name]
    assert error_of({name: wrong}).code in ("invalid_schema", "unsupported_schema")


WRONG_VALUES: dict[str, list[Any]] = {
    "types": ["int", 3, None, ["string", "text"], []],
    "array": [{}, "a", None],
    "number": ["1", None, True],
    "number or boolean": ["1", None],
    "count": [-1, 1.5, "1", None, True, float("nan"), float("inf"), float("-inf")],
    "string": [1, None, []],
    "schema or schemas": [1, None, [1]],
    "schemas": [{}, None, [3], True],
    "schema": [[], 1, None, "a"],
    "schema map": [[], True, {"a": 1}, {"a": []}],
    "strings": ["a", [1], {}],
    "positive": [0, -1, "2", None],
    "boolean": [1, "true", None],
    "dependencies": [[], {"a": 1}, {"a": [1]}],
    "string lists": [[], {"a": "b"}, {"a": [1]}],
}


@pytest.mark.parametrize("name", [name for name, keyword in KEYWORDS.items() if keyword.value != "any"])
def test_values_of_keywords(name: str) -> None:
    for value in WRONG_VALUES[KEYWORDS[name].value]:
        uri = D4 if KEYWORDS[name].until == 4 else (D2019 if KEYWORDS[name].until == 2019 else None)
        schema: dict[str, Any] = {"properties": {"x": {name: value}}}
        error = error_of(schema | ({"$schema": uri} if uri else {}))
        assert isinstance(error, SchemaError | GrammarLimitError), (name, value)
        assert error.pointer == f"/properties/x/{name}", (name, value)


def test_every_keyword_has_a_draft() -> None:
    for name, keyword in KEYWORDS.items():
        assert keyword.since <= keyword.until
        assert known(name, keyword.since) is keyword
        assert keyword.since == 4 or known(name, keyword.since - 1) is None
    assert known("tpye", 7) is None


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
def test_bounds_that_are_no_numbers(name: str, value: float) -> None:
    error = error_of({"properties": {"x": {name: value}}})
    assert isinstance(error, SchemaError)
    assert error.pointer == f"/properties/x/{name}"


@pytest.mark.parametrize(
    "text",
    [
        '{"minimum": 1e999999999}',
        '{"maxItems": 1e999999999}',
        '{"minLength": 1e999999999}',
        '{"const": 1e999999999}',
        '{"enum": [-1e-999999999]}',
        '{"maxLength": 1e400}',
    ],
)
def test_huge_exponents(text: str) -> None:
    with suppress(GrammarError):  # an error or a grammar, and at once
        Grammar.from_json_schema(text)


@pytest.mark.parametrize(
    "schema", ['{"minimum": ' + "1" * 5000 + "}", {"minimum": 10**5000}, {"const": 10**5000}, {"enum": [[10**5000]]}]
)
def test_huge_integers(schema: Any) -> None:
    with suppress(GrammarError):
        Grammar.from_json_schema(schema)


NO_SCHEMAS: list[Any] = ["", "nope", "{,}", "[1]", "3", '"a"', "null", '{"minimum": NaN}', '{"a":1} x', None, 3, [{}]]


@pytest.mark.parametrize(
    ("schema", "code"), [*((one, "invalid_schema") for one in NO_SCHEMAS), ("[" * 100_000, "schema_too_complex")]
)
def test_what_is_no_schema(schema: Any, code: str) -> None:
    error = error_of(schema)
    assert error.code == code
    assert error.pointer == ""


def test_values_that_are_no_json() -> None:
    for value in ({1, 2}, b"a", object()):
        error = error_of({"properties": {"x": {"enum": [value]}}})
        assert isinstance(error, SchemaError)


def test_json_text_and_dict_are_the_same(accepts: Accepts) -> None:
    schema = {"type": "object", "properties": {"é": {"maximum": 0.3, "type": "number"}}, "additionalProperties": False}
    for form in (schema, json.dumps(schema)):
        assert accepts(form, {"é": 0.3})
        assert not accepts(form, {"é": 0.30001})


@pytest.mark.parametrize(
    ("reference", "pointer"),
    [
        ("#/$defs/none", ""),
        ("#nowhere", ""),
        ("#/$defs/a/0", ""),
        ("#/$defs/list/3", ""),
        ("#/$defs/list/x", ""),
        ("#/title", ""),
    ],
)
def test_dangling_references(reference: str, pointer: str) -> None:
    schema = {"title": "t", "$defs": {"a": {}, "list": {"anyOf": [{}]}}, "items": {"allOf": [{"$ref": reference}]}}
    error = error_of(schema)
    assert isinstance(error, SchemaError)
    assert error.pointer == "/items/allOf/0/$ref"
    assert reference.strip("#") in error.message or "leads" in error.message


@pytest.mark.parametrize("reference", ["other.json", "http://x.y/z#/a", "urn:x:y", "../a#b"])
def test_references_to_elsewhere(reference: str) -> None:
    error = error_of({"additionalProperties": {"$ref": reference}})
    assert isinstance(error, UnsupportedSchemaError)
    assert error.pointer == "/additionalProperties/$ref"
    assert error.hint


def test_a_bad_schema_behind_a_reference() -> None:
    error = error_of({"$ref": "#/x-mine/a", "x-mine": {"a": {"type": "text"}}})
    assert isinstance(error, SchemaError)
    assert error.pointer == "/x-mine/a/type"


def test_names_that_look_like_keywords(accepts: Accepts) -> None:
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "type": {"type": "integer"},
            "not": {"type": "null"},
            "$id": {"type": "integer"},
        },
        "required": ["$ref"],
    }
    assert accepts(schema, {"$ref": "#/nowhere", "type": 1, "not": None, "$id": 3})
    assert not accepts(schema, {"$ref": 1})
    assert accepts({"const": {"$ref": "#/nowhere", "type": "x"}}, {"$ref": "#/nowhere", "type": "x"})
    assert accepts({"enum": [{"$ref": "x"}], "default": {"$ref": "y"}, "examples": [{"$ref": "z"}]}, {"$ref": "x"})


@pytest.mark.parametrize(
    ("uri", "siblings_hold"),
    [(D4, False), (D6, False), (D7, False), (D2019, True), (D2020, True), (None, True), ("http://x.y", True)],
)
def test_siblings_of_a_reference(uri: str | None, siblings_hold: bool, accepts: Accepts) -> None:
    schema: dict[str, Any] = {
        "items": {"$ref": "#/definitions/n", "maximum": 5},
        "type": "array",
        "definitions": {"n": {"type": "integer"}},
    }
    schema |= {"$schema": uri} if uri else {}
    assert accepts(schema, [5])
    assert accepts(schema, [6]) != siblings_hold
    assert not accepts(schema, ["a"])


def test_refused_siblings_of_an_old_reference_are_ignored(accepts: Accepts) -> None:
    schema = {
        "$schema": D7,
        "items": {"$ref": "#/definitions/n", "not": True},
        "definitions": {"n": {"type": "integer"}},
    }
    assert accepts(schema, [1])


@pytest.mark.parametrize("draft", ["03", "3"])
def test_draft_3(draft: str) -> None:
    error = error_of({"$schema": f"http://json-schema.org/draft-{draft.zfill(2)}/schema#"})
    assert isinstance(error, UnsupportedSchemaError)
    assert error.pointer == "/$schema"


def test_booleans_are_schemas_everywhere(accepts: Accepts) -> None:
    schema = {"properties": {"a": True, "b": False}, "type": "object", "additionalProperties": True}
    assert accepts(schema, {"a": 1})
    assert not accepts(schema, {"b": 1})
    assert accepts(True, [1])
    assert accepts("true", [1])
    assert isinstance(error_of(False), UnsatisfiableError)


def test_identifiers_in_each_other(accepts: Accepts) -> None:
    schema = {
        "$id": "http://x.y/a/root.json",
        "$ref": "inner/one.json#/$defs/two",
        "$defs": {
            "one": {
                "$id": "inner/one.json",
                "$defs": {"two": {"$ref": "#three"}, "three": {"$anchor": "three", "$ref": "../other.json"}},
            },
            "other": {"$id": "/a/other.json", "type": "boolean"},
            "three": {"$anchor": "three", "type": "null"},
        },
    }
    assert accepts(schema, True)
    assert not accepts(schema, None)


@pytest.mark.parametrize("uri", [D6, D7])
def test_anchors_of_older_drafts(uri: str, accepts: Accepts) -> None:
    schema = {"$schema": uri, "items": {"$ref": "#here"}, "definitions": {"x": {"$id": "#here", "type": "integer"}}}
    assert accepts(schema, [1])
    assert not accepts(schema, [None])


def test_the_root_has_many_names(accepts: Accepts) -> None:
    schema = {
        "$id": "http://x.y/r",
        "type": "array",
        "items": {"anyOf": [{"$ref": "http://x.y/r"}, {"$ref": "r#"}, {"$ref": ""}]},
    }
    assert accepts(schema, [[], [[]]])
    assert not accepts(schema, [1])


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (
            {"properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["a"], "type": "object"},
            "/properties/a",
        ),
        ({"prefixItems": [True, {"enum": [1], "type": "string"}], "minItems": 2, "type": "array"}, "/prefixItems/1"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, ""),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"enum": []}, "minItems": 1, "type": "array"}}},
            "/$defs/a/items",
        ),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        ({"type": "object", "additionalProperties": False, "required": ["b"]}, "/additionalProperties"),
        ({"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "$defs": {"x": False}}, "/items"),
    ],
)
def test_the_culprit_of_what_cannot_be(schema: dict[str, Any], pointer: str) -> None:
    error = error_of(schema)
    assert isinstance(error, UnsatisfiableError)
    assert error.pointer == pointer
    assert error.hint


def test_strict_keywords(accepts: Accepts) -> None:
    assert accepts({"tpye": "integer"}, "a")
    error = error_of({"items": {"tpye": "integer"}}, strict_keywords=True)
    assert isinstance(error, UnsupportedSchemaError)
    assert error.pointer == "/items/tpye"
    assert accepts({"type": "integer", "title": "t", "$comment": "c"}, 1, strict_keywords=True)
    assert accepts({"$schema": D4, "id": "x", "type": "integer"}, 1, strict_keywords=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"whitespace": "loose"}, "whitespace"),
        ({"property_order": None}, "property_order"),
        ({"strict_keywords": "yes"}, "strict_keywords"),
        ({"indent": 2}, "unknown option"),
        ({"integers_as": 1}, "integers_as"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        JsonOptions.of(options)
    assert caught.value.hint


def test_a_product_of_alternatives_has_a_limit() -> None:
    options = [{"anyOf": [{"required": [f"{i}{j}"]} for i in range(10)]} for j in range(5)]
    error = error_of({"allOf": options})
    assert isinstance(error, GrammarLimitError)
    assert error.pointer is not None
    assert error.hint


@pytest.mark.parametrize("depth", [100, 3000])
@pytest.mark.parametrize("keyword", ["items", "allOf", "properties", "const"])
def test_deep_schemas(keyword: str, depth: int) -> None:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        inner = {"allOf": [schema], "properties": {"a": schema}, "const": [schema]}.get(keyword, schema)
        schema = {keyword: inner}
    if keyword == "const":
        schema = {"const": schema}
    with suppress(GrammarLimitError):
        Grammar.from_json_schema(schema)
    while isinstance(schema, dict):  # take it apart: Python's own destructor is not to be tested here
        schema = next(iter(schema.values()), None)
        schema = schema[0] if isinstance(schema, list) else schema


def test_a_long_chain_of_references(accepts: Accepts) -> None:
    definitions: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(100)}
    definitions["100"] = {"type": "null"}
    assert accepts({"$ref": "#/$defs/0", "$defs": definitions}, None)
    definitions |= {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(100, 5000)}
    assert error_of({"$ref": "#/$defs/0", "$defs": definitions | {"5000": True}}).code == "schema_too_complex"


@pytest.mark.parametrize(
    "member",
    [{"not": {"$ref": "#"}}, {"if": {"$ref": "#"}, "then": False}, {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}],
)
def test_listed_values_that_refer_back_to_the_list(member: dict[str, Any], accepts: Accepts) -> None:
    with suppress(UnsupportedSchemaError, GrammarLimitError):
        assert accepts({"const": {"b": 1}, "properties": {"b": member}}, {"b": 1})


def test_two_spellings_of_a_prefix_are_refused() -> None:
    """Where no draft is declared both are understood, and nothing says which of them holds."""
    error = error_of({"properties": {"a": {"prefixItems": [{}], "items": [{"type": "null"}]}}})
    assert isinstance(error, UnsupportedSchemaError)
    assert error.pointer == "/properties/a/items"
