"""Keywords where `jsonschema` is not exact, and the messages of all of them.

A keyword is a function (validator, value of the keyword, instance, schema) -> errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jsonschema.exceptions import ValidationError
from referencing.jsonschema import lookup_recursive_ref

from structgen.validation.equality import Choices, all_different, key_of
from structgen.validation.evaluated import evaluated_items, evaluated_properties
from structgen.validation.formats import FORMATS
from structgen.validation.numbers import is_multiple, is_number
from structgen.validation.patterns import matches
from structgen.validation.show import show

Errors = Iterator[ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Errors]


def multiple_of(_validator: Any, step: Any, instance: Any, _schema: Any) -> Errors:
    if is_number(instance) and not is_multiple(instance, step):
        yield ValidationError(f"{show(instance)} is not a multiple of {show(step)}")


def minimum(_validator: Any, limit: Any, instance: Any, schema: Any) -> Errors:
    if schema.get("exclusiveMinimum") is True:  # draft 4
        yield from exclusive_minimum(_validator, limit, instance, schema)
    elif is_number(instance) and instance < limit:
        yield ValidationError(f"{show(instance)} is less than the minimum of {show(limit)}")


def maximum(_validator: Any, limit: Any, instance: Any, schema: Any) -> Errors:
    if schema.get("exclusiveMaximum") is True:  # draft 4
        yield from exclusive_maximum(_validator, limit, instance, schema)
    elif is_number(instance) and instance > limit:
        yield ValidationError(f"{show(instance)} is greater than the maximum of {show(limit)}")


def exclusive_minimum(_validator: Any, limit: Any, instance: Any, _schema: Any) -> Errors:
    if is_number(limit) and is_number(instance) and instance <= limit:
        yield ValidationError(f"{show(instance)} is not greater than {show(limit)}")


def exclusive_maximum(_validator: Any, limit: Any, instance: Any, _schema: Any) -> Errors:
    if is_number(limit) and is_number(instance) and instance >= limit:
        yield ValidationError(f"{show(instance)} is not less than {show(limit)}")


def nullable(check: Keyword) -> Keyword:
    """`type` where OpenAPI 3.0 may be meant: `nullable: true` beside it adds null."""

    def types(validator: Any, names: Any, instance: Any, schema: Any) -> Errors:
        if instance is not None or schema.get("nullable") is not True:
            yield from check(validator, names, instance, schema)

    return types


def enum(_validator: Any, values: Any, instance: Any, _schema: Any) -> Errors:
    choices = values if isinstance(values, Choices) else Choices(values)
    if key_of(instance) not in choices.keys:
        yield ValidationError(f"{show(instance)} is not one of {show(list(values))}")


def const(_validator: Any, value: Any, instance: Any, _schema: Any) -> Errors:
    if key_of(instance) != key_of(value):
        yield ValidationError(f"{show(instance)} is not {show(value)}")


def unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Errors:
    if wanted and isinstance(instance, list) and not all_different(instance):
        yield ValidationError(f"{show(instance)} has items that are equal")


def pattern(_validator: Any, regex: Any, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, str) and not matches(regex, instance):
        yield ValidationError(f"{show(instance)} does not match the pattern {show(regex)}")


def format_(_validator: Any, name: Any, instance: Any, _schema: Any) -> Errors:
    check = FORMATS.get(name)
    if check is not None and isinstance(instance, str) and not check(instance):
        yield ValidationError(f"{show(instance)} is not a {name}")


def pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, dict):
        for regex, subschema in patterns.items():
            for key, value in instance.items():
                if matches(regex, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=regex)


def additional_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key in declared or any(matches(regex, key) for regex in patterns):
            continue
        if subschema is False:
            yield ValidationError(f"the property {show(key)} is not allowed here", path=[key])
        else:
            yield from validator.descend(value, subschema, path=key)


def unevaluated_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    rest = {key: value for key, value in schema.items() if key != "unevaluatedProperties"}
    seen = evaluated_properties(validator, instance, rest)
    for key in instance:
        if key not in seen and not validator.evolve(schema=subschema).is_valid(instance[key]):
            yield ValidationError(f"the property {show(key)} is not allowed here (nothing evaluates it)", path=[key])


def unevaluated_items(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, list):
        return
    rest = {key: value for key, value in schema.items() if key != "unevaluatedItems"}
    seen = evaluated_items(validator, instance, rest)
    for index, item in enumerate(instance):
        if index not in seen and not validator.evolve(schema=subschema).is_valid(item):
            yield ValidationError("the item is not allowed here (nothing evaluates it)", path=[index])


def contains(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    """With the counts that came in 2019-09; older dialects do not know `minContains`."""
    if not isinstance(instance, list):
        return
    counted = validator.contains_counts
    least = schema.get("minContains", 1) if counted else 1
    most = schema.get("maxContains") if counted else None
    child = validator.evolve(schema=subschema)
    found = sum(1 for item in instance if child.is_valid(item))
    if found < least:
        yield ValidationError(f"{found} items match `contains`, at least {show(least)} must")
    elif most is not None and found > most:
        yield ValidationError(f"{found} items match `contains`, at most {show(most)} may", validator="maxContains")


def items(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
    """One schema for the items after `prefixItems`, or the older list of schemas."""
    if not isinstance(instance, list):
        return
    if isinstance(value, list):
        for index, (item, subschema) in enumerate(zip(instance, value, strict=False)):
            yield from validator.descend(item, subschema, path=index, schema_path=index)
        return
    start = len(schema.get("prefixItems", ())) if "prefixItems" in validator.VALIDATORS else 0
    yield from _rest(validator, value, instance, start)


def additional_items(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
    listed = schema.get("items")
    if isinstance(instance, list) and isinstance(listed, list):
        yield from _rest(validator, value, instance, len(listed))


def _rest(validator: Any, subschema: Any, instance: list[Any], start: int) -> Errors:
    for index in range(start, len(instance)):
        if subschema is False:
            yield ValidationError(f"the array may have at most {start} items", path=[index])
            return
        yield from validator.descend(instance[index], subschema, path=index)


def required(_validator: Any, names: Any, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, dict):
        yield from (
            ValidationError(f"the required property {show(name)} is missing") for name in names if name not in instance
        )


def dependencies(validator: Any, value: Any, instance: Any, _schema: Any) -> Errors:
    """Both halves of the older keyword: a list of keys, or a schema for the whole object."""
    if not isinstance(instance, dict):
        return
    for key, dependency in value.items():
        if key not in instance:
            continue
        if isinstance(dependency, list):
            yield from (
                ValidationError(f"{show(name)} must be there when {show(key)} is")
                for name in dependency
                if name not in instance
            )
        else:
            yield from validator.descend(instance, dependency, schema_path=key)


def one_of(validator: Any, subschemas: Any, instance: Any, _schema: Any) -> Errors:
    context: list[ValidationError] = []
    accepted = []
    for index, subschema in enumerate(subschemas):
        errors = list(validator.descend(instance, subschema, schema_path=index))
        if not errors:
            accepted.append(index)
        context.extend(errors)
    if len(accepted) > 1:
        yield ValidationError(f"matches several of the alternatives ({', '.join(map(str, accepted))}), not exactly one")
    elif not accepted:
        yield ValidationError("matches none of the alternatives", context=context)


def reference(keyword: str) -> Keyword:
    """`$ref` and its kin; the keyword becomes a step of the schema pointer."""

    def follow(validator: Any, target: Any, instance: Any, _schema: Any) -> Errors:
        resolved = validator.resolve(keyword, target)
        for error in validator.descend(instance, resolved.contents, resolver=resolved.resolver):
            if keyword == "$ref":  # jsonschema adds the step for the others
                error.schema_path.appendleft("$ref")
            yield error

    return follow


def resolve(validator: Any, keyword: str, target: str) -> Any:
    """What a reference points at, as `referencing` resolves it."""
    if keyword == "$recursiveRef":
        return lookup_recursive_ref(validator._resolver)
    return validator._resolver.lookup(target)
