"""Equality of JSON values: 1 equals 1.0, true does not equal 1, objects have no order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from decimal import Decimal
from typing import Any


def key_of(value: Any) -> Hashable:
    """A hashable stand-in: two JSON values are equal exactly when their keys are.

    Python already makes equal ints and Decimals hash alike; the tags keep types apart.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | Decimal):
        return ("number", value)
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    return ("object", frozenset((name, key_of(child)) for name, child in value.items()))


class Choices(list[Any]):
    """The values of an `enum`, with their keys at hand."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.keys = frozenset(map(key_of, self))


def all_different(values: list[Any]) -> bool:
    return len({key_of(value) for value in values}) == len(values)
