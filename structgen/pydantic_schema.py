"""Pydantic's JSON schema of a type, bent to what a constraint means.

Pydantic describes what it would *accept*; a constraint says what to *write*. Where the two differ the schema is
narrowed to values that pydantic accepts: extra fields are not invented, a Decimal is a number, a set needs no
uniqueness in JSON (it is gained in parsing), a tagged union is a plain union, and years begin at 1 as in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from structgen.errors import OutputTypeError
from structgen.typed_dict import with_typed_dicts

# RFC 3339 knows a year 0000, Python's dates do not.
YEAR_FROM_1 = "^0{0,3}[1-9]"


class _OutputSchema(GenerateJsonSchema):
    """The hooks of pydantic's generator that are answered differently here."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number: JsonSchemaValue = {"type": "number"}
        names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
        return number | {name: _number(schema[key]) for key, name in names.items() if key in schema}  # type: ignore[literal-required]

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _without_uniqueness(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _without_uniqueness(super().frozenset_schema(schema))

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        union = super().tagged_union_schema(schema)
        union.pop("discriminator", None)
        # The tag tells the branches apart, so "exactly one" says no more than "one".
        if "oneOf" in union:
            union["anyOf"] = union.pop("oneOf")
        return union

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema), schema["cls"].model_config.get("extra"))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema), (schema.get("config") or {}).get("extra_fields_behavior"))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema), schema.get("extra_behavior"))

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        return super().date_schema(schema) | {"pattern": YEAR_FROM_1}

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        return super().datetime_schema(schema) | {"pattern": YEAR_FROM_1}


def json_schema_of(adapter: TypeAdapter[Any], name: str) -> dict[str, Any]:
    """The schema to generate with. Raises OutputTypeError when the type has none."""
    try:
        mode: JsonSchemaMode = "validation"
        return adapter.json_schema(schema_generator=_OutputSchema, mode=mode)
    except PydanticUserError as error:
        raise OutputTypeError(f"no JSON schema for {name}: {_first_line(error)}") from None


def adapter_of(output_type: Any, name: str) -> TypeAdapter[Any]:
    """Pydantic's parser for a type. Raises OutputTypeError for what pydantic does not know."""
    try:
        return TypeAdapter(with_typed_dicts(output_type))
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        raise OutputTypeError(
            f"{name} is not an output type: {_first_line(error)}",
            hint="give a pydantic model, dataclass, TypedDict, Literal, Enum, union, list[...], JSON schema, "
            "Regex(...) or Choice(...)",
        ) from None


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a schema, itself first; without recursion, since depth is the user's."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".:")


def _number(value: Any) -> int | float:
    return int(value) if value == int(value) else float(value)


def _without_uniqueness(schema: JsonSchemaValue) -> JsonSchemaValue:
    # With a least size duplicates could leave too few, so there uniqueness stays (and is enforced or refused).
    if "minItems" not in schema:
        schema.pop("uniqueItems", None)
    return schema


def _closed(schema: JsonSchemaValue, extra: str | None) -> JsonSchemaValue:
    if extra != "allow" and schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    return schema
