"""Which properties and items a schema has looked at: what `unevaluated*` is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from structgen.validation.patterns import matches

# Keywords that apply subschemas to the instance itself, and so pass on what those evaluated.
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def evaluated_properties(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
    """The keys of `instance` that `schema`, which accepts it, has evaluated."""
    if isinstance(schema, bool):
        return set()
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return set(instance)
    keys = {key for key in schema.get("properties", ()) if key in instance}
    for pattern in schema.get("patternProperties", ()):
        keys.update(key for key in instance if matches(pattern, key))
    for nested, subschema in _in_place(validator, instance, schema):
        keys |= evaluated_properties(nested, instance, subschema)
    return keys


def evaluated_items(validator: Any, instance: list[Any], schema: Any) -> set[int]:
    """The indexes of `instance` that `schema`, which accepts it, has evaluated."""
    if isinstance(schema, bool):
        return set()
    everything = set(range(len(instance)))
    items = schema.get("items")
    if "unevaluatedItems" in schema or isinstance(items, dict | bool):
        return everything
    prefix = items if isinstance(items, list) else []
    if "prefixItems" in validator.VALIDATORS:
        prefix = schema.get("prefixItems", prefix)
    if isinstance(items, list) and "additionalItems" in schema:
        return everything
    indexes = set(range(min(len(prefix), len(instance))))
    if "contains" in schema and validator.contains_evaluates:
        child = validator.evolve(schema=schema["contains"])
        indexes.update(index for index, item in enumerate(instance) if child.is_valid(item))
    for nested, subschema in _in_place(validator, instance, schema):
        indexes |= evaluated_items(nested, instance, subschema)
    return indexes


def _in_place(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(validator, subschema) for each subschema that was applied to the instance itself and accepts it."""
    for keyword in _REFERENCES:
        if keyword in schema and keyword in validator.VALIDATORS:
            resolved = validator.resolve(keyword, schema[keyword])
            yield validator.evolve(schema=resolved.contents, _resolver=resolved.resolver), resolved.contents
    for subschema in _candidates(validator, instance, schema):
        nested = validator.in_place(subschema)
        if nested.is_valid(instance):
            yield nested, subschema


def _candidates(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(keyword, ())
    if isinstance(instance, dict):
        for keyword in ("dependentSchemas", "dependencies"):
            yield from (s for key, s in schema.get(keyword, {}).items() if key in instance and not isinstance(s, list))
    if "if" in schema:
        yield schema["if"]
        branch = "then" if validator.in_place(schema["if"]).is_valid(instance) else "else"
        if branch in schema:
            yield schema[branch]
