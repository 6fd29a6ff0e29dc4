"""One validator class per draft: `jsonschema`'s, with the exact keywords put in."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.validators import extend
from referencing.jsonschema import specification_with

from structgen.validation import keywords
from structgen.validation.numbers import is_integer_literal, is_integral, is_number

FormatPolicy = Literal["assert", "annotate"]

DRAFT_4 = "http://json-schema.org/draft-04/schema"
DRAFT_6 = "http://json-schema.org/draft-06/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema"
DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
# What a schema without `$schema` is read as: 2020-12, with the older spellings and OpenAPI's `nullable` understood.
UNDECLARED = "undeclared"

_BASES = {
    DRAFT_4: Draft4Validator,
    DRAFT_6: Draft6Validator,
    DRAFT_7: Draft7Validator,
    DRAFT_2019_09: Draft201909Validator,
    DRAFT_2020_12: Draft202012Validator,
    UNDECLARED: Draft202012Validator,
}
LEGACY = frozenset({DRAFT_4, DRAFT_6, DRAFT_7})  # there, the siblings of `$ref` are ignored

_EXACT: dict[str, keywords.Keyword] = {
    "multipleOf": keywords.multiple_of,
    "minimum": keywords.minimum,
    "maximum": keywords.maximum,
    "exclusiveMinimum": keywords.exclusive_minimum,
    "exclusiveMaximum": keywords.exclusive_maximum,
    "enum": keywords.enum,
    "const": keywords.const,
    "uniqueItems": keywords.unique_items,
    "pattern": keywords.pattern,
    "format": keywords.format_,
    "patternProperties": keywords.pattern_properties,
    "additionalProperties": keywords.additional_properties,
    "unevaluatedProperties": keywords.unevaluated_properties,
    "unevaluatedItems": keywords.unevaluated_items,
    "contains": keywords.contains,
    "items": keywords.items,
    "additionalItems": keywords.additional_items,
    "required": keywords.required,
    "dependencies": keywords.dependencies,
    "dependentRequired": keywords.dependencies,
    "oneOf": keywords.one_of,
    "$ref": keywords.reference("$ref"),
    "$dynamicRef": keywords.reference("$dynamicRef"),
    "$recursiveRef": keywords.reference("$recursiveRef"),
}
# The keywords of the vocabulary that a metaschema may leave out.
_VALIDATION = frozenset(
    {"type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength"}
    | {"minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties"}
    | {"minProperties", "required", "dependentRequired"}
)


def normal_uri(uri: str) -> str:
    """A dialect's name without the empty fragment that older drafts carry."""
    return uri[:-1] if uri.endswith("#") else uri


def is_known(uri: str) -> bool:
    return uri in _BASES


@lru_cache(maxsize=64)
def validator_class(dialect: str, policy: FormatPolicy, without_validation: bool = False) -> Any:
    """The class of a dialect; its `evolve` stays among our classes when a subschema names another dialect."""
    base = _BASES[dialect]
    known = set(base.VALIDATORS) | _additions(dialect)
    exact = {name: check for name, check in _EXACT.items() if name in known}
    checks: Any = {**base.VALIDATORS, **exact}
    if dialect == UNDECLARED:
        checks["type"] = keywords.nullable(checks["type"])
    if policy == "annotate":
        del checks["format"]
    if without_validation:
        checks = {name: check for name, check in checks.items() if name not in _VALIDATION}
    made = extend(base, type_checker=_types(dialect))
    made.VALIDATORS = checks
    made.FORMAT_CHECKER = None
    made.contains_counts = dialect not in LEGACY
    made.contains_evaluates = dialect in {DRAFT_2020_12, UNDECLARED}
    made.resolve = keywords.resolve
    made.evolve = _evolve
    made.in_place = _in_place
    made.policy = policy
    return made


def _additions(dialect: str) -> set[str]:
    """Older keywords that newer dialects still understand."""
    if dialect == UNDECLARED:
        return {"dependencies", "additionalItems"}
    return {"dependencies"} if dialect in {DRAFT_2019_09, DRAFT_2020_12} else set()


def _types(dialect: str) -> Any:
    integer = is_integer_literal if dialect == DRAFT_4 else is_integral
    return _BASES[dialect].TYPE_CHECKER.redefine_many(
        {
            "number": lambda _checker, value: is_number(value),
            "integer": lambda _checker, value: integer(value),
        }
    )


def _evolve(self: Any, **changes: Any) -> Any:
    schema = changes.get("schema", self.schema)
    kind = type(self)
    if isinstance(schema, dict) and isinstance(schema.get("$schema"), str):
        declared = normal_uri(schema["$schema"])
        if is_known(declared):
            kind = validator_class(declared, self.policy)
    return kind(schema, registry=self._registry, _resolver=changes.get("_resolver", self._resolver))


def _in_place(self: Any, subschema: Any) -> Any:
    """A validator for a subschema of this one, with references read against the subschema's own base URI."""
    resource = specification_with(normal_uri(self.META_SCHEMA.get("$schema", DRAFT_2020_12))).create_resource(subschema)
    return self.evolve(schema=subschema, _resolver=self._resolver.in_subresource(resource))
