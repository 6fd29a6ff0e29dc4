"""From places to disjunctions of shapes: references followed, allOf and anyOf multiplied out.

A conjunction of places becomes a list of shapes, any of which may hold. Nothing below items and members is
expanded here. Expansion is bounded: beyond `MAX_SHAPES` alternatives it is a `GrammarLimitError`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.json_schema.assertions import own_shape
from structgen.grammar.json_schema.disjoint import are_disjoint
from structgen.grammar.json_schema.document import Place, SchemaDocument
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.shapes import ANYTHING, Conjunction, Shape
from structgen.grammar.json_schema.text import text_dfa
from structgen.grammar.json_schema.values import exact, json_key, type_of

MAX_SHAPES = 2_000
MAX_PAIRS = 50_000  # of shapes that a oneOf may ask to be told apart: about a second
MAX_NESTING = 150  # schemas combined in one place: allOf in anyOf in $ref ...

Shapes = tuple[Shape, ...]


class Normaliser:
    """Expands the places of one document; remembers what it expanded."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._known: dict[Place, Shapes] = {}
        self._open: dict[Place, None] = {}

    def shapes(self, conjunction: Conjunction) -> Shapes:
        """The shapes of a conjunction, with `values` already filtered by everything else.

        Raises:
            UnsupportedSchemaError, UnsatisfiableError (a schema that only refers to itself), GrammarLimitError.
        """
        shapes: Shapes = (ANYTHING,)
        for place in conjunction:
            shapes = self._product(shapes, self._expand(place), place)
        return tuple(one for one in map(self._with_fitting_values, shapes) if not one.is_nothing)

    def _product(self, left: Shapes, right: Shapes, place: Place) -> Shapes:
        if left == (ANYTHING,):
            return right
        if right == (ANYTHING,):
            return left
        if len(left) * len(right) > MAX_SHAPES:
            raise GrammarLimitError(
                f"more than {MAX_SHAPES:,} combinations of alternatives",
                pointer=place.pointer,
                hint="move anyOf out of allOf, or merge alternatives",
            )
        met = (one.meet(other) for one in left for other in right)
        return tuple(one for one in met if not one.is_nothing)

    def _expand(self, place: Place) -> Shapes:
        known = self._known.get(place)
        if known is not None:
            return known
        if place in self._open:
            raise UnsatisfiableError(
                "this schema refers to itself without end", pointer=place.pointer, hint="break the circle of $ref"
            )
        if len(self._open) >= MAX_NESTING:
            raise GrammarLimitError("schemas are combined too deeply", pointer=place.pointer, hint="flatten them")
        self._open[place] = None
        try:
            known = self._known[place] = self._combine(place)
        finally:
            del self._open[place]
        return known

    def _combine(self, place: Place) -> Shapes:
        document, schema = self._document, place.schema
        if not isinstance(schema, dict):
            return (own_shape(document, place),)
        if "$ref" in schema and document.ignores_siblings:
            return self._expand(document.resolve(place, schema["$ref"]))
        shapes: Shapes = (own_shape(document, place),)
        for target in document.targets(place):
            shapes = self._product(shapes, self._expand(target), place)
        for index in range(len(schema.get("allOf", ()))):
            shapes = self._product(shapes, self._expand(document.child(place, "allOf", index)), place)
        if "oneOf" in schema:
            shapes = self._product(shapes, self._exactly_one(place), place)
        if "anyOf" in schema:
            shapes = self._product(shapes, self._alternatives(place, "anyOf"), place)
        return shapes

    def _exactly_one(self, place: Place) -> Shapes:
        """The shapes of oneOf, whose branches must exclude each other: then exactly one is the same as any."""
        branches = [self._expand(self._document.child(place, "oneOf", i)) for i in range(len(place.schema["oneOf"]))]
        pairs = sum(len(left) * len(right) for left, right in combinations(branches, 2))
        if pairs > MAX_PAIRS:
            raise GrammarLimitError(
                f"more than {MAX_PAIRS:,} pairs of alternatives in oneOf", pointer=place.pointer, hint="use anyOf"
            )
        for (earlier, left), (later, right) in combinations(enumerate(branches), 2):
            if not all(are_disjoint(one, other, self._shapes_if_finite) for one, other in product(left, right)):
                raise UnsupportedSchemaError(
                    f"branches {earlier} and {later} of oneOf may both hold",
                    pointer=f"{place.pointer}/oneOf/{later}",
                    hint="tell them apart by a required property with a const, or use anyOf",
                )
        return self._alternatives(place, "oneOf")

    def _shapes_if_finite(self, conjunction: Conjunction) -> Shapes:
        """The shapes, or anything where the schema being expanded is met again: its alternatives are not known yet."""
        try:
            return self.shapes(conjunction)
        except UnsatisfiableError:
            return (ANYTHING,)

    def _alternatives(self, place: Place, keyword: str) -> Shapes:
        """The shapes of all branches, equal ones once."""
        branches: list[Shape] = []
        seen: set[Shape] = set()
        for index in range(len(place.schema[keyword])):
            for shape in self._expand(self._document.child(place, keyword, index)):
                if shape.values is None:  # values are any JSON, which Python cannot always hash, and holds 1 == True
                    if shape in seen:
                        continue
                    seen.add(shape)
                branches.append(shape)
            if len(branches) > MAX_SHAPES:
                raise GrammarLimitError(f"more than {MAX_SHAPES:,} alternatives", pointer=place.pointer)
        return tuple(branches)

    def _with_fitting_values(self, shape: Shape) -> Shape:
        if shape.values is None:
            return shape
        return replace(shape, values=tuple(value for value in shape.values if self._fits(shape, value)))

    def admits(self, conjunction: Conjunction, value: Any) -> bool:
        """Whether a value is valid against a conjunction: validation, for enum and const beside other keywords."""
        return any(
            self._fits(shape, value)
            for shape in self.shapes(conjunction)
            if shape.values is None or Shape().only_values((value,)).meet(shape).values
        )

    def _fits(self, shape: Shape, value: Any) -> bool:
        kind = type_of(value)
        if kind == "null":
            return shape.null
        if kind == "boolean":
            return shape.boolean
        if kind == "number":
            return shape.number is not None and shape.number.admits(exact(value))
        if kind == "string":
            return shape.text is not None and self._text_fits(shape, value)
        if kind == "array":
            return shape.array is not None and self._array_fits(shape, value)
        return kind == "object" and shape.object is not None and self._object_fits(shape, value)

    def _text_fits(self, shape: Shape, value: str) -> bool:
        text = shape.text
        if text is None or len(value) < text.least or (text.most is not None and len(value) > text.most):
            return False
        return (not text.patterns and not text.formats) or text_dfa(text)[0].matches(value)

    def _array_fits(self, shape: Shape, value: list[Any]) -> bool:
        array = shape.array
        if array is None or len(value) < array.least or (array.most is not None and len(value) > array.most):
            return False
        if array.unique and len({json_key(one) for one in value}) < len(value):
            return False
        for schema, least, most in array.contains:
            matching = sum(self.admits(schema, one) for one in value)
            if matching < least or (most is not None and matching > most):
                return False
        return all(self.admits(array.item(index), one) for index, one in enumerate(value))

    def _object_fits(self, shape: Shape, value: dict[str, Any]) -> bool:
        wanted = shape.object
        if wanted is None or not wanted.required <= value.keys():
            return False
        if len(value) < wanted.least or (wanted.most is not None and len(value) > wanted.most):
            return False
        if wanted.names and not all(self.admits(wanted.names, name) for name in value):
            return False
        schema_of = wanted.schema_of
        return all(self.admits(schema_of(name, name_matches), one) for name, one in value.items())
