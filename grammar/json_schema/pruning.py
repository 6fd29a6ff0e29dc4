"""Fewer and shorter shapes: empty ones are left out, those that are parts of others, and what is said twice.

Products of alternatives grow without bound unless most of what they make is found to be nothing, or nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from structgen.grammar.json_schema.disjoint import is_nothing, without_empty_parts
from structgen.grammar.json_schema.sameness import Sameness
from structgen.grammar.json_schema.shapes import ANYTHING, Conjunction, Shape, conjoin, is_never
from structgen.grammar.json_schema.some_members import SomeMembers

# Pairs of shapes, of which the one is left out that is a part of the other: at once, and in one document (a second).
MAX_COMPARED, MAX_COMPARED_IN_ALL = 12_000, 100_000

Shapes = tuple[Shape, ...]


class Pruning:
    """Prunes on behalf of a normaliser; `expand` may say "anything" where it does not know."""

    def __init__(self, sameness: Sameness, members: SomeMembers, expand: Callable[[Conjunction], Shapes]) -> None:
        self._sameness = sameness
        self._members = members
        self._expand = expand
        self._shorter: dict[Conjunction, Conjunction] = {}
        self._compared = 0

    def pruned(self, shapes: Iterable[Shape]) -> Shapes:
        """Without what is provably empty, and without shapes that are parts of others."""
        kept: list[Shape] = []
        for shape in shapes:
            for one in map(self._simplified, self._with_listed_members(shape)):
                if one.values is None:
                    one = without_empty_parts(one, self._expand)
                elif is_nothing(one, self._expand):
                    continue
                if not one.is_nothing:
                    kept.append(one)
        return self._without_parts_of_others(kept)

    def _with_listed_members(self, shape: Shape) -> Iterable[Shape]:
        """Settled, where no name but those listed is possible: later intersections will not add any."""
        wanted = shape.object
        if wanted is None or not wanted.some or wanted.patterns or not is_never(wanted.other_schema()):
            return (shape,)
        objects = self._members.settled(wanted)
        return [replace(shape if index == 0 else only_object(), object=one) for index, one in enumerate(objects)] or (
            replace(shape, object=None),
        )

    def _simplified(self, shape: Shape) -> Shape:
        """The shape with shorter schemas of members, so that more shapes are seen to be parts of others."""
        wanted = shape.object
        if wanted is None:
            return shape
        members = tuple((name, self._shortened(schema)) for name, schema in wanted.members)
        return shape if members == wanted.members else replace(shape, object=replace(wanted, members=members))

    def _shortened(self, schema: Conjunction) -> Conjunction:
        """Without negations of what the rest excludes anyway."""
        if len(schema) < 2 or not any(place.negated or place.is_never for place in schema):
            return schema
        known = self._shorter.get(schema)
        if known is None:
            asked, schema = schema, tuple(dict.fromkeys(map(self._sameness.first, schema)))
            never = next((place for place in schema if place.is_never), None)
            given = tuple(place for place in schema if not place.negated)
            known = (never,) if never is not None else tuple(
                place for place in schema
                if not place.negated or not given or not self._is_nothing(conjoin(given, (place.opposite,)))
            )  # fmt: skip
            self._shorter[asked] = known
        return known

    def _is_nothing(self, schema: Conjunction) -> bool:
        """A proof that nothing is valid under all of a conjunction."""
        return all(is_nothing(shape, self._expand) for shape in self._expand(schema))

    def _without_parts_of_others(self, shapes: list[Shape]) -> Shapes:
        kept: list[Shape] = []
        compared = 0
        for one in shapes:
            compared += len(kept)
            if compared > MAX_COMPARED or self._compared + compared > MAX_COMPARED_IN_ALL:
                kept.append(one)
            elif not any(other.covers(one) for other in kept):
                kept = [other for other in kept if not one.covers(other)]
                kept.append(one)
        self._compared += compared
        return tuple(kept)


def only_object() -> Shape:
    """A shape for objects alone."""
    return replace(ANYTHING, null=False, true=False, false=False, number=None, text=None, array=None)
