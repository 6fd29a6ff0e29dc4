"""From places to disjunctions of shapes: references followed, combinations multiplied out, negation pushed inwards.

A conjunction of places becomes a list of shapes, any of which may hold. Nothing below items and members is
expanded here, but to prove that something is empty. Expansion is bounded: too many alternatives, or too much work, is a
`GrammarLimitError`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.json_schema.assertions import own_shape
from structgen.grammar.json_schema.conditions import conditional, dependencies
from structgen.grammar.json_schema.disjoint import are_disjoint, is_nothing
from structgen.grammar.json_schema.document import Place, SchemaDocument
from structgen.grammar.json_schema.exclusive import exactly_one, not_exactly_one
from structgen.grammar.json_schema.fitting import Fitting
from structgen.grammar.json_schema.negation import Negation
from structgen.grammar.json_schema.pruning import Pruning, only_object
from structgen.grammar.json_schema.sameness import Sameness
from structgen.grammar.json_schema.shapes import ANYTHING, Conjunction, Shape
from structgen.grammar.json_schema.some_members import SomeMembers
from structgen.grammar.json_schema.unevaluated import Evaluation, has_unevaluated
from structgen.grammar.json_schema.values import json_key

MAX_SHAPES = 2_000
MAX_NESTING = 150  # schemas combined in one place: allOf in anyOf in $ref ...
MAX_WORK = 200_000  # intersections of two shapes, and shapes looked at: a few seconds
MAX_PROOFS = 3  # proofs of emptiness inside of one another

Shapes = tuple[Shape, ...]
EVERYTHING: Shapes = (ANYTHING,)


class Normaliser:
    """Expands the places of one document; remembers what it expanded."""

    def __init__(self, document: SchemaDocument) -> None:
        self.document = document
        self.sameness = Sameness(document)
        self._fitting = Fitting(self.shapes)
        self._members = SomeMembers(document, self.shapes_if_finite, self.shapes)
        self._expanded: dict[Place, Shapes] = {}
        self._known: dict[Conjunction, Shapes] = {}
        self._pruning = Pruning(self.sameness, self._members, self.shapes_if_finite)
        self._open: dict[Place, None] = {}
        self._proofs = 0
        self._work = 0

    def shapes(self, conjunction: Conjunction) -> Shapes:
        """The shapes of a conjunction, with `values` already filtered by everything else.

        Raises:
            UnsupportedSchemaError, UnsatisfiableError (a schema that only refers to itself), GrammarLimitError.
        """
        known = self._known.get(conjunction)
        if known is not None:
            return known
        self._work += 1
        shapes = EVERYTHING
        if self.sameness.contradict(conjunction):
            shapes = ()
        for place in conjunction:
            shapes = self.product(shapes, self.expand(place), place)
        found = tuple(one for shape in shapes for one in self._settled(shape))
        for shape in found:
            self._refuse_obstacle(shape)
        self._known[conjunction] = found
        return found

    def _settled(self, shape: Shape) -> Iterable[Shape]:
        """The shape with everything worked out that needs all of a conjunction."""
        if shape.values is not None:
            shape = replace(shape, values=self._fitting.values(shape))
        elif shape.object is not None and shape.object.some:
            objects = self._members.settled(shape.object)
            shapes = [replace(shape if index == 0 else only_object(), object=one) for index, one in enumerate(objects)]
            return shapes or self._settled(replace(shape, object=None))
        return () if shape.is_nothing else (shape,)

    def _refuse_obstacle(self, shape: Shape) -> None:
        obstacle = shape.obstacle
        if obstacle is not None and not is_nothing(shape, self.shapes_if_finite):
            raise UnsupportedSchemaError(obstacle.message, pointer=obstacle.pointer, hint=obstacle.hint)

    def shapes_if_finite(self, conjunction: Conjunction) -> Shapes:
        """The shapes, for a proof that there are none; anything where they are not known yet, or cannot be."""
        if self._proofs >= MAX_PROOFS:
            return EVERYTHING
        self._proofs += 1
        try:
            return self.shapes(conjunction)
        except (UnsatisfiableError, UnsupportedSchemaError, GrammarLimitError):
            # The schema being expanded is met again, or what it is met with is refused where it is used.
            return EVERYTHING
        finally:
            self._proofs -= 1

    def product(self, left: Shapes, right: Shapes, place: Place) -> Shapes:
        """Both: every shape of the one with every shape of the other."""
        if left == EVERYTHING:
            return right
        if right == EVERYTHING:
            return left
        if len(left) * len(right) > MAX_SHAPES:
            left, right = self.pruned(left), self.pruned(right)
        self.spend(len(left) * len(right), place)
        met = tuple(one for a in left for b in right if not (one := a.meet(b)).is_nothing)
        if len(left) > 1 and len(right) > 1:
            met = self.pruned(met)
        if len(met) > MAX_SHAPES:
            raise GrammarLimitError(
                f"more than {MAX_SHAPES:,} combinations of alternatives",
                pointer=place.pointer,
                hint="move anyOf out of allOf, or merge alternatives",
            )
        return met

    def spend(self, work: int, place: Place) -> None:
        """Count intersections.

        Raises:
            GrammarLimitError: too many for one schema.
        """
        self._work += work
        if self._work > MAX_WORK:
            raise GrammarLimitError(
                f"more than {MAX_WORK:,} combinations of alternatives in one schema",
                pointer=place.pointer,
                hint="use fewer alternatives, or tell those of oneOf apart by a required property with a const",
            )

    def pruned(self, shapes: Iterable[Shape]) -> Shapes:
        """Without what is provably empty, and without shapes that are parts of others."""
        given = tuple(shapes)
        self._work += len(given)
        return self._pruning.pruned(given)

    def union(self, parts: Iterable[Shapes], place: Place) -> Shapes:
        """Any of several disjunctions: equal shapes once, the values of shapes that differ in nothing else together."""
        found: dict[Shape | int, Shape] = {}
        values: dict[Shape, dict[tuple[Hashable, str], Any]] = {}
        seen: set[tuple[Shape, int]] = set()
        for shapes in parts:
            for shape in shapes:
                if shape.values is None:
                    found[shape] = shape
                    continue
                rest = replace(shape, values=None)
                if rest not in values:
                    found[-len(found)] = rest
                known = values.setdefault(rest, {})
                if (rest, id(shape.values)) not in seen:
                    seen.add((rest, id(shape.values)))
                    known.update(((json_key(value), str(value)), value) for value in shape.values)
            if len(found) > MAX_SHAPES:
                raise GrammarLimitError(f"more than {MAX_SHAPES:,} alternatives", pointer=place.pointer)
        return tuple(
            replace(shape, values=tuple(values[shape].values())) if isinstance(key, int) else shape
            for key, shape in found.items()
        )

    def are_disjoint(self, one: Shape, other: Shape) -> bool:
        """A proof that no value is in both."""
        return are_disjoint(one, other, self.shapes_if_finite)

    def expand(self, place: Place) -> Shapes:
        """The shapes of one place; `values` are not filtered yet."""
        known = self._expanded.get(place)
        if known is None:
            if not isinstance(place.schema, dict):
                return EVERYTHING if place.schema is not place.negated else ()
            with self.opened(place):
                known = self._denied(place) if place.negated else self._combined(place, EVERYTHING)
            self._expanded[place] = known
        return known

    @contextmanager
    def opened(self, place: Place) -> Iterator[None]:
        """While a place is expanded, it must not be met again."""
        if place in self._open:
            raise UnsatisfiableError(
                "this schema refers to itself without end", pointer=place.pointer, hint="break the circle of $ref"
            )
        if len(self._open) >= MAX_NESTING:
            raise GrammarLimitError("schemas are combined too deeply", pointer=place.pointer, hint="flatten them")
        self._open[place] = None
        try:
            yield
        finally:
            del self._open[place]

    def _within(self, context: Shapes, place: Place) -> Shapes:
        """A place together with what holds beside it, which may tell the branches of its oneOf apart."""
        if place not in self._expanded and _has_branches(place) and _requires_members(context):
            self.spend(1, place)
            with self.opened(place):
                return self._combined(place, context)
        return self.product(context, self.expand(place), place)

    def _combined(self, place: Place, context: Shapes) -> Shapes:
        document, schema = self.document, place.schema
        if not isinstance(schema, dict):
            return () if schema is False else context
        if "$ref" in schema and document.ignores_siblings:
            return self._within(context, document.resolve(place, schema["$ref"]))
        if has_unevaluated(self, place):
            return self.product(context, Evaluation(self).shapes(place), place)
        shapes = self.product(context, (own_shape(document, place),), place)
        for target in document.targets(place):
            shapes = self._within(shapes, target)
        for child in self.children(place, "allOf"):
            shapes = self._within(shapes, child)
        if "not" in schema:
            shapes = self.product(shapes, self.expand(document.child(place, "not").opposite), place)
        for one in dependencies(self, place):
            shapes = self.product(shapes, one, place)
        if "if" in schema and document.knows("if"):
            shapes = self.product(shapes, conditional(self, place), place)
        if "oneOf" in schema:
            shapes = exactly_one(self, place, shapes)
        if "anyOf" in schema:
            options = self.union((self.expand(child) for child in self.children(place, "anyOf")), place)
            shapes = self.product(shapes, options, place)
        return shapes

    def _denied(self, place: Place) -> Shapes:
        """The shapes of a negation: something of what the schema says does not hold."""
        return self.union(self._denials(place), place)

    def _denials(self, place: Place) -> Iterable[Shapes]:
        document, schema = self.document, place.schema
        if not isinstance(schema, dict):
            yield EVERYTHING if schema is False else ()
            return
        if "$ref" in schema and document.ignores_siblings:
            yield self.expand(document.resolve(place, schema["$ref"]).opposite)
            return
        for target in document.targets(place):
            yield self.expand(target.opposite)
        if has_unevaluated(self, place):
            yield Evaluation(self).shapes(place)
        own = own_shape(document, place)
        if own is not ANYTHING:
            if own.values is not None:
                own = replace(own, values=self._fitting.values(own))
            yield tuple(Negation(document, place.pointer).of(own))
        for child in self.children(place, "allOf"):
            yield self.expand(child.opposite)
        if "not" in schema:
            yield self.expand(document.child(place, "not"))
        yield from dependencies(self, place)
        if "if" in schema and document.knows("if"):
            yield conditional(self, place)
        if "oneOf" in schema:
            yield not_exactly_one(self, place)
        if "anyOf" in schema:
            shapes = EVERYTHING
            for child in self.children(place, "anyOf"):
                shapes = self.product(shapes, self.expand(child.opposite), place)
            yield shapes

    def children(self, place: Place, keyword: str) -> list[Place]:
        if place.options:
            return list(place.options) if keyword == "anyOf" else []
        return [self.document.child(place, keyword, index) for index in range(len(place.schema.get(keyword, ())))]


def _has_branches(place: Place) -> bool:
    return isinstance(place.schema, dict) and "oneOf" in place.schema


def _requires_members(shapes: Shapes) -> bool:
    return len(shapes) == 1 and shapes[0].object is not None and bool(shapes[0].object.required)
