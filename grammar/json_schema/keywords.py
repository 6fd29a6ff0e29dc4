"""Every keyword of drafts 4 to 2020-12: where it exists, what its value must be, and whether it is enforced.

One table, used to check schemas, to refuse what is not enforced, to report, and to write the documentation: after a
change here or in `formats.py`, `python -m structgen.grammar.json_schema.keyword_table` writes the tables in
`grammar/README.md` anew (a test fails while they are stale).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal

Status = Literal["enforced", "annotation", "structure"]
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
LATEST = 2020
MAX_COUNT_DIGITS = 300
OPENAPI = 30  # no draft has this number


@dataclass(frozen=True, slots=True)
class Keyword:
    """`since` and `until` are drafts: 4, 6, 7, 2019, 2020 (or OPENAPI, where no draft is declared and OpenAPI 3.0 or
    Kubernetes may be meant). `value` names the rule in `problem_with`."""

    status: Status
    value: str
    since: int = 4
    until: int = LATEST

    @property
    def holds_schemas(self) -> bool:
        """Whether there are schemas in its value."""
        return "schema" in self.value or self.value == "dependencies"


def _openapi(status: Status) -> Keyword:
    return Keyword(status, "any", OPENAPI, OPENAPI)


KEYWORDS: Mapping[str, Keyword] = {
    "type": Keyword("enforced", "types"),
    "enum": Keyword("enforced", "array"),
    "const": Keyword("enforced", "any", 6),
    "minimum": Keyword("enforced", "number"),
    "maximum": Keyword("enforced", "number"),
    "exclusiveMinimum": Keyword("enforced", "number or boolean"),
    "exclusiveMaximum": Keyword("enforced", "number or boolean"),
    "multipleOf": Keyword("enforced", "positive"),
    "minLength": Keyword("enforced", "count"),
    "maxLength": Keyword("enforced", "count"),
    "pattern": Keyword("enforced", "string"),
    "format": Keyword("enforced", "string"),
    "items": Keyword("enforced", "schema or schemas"),
    "prefixItems": Keyword("enforced", "schemas", 2020),
    "additionalItems": Keyword("enforced", "schema", 4, 2019),
    "minItems": Keyword("enforced", "count"),
    "maxItems": Keyword("enforced", "count"),
    "uniqueItems": Keyword("enforced", "boolean"),
    "contains": Keyword("enforced", "schema", 6),
    "minContains": Keyword("enforced", "count", 2019),
    "maxContains": Keyword("enforced", "count", 2019),
    "properties": Keyword("enforced", "schema map"),
    "patternProperties": Keyword("enforced", "schema map"),
    "required": Keyword("enforced", "strings"),
    "additionalProperties": Keyword("enforced", "schema"),
    "propertyNames": Keyword("enforced", "schema", 6),
    "minProperties": Keyword("enforced", "count"),
    "maxProperties": Keyword("enforced", "count"),
    "allOf": Keyword("enforced", "schemas"),
    "anyOf": Keyword("enforced", "schemas"),
    "oneOf": Keyword("enforced", "schemas"),
    "$ref": Keyword("enforced", "string"),
    "$dynamicRef": Keyword("enforced", "string", 2020),
    "$recursiveRef": Keyword("enforced", "string", 2019, 2019),
    "$defs": Keyword("structure", "schema map"),
    "definitions": Keyword("structure", "schema map"),
    "$schema": Keyword("structure", "string"),
    "$id": Keyword("structure", "string"),
    "id": Keyword("structure", "any", 4, 4),
    "$anchor": Keyword("structure", "string", 2019),
    "$dynamicAnchor": Keyword("structure", "string", 2020),
    "$recursiveAnchor": Keyword("structure", "boolean", 2019, 2019),
    "$vocabulary": Keyword("structure", "any", 2019),
    "$comment": Keyword("annotation", "string", 7),
    "title": Keyword("annotation", "string"),
    "description": Keyword("annotation", "string"),
    "default": Keyword("annotation", "any"),
    "examples": Keyword("annotation", "any"),
    "deprecated": Keyword("annotation", "any", 2019),
    "readOnly": Keyword("annotation", "any"),
    "writeOnly": Keyword("annotation", "any"),
    "contentMediaType": Keyword("annotation", "any"),
    "contentEncoding": Keyword("annotation", "any"),
    "contentSchema": Keyword("annotation", "any", 2019),
    "nullable": _openapi("enforced"),
    "x-kubernetes-int-or-string": _openapi("enforced"),
    "x-kubernetes-embedded-resource": _openapi("enforced"),
    "x-kubernetes-preserve-unknown-fields": _openapi("annotation"),
    "x-kubernetes-validations": _openapi("annotation"),
    "example": _openapi("annotation"),
    "discriminator": _openapi("annotation"),
    "externalDocs": _openapi("annotation"),
    "xml": _openapi("annotation"),
    "not": Keyword("enforced", "schema"),
    "if": Keyword("enforced", "schema", 7),
    "then": Keyword("enforced", "schema", 7),
    "else": Keyword("enforced", "schema", 7),
    "dependencies": Keyword("enforced", "dependencies"),  # still understood after draft-07
    "dependentRequired": Keyword("enforced", "string lists", 2019),
    "dependentSchemas": Keyword("enforced", "schema map", 2019),
    "unevaluatedItems": Keyword("enforced", "schema", 2019),
    "unevaluatedProperties": Keyword("enforced", "schema", 2019),
}

# Where no draft is declared, all but `id` are understood: there it is rather the name of a member.
ALL_SPELLINGS: Mapping[str, Keyword] = {name: keyword for name, keyword in KEYWORDS.items() if name != "id"}
DRAFT_NAMES = {4: "draft-04", 6: "draft-06", 7: "draft-07", 2019: "2019-09", 2020: "2020-12", OPENAPI: "OpenAPI 3.0"}

_BY_TYPE = {
    "number": "multipleOf minimum maximum exclusiveMinimum exclusiveMaximum",
    "string": "minLength maxLength pattern format contentMediaType contentEncoding contentSchema",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains "
    "unevaluatedItems",
    "object": "properties patternProperties additionalProperties required propertyNames minProperties maxProperties "
    "dependencies dependentRequired dependentSchemas unevaluatedProperties",
}
# The type that a keyword speaks of; about values of other types it says nothing.
APPLIES_TO: Mapping[str, str] = {name: kind for kind, names in _BY_TYPE.items() for name in names.split()}


def known(name: str, draft: int) -> Keyword | None:
    """The keyword in a draft; None when that draft does not have it."""
    keyword = KEYWORDS.get(name)
    return keyword if keyword is not None and keyword.since <= draft <= keyword.until else None


def keyword_in(name: str, declared_draft: int | None) -> Keyword | None:
    """The keyword in a schema of that declared draft; None when it is none there."""
    return ALL_SPELLINGS.get(name) if declared_draft is None else known(name, declared_draft)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def problem_with(rule: str, value: Any) -> str | None:
    """What is wrong with a keyword's value, or None."""
    if rule == "any":
        return None
    if rule == "types":
        names = value if isinstance(value, list) else [value]
        for name in names:
            if name not in TYPES:
                return f"{name!r} is no type; types are {', '.join(TYPES)}"
        return None if names else "an empty list of types"
    return None if _FITS[rule](value) else f"must be {_DESCRIPTION[rule]}, not {_shown(value)}"


