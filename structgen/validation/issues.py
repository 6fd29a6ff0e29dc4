"""Sentences for validation errors: values shown as JSON and short, whatever the size of the instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structgen.validation.pointers import from_path
from structgen.validation.show import show


def describe(error: Any) -> str:
    """One sentence for a `jsonschema` error."""
    if error.validator is None:
        return "nothing is allowed here"
    sentence = _SENTENCES.get(error.validator)
    return sentence(error) if sentence else str(error.message)


def _type(error: Any) -> str:
    wanted = error.validator_value
    names = " or ".join(wanted) if isinstance(wanted, list) else wanted
    return f"{show(error.instance)} is not of type {names}"


def _alternatives(error: Any) -> str:
    if error.validator == "oneOf" and not error.context:
        return str(error.message)
    closest = max(error.context, key=lambda nested: len(nested.absolute_path), default=None)
    if closest is None:
        return "matches none of the alternatives"
    place = from_path(closest.absolute_path) or "the root"
    return f"matches none of the alternatives; closest: {place}: {describe(closest)}"


def _size(noun: str, bound: str) -> Callable[[Any], str]:
    def sentence(error: Any) -> str:
        return f"has {len(error.instance)} {noun}, {bound} {show(error.validator_value)}"

    return sentence


_SENTENCES: dict[str, Callable[[Any], str]] = {
    "type": _type,
    "anyOf": _alternatives,
    "oneOf": _alternatives,
    "not": lambda error: f"{show(error.instance)} is what `not` forbids",
    "minLength": _size("characters", "needs at least"),
    "maxLength": _size("characters", "may have at most"),
    "minItems": _size("items", "needs at least"),
    "maxItems": _size("items", "may have at most"),
    "minProperties": _size("properties", "needs at least"),
    "maxProperties": _size("properties", "may have at most"),
}
