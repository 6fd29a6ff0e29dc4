"""The assertions of one schema object, without the schemas it combines, as a shape."""

from __future__ import annotations

from decimal import Decimal

from structgen.grammar.errors import GrammarError, GrammarLimitError, UnsupportedSchemaError
from structgen.grammar.formats import FORMATS
from structgen.grammar.json_number import NumberRange
from structgen.grammar.json_schema.document import Place, SchemaDocument, escape
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.openapi import types_of
from structgen.grammar.json_schema.shapes import (
    ANYTHING,
    NOTHING,
    ArrayShape,
    Conjunction,
    Contains,
    ObjectShape,
    OtherNames,
    Shape,
    TextShape,
    conjoin,
)
from structgen.grammar.json_schema.values import exact, json_key
from structgen.grammar.regex_tree import MAX_COUNT

_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_TEXT = frozenset({"minLength", "maxLength", "pattern", "format"})
_ARRAY = frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems"})
_OBJECT = frozenset(
    {
        "properties", "required", "additionalProperties", "patternProperties",
        "propertyNames", "minProperties", "maxProperties",
    }
)  # fmt: skip
_ASSERTING = _NUMBER | _TEXT | _ARRAY | _OBJECT | {"type", "enum", "const"}


def own_shape(document: SchemaDocument, place: Place) -> Shape:
    """What the schema at `place` asserts by itself: all but what it combines.

    Raises:
        UnsupportedSchemaError: a format that is not enforced.
    """
    schema = place.schema
    if isinstance(schema, bool):
        return ANYTHING if schema else NOTHING
    if _ASSERTING.isdisjoint(schema):
        return ANYTHING
    types = types_of(schema, document.declared_draft)
    whole = document.options.integers_as == "1 or 1.0" and document.draft != 4
    shape = Shape(
        types is None or "null" in types,
        types is None or "boolean" in types,
        types is None or "boolean" in types,
        _number(place, types, whole),
        _text(document, place) if types is None or "string" in types else None,
        _array(document, place) if types is None or "array" in types else None,
        _object(document, place) if types is None or "object" in types else None,
    )
    if "enum" in schema:
        shape = shape.only_values(tuple({(json_key(value), str(value)): value for value in schema["enum"]}.values()))
    if "const" in schema and document.knows("const"):
        shape = shape.only_values((schema["const"],))
    return shape


def _number(place: Place, types: frozenset[str] | None, whole: bool) -> NumberRange | None:
    schema = place.schema
    if types is not None and types.isdisjoint(("number", "integer")):
        return None
    integer = types is not None and "number" not in types
    numbers = NumberRange(integer=integer, whole_fraction=integer and whole)
    if _NUMBER.isdisjoint(schema):
        return numbers
    low, high = _bound(place, "minimum"), _bound(place, "maximum")
    below, above = _bound(place, "exclusiveMinimum"), _bound(place, "exclusiveMaximum")
    if low is not None:
        numbers = numbers.meet(NumberRange(low=low, low_open=schema.get("exclusiveMinimum") is True))
    if high is not None:
        numbers = numbers.meet(NumberRange(high=high, high_open=schema.get("exclusiveMaximum") is True))
    if below is not None:
        numbers = numbers.meet(NumberRange(low=below, low_open=True))
    if above is not None:
        numbers = numbers.meet(NumberRange(high=above, high_open=True))
    multiple_of = _bound(place, "multipleOf")
    if multiple_of is not None:
        numbers = numbers.meet(NumberRange(multiple_of=multiple_of))
    return None if numbers.is_empty else numbers


def _bound(place: Place, name: str) -> Decimal | None:
    value = place.schema.get(name)
    if value is None or isinstance(value, bool):
        return None
    try:
        return exact(value)
    except GrammarError as error:
        error.pointer = f"{place.pointer}/{name}"
        raise


def _least(place: Place, name: str) -> int:
    """A lower limit; 0 where there is none."""
    value = place.schema.get(name, 0)
    if value > MAX_COUNT:
        raise GrammarLimitError(
            f"{name} is above {MAX_COUNT:,}", pointer=f"{place.pointer}/{name}", hint="no output is that long"
        )
    return int(value)


def _most(place: Place, name: str) -> int | None:
    """An upper limit; None where there is none, or where no output comes near it."""
    value = place.schema.get(name)
    return None if value is None or value > MAX_COUNT else int(value)