def hint_for(rule: str, value: Any) -> str:
    """How to repair a keyword's value."""
    if rule == "types":
        names = value if isinstance(value, list) else [value]
        wrong = next((name for name in names if name not in TYPES), None)
        near = get_close_matches(str(wrong).lower(), (*TYPES, *_OTHER_NAMES), 1, 0.5)
        return f"did you mean {_OTHER_NAMES.get(near[0], near[0])!r}?" if near else "leave type out to allow all"
    return f"give {_DESCRIPTION[rule]}, or leave the keyword out"


# What other languages call the types.
_OTHER_NAMES = {
    "int": "integer", "float": "number", "double": "number", "decimal": "number", "bool": "boolean", "str": "string",
    "text": "string", "list": "array", "dict": "object", "map": "object", "none": "null", "nil": "null",
}  # fmt: skip


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_count(value: Any) -> bool:
    if not is_number(value) or not value >= 0 or value == float("inf"):
        return False
    # A decimal's exponent may be huge: look at it before making an integer of it.
    return Decimal(value).adjusted() > MAX_COUNT_DIGITS or value == int(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_schema(one) for one in value.values())


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(_is_schema(one) for one in value)


_FITS = {
    "array": lambda v: isinstance(v, list),
    "boolean": lambda v: isinstance(v, bool),
    "count": _is_count,
    "dependencies": lambda v: isinstance(v, dict) and all(_is_schema(o) or _are_strings(o) for o in v.values()),
    "number": is_number,
    "number or boolean": lambda v: is_number(v) or isinstance(v, bool),
    "positive": lambda v: is_number(v) and v > 0,
    "schema": _is_schema,
    "schema map": _is_map,
    "schema or schemas": lambda v: _is_schema(v) or _are_schemas(v),
    "schemas": _are_schemas,
    "string": lambda v: isinstance(v, str),
    "string lists": lambda v: isinstance(v, dict) and all(_are_strings(o) for o in v.values()),
    "strings": _are_strings,
}
_DESCRIPTION = {
    "array": "a list",
    "boolean": "true or false",
    "count": "a whole number from 0 on",
    "dependencies": "an object of schemas or lists of names",
    "number": "a number",
    "number or boolean": "a number (in draft-04 true or false)",
    "positive": "a number above 0",
    "schema": "a schema (an object, true or false)",
    "schema map": "an object of schemas",
    "schema or schemas": "a schema or a list of schemas",
    "schemas": "a list of schemas",
    "string": "a string",
    "string lists": "an object of lists of names",
    "strings": "a list of strings",
}
