"""Schemas as people write them elsewhere: OpenAI's strict mode, pydantic, OpenAPI 3.0, MCP tools, Kubernetes CRDs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from structgen.grammar import report_schema
from structgen.validate import Validator

Accepts = Callable[..., bool]

D7 = "http://json-schema.org/draft-07/schema#"


def check(accepts: Accepts, schema: Any, valid: list[Any], invalid: list[Any], **options: Any) -> None:
    """What the grammar accepts and rejects, and that the validator says the same."""
    validator = Validator(schema)
    for value in valid:
        assert accepts(schema, value, **options), value
        assert validator.errors_in_value(value) == []
    for value in invalid:
        assert not accepts(schema, value, **options), value
        assert validator.errors_in_value(value)


# --- OpenAI's strict mode: everything required, nothing else, null by union -----------------------------------------

STEPS = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        "final_answer": {"type": ["string", "null"]},
        "confidence": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]},
        "unit": {"type": ["string", "null"], "enum": ["m", "s", None]},
    },
    "required": ["steps", "final_answer", "confidence", "unit"],
    "additionalProperties": False,
    "$defs": {
        "step": {
            "type": "object",
            "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
            "required": ["explanation", "output"],
            "additionalProperties": False,
        }
    },
}
INTERFACE = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "The kind of element", "enum": ["div", "button", "field"]},
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["type", "label", "children"],
    "additionalProperties": False,
}


def test_openai_strict_mode(accepts: Accepts) -> None:
    step = {"explanation": "add", "output": "4"}
    answer = {"steps": [step], "final_answer": "4", "confidence": 0.5, "unit": "m"}
    check(
        accepts,
        STEPS,
        [answer, {**answer, "steps": [], "final_answer": None, "confidence": None, "unit": None}],
        [{**answer, "confidence": 2}, {**answer, "more": 1}, {**answer, "unit": "km"}, {"steps": [step]}],
    )
    leaf = {"type": "field", "label": "Name", "children": []}
    check(
        accepts,
        INTERFACE,
        [leaf, {"type": "div", "label": "", "children": [leaf, {**leaf, "children": [leaf]}]}],
        [{**leaf, "type": "span"}, {"type": "div", "label": "", "children": [{**leaf, "x": 1}]}, {"type": "div"}],
    )


# --- pydantic v2 ----------------------------------------------------------------------------------------------------


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[str], Field(max_length=3)] = []
    chases: Optional[Cat] = None  # noqa: UP045


class Colour(Enum):
    red = "red"
    blue = "blue"


class Owner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=20, pattern="^[A-Z]")]
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    born: date | None = None
    favourite: Colour = Colour.red
    ident: UUID | None = None
    seen: datetime | None = None
    debt: Annotated[Decimal, Field(max_digits=6, decimal_places=2)] | None = None
    scores: dict[str, float] = {}
    place: tuple[int, int] | None = None


class Tree(BaseModel):
    label: str
    children: list[Tree] = []
    parent_of: dict[str, Tree] | None = None


OWNER = {
    "name": "Ada",
    "pets": [{"kind": "cat", "lives": 3}, {"kind": "dog", "tricks": ["sit"], "chases": {"kind": "cat"}}],
}


def test_pydantic_models(accepts: Accepts) -> None:
    full = {
        **OWNER,
        "born": "1815-12-10",
        "favourite": "blue",
        "ident": "3fa85f64-5717-4562-b3fc-2c963f66afa6",
        "seen": "2024-01-01T10:00:00Z",
        "debt": "12.50",
        "scores": {"a": 1.5},
        "place": [1, 2],
    }
    check(
        accepts,
        Owner.model_json_schema(),
        [OWNER, full, {**OWNER, "born": None, "pets": []}],
        [
            {**OWNER, "name": "ada"},
            {**OWNER, "name": "A" * 21},
            {**OWNER, "pets": [{"kind": "cat", "lives": 10}]},
            {**OWNER, "pets": [{"kind": "cow"}]},
            {**OWNER, "pets": [{"lives": 1}]},
            {**OWNER, "favourite": "green"},
            {**OWNER, "unknown": 1},
            {**OWNER, "born": "yesterday"},
            {**OWNER, "place": [1]},
        ],
        property_order="any",
    )
    Owner.model_validate(full)


def test_recursive_pydantic_models(accepts: Accepts) -> None:
    leaf = {"label": "a", "children": []}
    check(
        accepts,
        Tree.model_json_schema(),
        [leaf, {"label": "b", "children": [leaf, leaf], "parent_of": {"x": leaf}}, {"label": "c", "parent_of": None}],
        [{"children": []}, {"label": "b", "children": [{"label": 1}]}, {"label": "b", "parent_of": {"x": {}}}],
    )


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_pydantic_schemas_are_enforced_as_a_whole(mode: Any) -> None:
    kinds: list[Any] = [Owner, Tree, list[Cat | Dog], dict[str, Colour], Literal["a", 1, None]]
    for kind in kinds:
        report = report_schema(TypeAdapter(kind).json_schema(mode=mode))
        assert report.is_enforced
        odd = [one.keyword for one in report.findings if one.status == "annotation" and one.reason != "an annotation"]
        assert odd == []


# --- OpenAPI 3.0 ----------------------------------------------------------------------------------------------------

PET = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "format": "int64", "example": 10},
        "name": {"type": "string", "example": "doggie", "xml": {"name": "pet-name"}},
        "nick": {"type": "string", "nullable": True, "maxLength": 5},
        "tags": {"type": "array", "nullable": True, "items": {"$ref": "#/components/schemas/Tag"}},
        "status": {"type": "string", "enum": ["available", "sold"], "nullable": True},
        "mood": {"type": "string", "enum": ["good", None], "nullable": True},
        "owner": {"nullable": True, "allOf": [{"$ref": "#/components/schemas/Tag"}]},
        "price": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    },
    "externalDocs": {"url": "https://example.com"},
    "discriminator": {"propertyName": "petType"},
    "x-internal": True,
    "components": {"schemas": {"Tag": {"type": "object", "properties": {"name": {"type": "string"}}}}},
}


def test_openapi(accepts: Accepts) -> None:
    pet = {"id": 1, "name": "Rex"}
    check(
        accepts,
        PET,
        [
            pet,
            {**pet, "nick": None, "tags": None},
            {**pet, "nick": "R", "tags": [{"name": "t"}], "status": "sold"},
            {**pet, "mood": None},
            {**pet, "price": 0.5},
        ],
        [
            {**pet, "nick": 1},
            {**pet, "nick": "R" * 6},
            {**pet, "tags": [None]},
            {**pet, "status": None},  # the list of values does not have it
            {**pet, "owner": None},  # no type beside nullable
            {**pet, "name": None},
            {**pet, "price": 0},
        ],
    )
    report = report_schema(PET, strict_keywords=False)
    assert report.is_enforced
    fates = {one.pointer: one.status for one in report.findings}
    assert fates["/properties/nick/nullable"] == "enforced"
    for pointer in ("/externalDocs", "/discriminator", "/x-internal", "/properties/id/example", "/properties/name/xml"):
        assert fates[pointer] == "annotation"


def test_nullable_is_no_keyword_of_any_draft(accepts: Accepts) -> None:
    schema = {"type": "string", "nullable": True}
    check(accepts, schema, [None, "a"], [1])
    check(accepts, {"type": "string", "nullable": False}, ["a"], [None])
    check(accepts, {"$schema": D7, **schema}, ["a"], [None])
    check(accepts, {"type": ["string", "integer"], "nullable": True}, [None, "a", 1], [True])
    report = report_schema({"$schema": D7, **schema})
    assert [one.reason for one in report.findings if one.keyword == "nullable"] == ["not a keyword of draft-07"]


def test_strict_keywords_take_extensions_and_openapi() -> None:
    for name in ("x-anything", "example", "nullable", "discriminator"):
        assert report_schema({name: True}, strict_keywords=True).is_enforced
    assert not report_schema({"$schema": D7, "nulable": True}, strict_keywords=True).is_enforced


# --- tools of the Model Context Protocol ----------------------------------------------------------------------------

TOOL = {
    "name": "search_issues",
    "description": "Search the issues of a repository",
    "inputSchema": {
        "$schema": D7,
        "type": "object",
        "properties": {
            "repository": {"type": "string", "pattern": "^[\\w.-]+/[\\w.-]+$", "description": "owner/name"},
            "state": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
            "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
            "since": {"type": "string", "format": "date-time"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 30},
        },
        "required": ["repository"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True},
}


def test_tools(accepts: Accepts) -> None:
    call = {"repository": "a/b", "state": "all", "labels": ["x"], "since": "2024-01-01T00:00:00Z", "limit": 100}
    check(
        accepts,
        TOOL["inputSchema"],
        [call, {"repository": "a/b"}],
        [{"state": "all"}, {**call, "limit": 101}, {**call, "repository": "a b"}, {**call, "more": 1}],
    )
    check(accepts, {"type": "object"}, [{}, {"anything": [1]}], [[], None])
    check(accepts, {"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}])


# --- custom resources of Kubernetes ---------------------------------------------------------------------------------

CRD = {
    "description": "A rollout of a service",
    "type": "object",
    "required": ["spec"],
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["replicas", "selector"],
            "properties": {
                "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
                "maxSurge": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "pattern": "^((100|[0-9]{1,2})%|[0-9]+)$",
                    "x-kubernetes-int-or-string": True,
                },
                "port": {"x-kubernetes-int-or-string": True},
                "selector": {
                    "type": "object",
                    "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
                    "x-kubernetes-map-type": "atomic",
                },
                "template": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "x-kubernetes-preserve-unknown-fields": True,
                },
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": {
                        "type": "object",
                        "required": ["type", "status"],
                        "properties": {
                            "type": {"type": "string", "maxLength": 316},
                            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                            "lastTransitionTime": {"type": "string", "format": "date-time", "nullable": True},
                        },
                    },
                },
            },
            "x-kubernetes-validations": [{"rule": "self.replicas <= 10", "message": "at most ten"}],
        },
    },
}  # fmt: skip


def test_custom_resources(accepts: Accepts) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}
    template = {"apiVersion": "v1", "kind": "Pod", "spec": {"x": 1}}
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": None}
    for extra in (
        {}, {"maxSurge": 1}, {"maxSurge": "25%"}, {"port": 80}, {"port": "http"}, {"template": template},
        {"conditions": [condition]},
    ):  # fmt: skip
        value = {"apiVersion": "e.org/v1", "kind": "Rollout", "metadata": {"name": "a"}, "spec": {**spec, **extra}}
        assert accepts(CRD, value, property_order="any"), value
    for wrong in (
        {"maxSurge": "many"}, {"maxSurge": 1.5}, {"port": True}, {"port": None}, {"template": {"kind": "Pod"}},
        {"template": {**template, "kind": ""}}, {"conditions": [{"type": "Ready"}]}, {"replicas": -1},
    ):  # fmt: skip
        assert not accepts(CRD, {"spec": {**spec, **wrong}}, property_order="any"), wrong
    assert accepts({"x-kubernetes-int-or-string": True, "nullable": True}, None)
    assert report_schema(CRD, strict_keywords=True).is_enforced


def test_extensions_of_kubernetes_are_no_keywords_of_any_draft(accepts: Accepts) -> None:
    schema = {"$schema": D7, "x-kubernetes-int-or-string": True}
    assert accepts(schema, True)
    assert json.dumps(report_schema(schema).as_dict())