def _text(document: SchemaDocument, place: Place) -> TextShape | None:
    schema = place.schema
    if _TEXT.isdisjoint(schema):
        return TextShape()
    least, most = _least(place, "minLength"), _most(place, "maxLength")
    if most is not None and most < least:
        return None
    pattern, name = schema.get("pattern"), schema.get("format")
    return TextShape(
        least,
        most,
        ((pattern, f"{place.pointer}/pattern"),) if pattern is not None else (),
        ((name, f"{place.pointer}/format"),) if name is not None and _asserts_format(document, place, name) else (),
    )


def _asserts_format(document: SchemaDocument, place: Place, name: str) -> bool:
    if document.options.format == "annotate":
        return False
    if name in FORMATS:
        return True
    pointer = f"{place.pointer}/format"
    if document.options.unknown_format == "refuse":
        raise UnsupportedSchemaError(
            f"unknown format {name!r}", pointer=pointer, hint="use a pattern, or unknown_format='annotate'"
        )
    return False


def _array(document: SchemaDocument, place: Place) -> ArrayShape | None:
    schema = place.schema
    if _ARRAY.isdisjoint(schema):
        return ArrayShape()
    least, most = _least(place, "minItems"), _most(place, "maxItems")
    if most is not None and most < least:
        return None
    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ()
    items = schema.get("items")
    if "prefixItems" in schema and document.knows("prefixItems"):
        prefix = _places(document, place, "prefixItems")
        if isinstance(items, list):
            raise UnsupportedSchemaError(
                "prefixItems and a list of items are two spellings of one thing",
                pointer=f"{place.pointer}/items",
                hint="leave out one of them, or declare a draft with $schema",
            )
        if items is not None:
            rest = (document.child(place, "items"),)
    elif isinstance(items, list):
        # Up to 2019-09 a list of items is what is now prefixItems, and additionalItems is what is now items.
        prefix = _places(document, place, "items")
        if "additionalItems" in schema and document.knows("additionalItems"):
            rest = (document.child(place, "additionalItems"),)
    elif items is not None:
        rest = (document.child(place, "items"),)
    contains = _contains(document, place)
    if any(upper is not None and upper < lower for _, lower, upper in contains):
        return None
    return ArrayShape(least, most, prefix, rest, contains, schema.get("uniqueItems") is True)


def _contains(document: SchemaDocument, place: Place) -> tuple[Contains, ...]:
    if "contains" not in place.schema or not document.knows("contains"):
        return ()
    # Up to draft-07 one item suffices.
    least = _least(place, "minContains") if "minContains" in place.schema and document.knows("minContains") else 1
    most = _most(place, "maxContains") if document.knows("maxContains") else None
    return (((document.child(place, "contains"),), least, most),) if least or most is not None else ()


def _places(document: SchemaDocument, place: Place, name: str) -> tuple[Conjunction, ...]:
    return tuple((document.child(place, name, index),) for index in range(len(place.schema[name])))


def _object(document: SchemaDocument, place: Place) -> ObjectShape | None:
    schema = place.schema
    if _OBJECT.isdisjoint(schema):
        return ObjectShape()
    names = schema.get("properties", ())
    required = dict.fromkeys(schema.get("required", ()))
    rest: Conjunction = ()
    if "additionalProperties" in schema and schema["additionalProperties"] is not True:
        rest = (document.child(place, "additionalProperties"),)
    patterns = tuple(
        (
            pattern,
            f"{place.pointer}/patternProperties/{escape(pattern)}",
            (document.child(place, "patternProperties", pattern),),
        )
        for pattern in schema.get("patternProperties", ())
    )
    others = OtherNames(patterns, rest)
    members: dict[str, Conjunction] = {}
    for name in dict.fromkeys((*names, *required)):
        matching = [pattern for pattern, _, _ in patterns if name_matches(pattern, name)]
        # A required name without a schema of its own is a member that the schema for other names describes.
        listed: Conjunction = (document.child(place, "properties", name),) if name in names else ()
        if name not in names or matching:
            listed = conjoin(listed, others.schema_of(matching))
        members[name] = listed
    rule: Conjunction = ()
    if schema.get("propertyNames", True) is not True and document.knows("propertyNames"):
        rule = (document.child(place, "propertyNames"),)
    least, most = _least(place, "minProperties"), _most(place, "maxProperties")
    if most is not None and most < max(least, len(required)):
        return None
    return ObjectShape(
        tuple(members.items()), frozenset(required), (others,) if patterns or rest else (), rule, least, most
    )
