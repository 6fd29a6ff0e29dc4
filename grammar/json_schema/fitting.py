"""Validation of given values against shapes: for enum and const beside other keywords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structgen.grammar.errors import UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape, SomeMember
from structgen.grammar.json_schema.text import is_word
from structgen.grammar.json_schema.values import exact, json_key, type_of


class Fitting:
    """Validates; `shapes` expands a conjunction."""

    def __init__(self, shapes: Callable[[Conjunction], tuple[Shape, ...]]) -> None:
        self._shapes = shapes

    def admits(self, conjunction: Conjunction, value: Any) -> bool:
        """Whether a value is valid against a conjunction."""
        if not conjunction:
            return True
        return any(
            self.fits(shape, value)
            for shape in self._shapes(conjunction)
            if shape.values is None or Shape().only_values((value,)).meet(shape).values
        )

    def values(self, shape: Shape) -> tuple[Any, ...]:
        """The listed values of a shape that fit the rest of it.

        Raises:
            UnsupportedSchemaError: that depends on the list itself, since a part of a value refers back to it.
        """
        try:
            return tuple(value for value in shape.values or () if self.fits(shape, value))
        except UnsatisfiableError as error:
            raise UnsupportedSchemaError(
                "whether a listed value is valid depends on the list itself",
                pointer=error.pointer,
                hint="do not refer back to a schema with enum or const from within its members",
            ) from None

    def fits(self, shape: Shape, value: Any) -> bool:
        """Whether a value fits what a shape says about its type; `values` are not looked at."""
        kind = type_of(value)
        if kind == "null":
            return shape.null
        if kind == "boolean":
            return shape.true if value else shape.false
        if kind == "number":
            return shape.number is not None and shape.number.admits(exact(value))
        if kind == "string":
            return shape.text is not None and is_word(shape.text, value)
        if kind == "array":
            return shape.array is not None and self._array_fits(shape.array, value)
        return kind == "object" and shape.object is not None and self._object_fits(shape.object, value)

    def _array_fits(self, wanted: ArrayShape, value: list[Any]) -> bool:
        if len(value) < wanted.least or (wanted.most is not None and len(value) > wanted.most):
            return False
        if wanted.unique and len({json_key(one) for one in value}) < len(value):
            return False
        for schema, least, most in wanted.contains:
            matching = sum(self.admits(schema, one) for one in value)
            if matching < least or (most is not None and matching > most):
                return False
        return all(self.admits(wanted.item(index), one) for index, one in enumerate(value))

    def _object_fits(self, wanted: ObjectShape, value: dict[str, Any]) -> bool:
        if not wanted.required <= value.keys():
            return False
        if len(value) < wanted.least or (wanted.most is not None and len(value) > wanted.most):
            return False
        if wanted.names and not all(self.admits(wanted.names, name) for name in value):
            return False
        if not all(any(self._is_some(some, *one) for one in value.items()) for some in wanted.some):
            return False
        return all(self.admits(wanted.schema_of(name, name_matches), one) for name, one in value.items())

    def _is_some(self, some: SomeMember, name: str, value: Any) -> bool:
        if name in some.taken or any(name_matches(pattern, name) for pattern in some.unmatched):
            return False
        if not all(name_matches(pattern, name) for pattern in some.matching):
            return False
        return self.admits(some.names, name) and self.admits(some.schema, value)
