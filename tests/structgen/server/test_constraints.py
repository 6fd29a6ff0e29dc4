"""Which constraint a request asks for: every spelling, and every mistake with the field that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from structgen.server.constraints import find_constraint
from structgen.server.errors import ApiError
from structgen.server.settings import ServerSettings

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
SETTINGS = ServerSettings(max_schema=100, max_regex=10, max_choices=3, max_choice=5)


@pytest.mark.parametrize(
    ("fields", "kind", "payload"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "json", SCHEMA),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
            "json",
            SCHEMA,
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json", SCHEMA),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": True}}}, "json", True),
        ({"response_format": {"type": "json_object"}}, "json", {"type": "object"}),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json": '{"type": "null"}', "regex": None}}, "json", {"type": "null"}),
        ({"structured_outputs": {"json_object": True}}, "json", {"type": "object"}),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
        ({"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
    ],
)
def test_spellings(fields: dict[str, Any], kind: str, payload: Any) -> None:
    spec = find_constraint(fields, SETTINGS)
    assert spec is not None
    assert (spec.kind, spec.payload) == (kind, payload)
    if payload is SCHEMA:
        assert list(spec.payload["properties"]) == ["b", "a"]


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_free_text(fields: dict[str, Any]) -> None:
    assert find_constraint(fields, SETTINGS) is None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "json"}, "response_format", "invalid_constraint"),
        ({"response_format": {}}, "response_format.type", "invalid_constraint"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_constraint"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "invalid_constraint"),
        (
            {"response_format": {"type": "json_schema", "json_schema": 5}},
            "response_format.json_schema",
            "invalid_constraint",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
            "invalid_constraint",
        ),
        ({"structured_outputs": []}, "structured_outputs", "invalid_constraint"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar", "unsupported_constraint"),
        ({"guided_json": "{"}, "guided_json", "invalid_constraint"),
        ({"guided_json": '{"a": 1, "a": 2}'}, "guided_json", "invalid_constraint"),
        ({"guided_regex": 5}, "guided_regex", "invalid_constraint"),
        ({"guided_choice": []}, "guided_choice", "invalid_constraint"),
        ({"guided_choice": ["a", 1]}, "guided_choice", "invalid_constraint"),
        ({"guided_choice": "abc"}, "guided_choice", "invalid_constraint"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "conflicting_constraints"),
        ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "guided_json", "conflicting_constraints"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.choice",
            "conflicting_constraints",
        ),
        ({"guided_json": {"description": "x" * 100}}, "guided_json", "schema_too_complex"),
        ({"guided_regex": "a" * 11}, "guided_regex", "schema_too_complex"),
        ({"guided_choice": ["a"] * 4}, "guided_choice", "schema_too_complex"),
        ({"guided_choice": ["a" * 6]}, "guided_choice", "schema_too_complex"),
    ],
)
def test_mistakes(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        find_constraint(fields, SETTINGS)
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)
