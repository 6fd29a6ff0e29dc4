"""Each option of `Grammar.from_json_schema`, and what it is told about a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from structgen.grammar import Grammar, SchemaError, UnsupportedSchemaError
from structgen.grammar.json_schema.options import JsonOptions

pytestmark = pytest.mark.nojit

Accepts = Callable[..., bool]

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def test_the_first_named_value_is_the_default() -> None:
    assert JsonOptions() == JsonOptions(
        property_order="schema",
        whitespace="flexible",
        format="assert",
        unknown_format="annotate",
        strict_keywords=False,
        integers_as="1",
        documents=None,
    )


@pytest.mark.parametrize(
    ("text", "order", "valid"),
    [
        ('{"a":1,"b":2,"c":3}', "schema", True),
        ('{"b":2,"a":1}', "schema", False),
        ('{"c":3,"a":1}', "schema", False),
        ('{"b":2,"a":1}', "any", True),
        ('{"c":3,"b":2,"d":4,"a":1}', "any", True),
        ('{"a":1,"a":1}', "any", False),
    ],
)
def test_property_order(text: str, order: str, valid: bool, accepts: Accepts) -> None:
    assert accepts(PAIR, text, text=True, property_order=order) is valid


@pytest.mark.parametrize(
    ("text", "taken_by"),
    [
        ('{"a":1,"b":2}', {"flexible", "compact"}),
        ('{"a": 1, "b": 2}', {"flexible"}),
        ('{ "a" :\t1\r\n, "b": 2 }', {"flexible"}),
        ('{\n  "a": 1,\n  "b": 2\n}', {"flexible", "pretty"}),
        ("{}", {"flexible", "compact", "pretty"}),
        (' {"a":1}', set()),
        ('{"a":1}\n', set()),
        ('{"a":' + " " * 16 + "1}", {"flexible"}),
        ('{"a":' + " " * 17 + "1}", set()),
    ],
)
@pytest.mark.parametrize("whitespace", ["flexible", "compact", "pretty"])
def test_whitespace(text: str, taken_by: set[str], whitespace: str, accepts: Accepts) -> None:
    assert accepts(PAIR, text, text=True, whitespace=whitespace) is (whitespace in taken_by)


@pytest.mark.parametrize("schema", [{}, {"$schema": D4}, {"$schema": D7}])
def test_formats_are_asserted_in_every_draft_or_in_none(schema: dict[str, Any], accepts: Accepts) -> None:
    schema = {**schema, "format": "date"}
    assert accepts(schema, "2024-02-29")
    assert not accepts(schema, "2024-02-30")
    assert accepts(schema, "2024-02-30", format="annotate")
    # What is refused when asserted is no obstacle when it is an annotation.
    assert accepts({"format": "idn-hostname"}, "a b", format="annotate")


def test_unknown_formats(accepts: Accepts) -> None:
    assert accepts({"format": "colour"}, "red")
    with pytest.raises(UnsupportedSchemaError, match="colour") as caught:
        Grammar.from_json_schema({"items": {"format": "colour"}}, unknown_format="refuse")
    assert caught.value.pointer == "/items/format"
    assert accepts({"format": "colour"}, "red", unknown_format="refuse", format="annotate")
    assert accepts({"format": "date"}, "2024-01-01", unknown_format="refuse")


def test_strict_keywords(accepts: Accepts) -> None:
    assert accepts({"maxlength": 1}, "ab")
    for schema in ({"maxlength": 1}, {"$schema": D7, "maxlength": 1}):
        with pytest.raises(UnsupportedSchemaError, match="maxlength") as caught:
            Grammar.from_json_schema({"properties": {"a": schema}}, strict_keywords=True)
        assert caught.value.pointer == "/properties/a/maxlength"
        assert caught.value.hint
    for name in ("default", "x-extension", "example", "dependencies"):
        assert accepts({name: {}}, 1, strict_keywords=True)


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"type": "integer"}, True),
        ({"type": "integer", "minimum": 1, "maximum": 2}, True),
        ({"enum": [1, 2]}, True),
        ({"const": 1}, True),
        ({"const": [1]}, True),
        ({"type": "integer", "const": 1}, True),
        ({"$schema": D4, "type": "integer"}, False),
        ({"$schema": D4, "type": "integer", "enum": [1]}, False),
    ],
)
def test_integers_as(schema: dict[str, Any], taken: bool, accepts: Accepts) -> None:
    one, whole = ("[1]", "[1.0]") if schema.get("const") == [1] else ("1", "1.0")
    assert accepts(schema, one, text=True)
    assert not accepts(schema, whole, text=True)
    assert accepts(schema, one, text=True, integers_as="1 or 1.0")
    assert accepts(schema, whole, text=True, integers_as="1 or 1.0") is taken
    assert not accepts(schema, whole.replace("0", "5"), text=True, integers_as="1 or 1.0")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"property_order": "alphabetical"}, "property_order is 'alphabetical'"),
        ({"property_order": ["any"]}, "property_order is"),
        ({"whitespace": None}, "whitespace is None"),
        ({"format": "ignore"}, "format is 'ignore'"),
        ({"unknown_format": "assert"}, "unknown_format is 'assert'"),
        ({"strict_keywords": "yes"}, "strict_keywords is 'yes'"),
        ({"strict_keywords": 1}, "strict_keywords is 1"),
        ({"integers_as": 1}, "integers_as is 1"),
        ({"documents": ["a"]}, "documents is no mapping"),
        ({"propertyOrder": "any"}, "unknown option 'propertyOrder'"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Grammar.from_json_schema({}, **options)
    assert caught.value.message.startswith(told)
    assert caught.value.hint
