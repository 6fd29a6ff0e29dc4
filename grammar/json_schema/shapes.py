"""Shapes: what a schema says about each JSON type, in a form that can be intersected.

A schema is a Boolean combination; a `Shape` is one conjunction in it, taken apart by type: for each type either
None (not allowed) or its constraints. A disjunction is a list of shapes. Schemas of items and members stay
unexpanded, as conjunctions of places (`Conjunction`), so that recursion costs nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from structgen.grammar.json_number import NumberRange
from structgen.grammar.json_schema.document import Place
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.values import json_key

# All places must hold; the empty tuple allows everything.
Conjunction = tuple[Place, ...]


def conjoin(one: Conjunction, other: Conjunction) -> Conjunction:
    """Both, each place once, in order of first appearance."""
    if not other or one == other:
        return one
    return tuple(dict.fromkeys((*one, *other)))


@dataclass(frozen=True, slots=True)
class TextShape:
    """Strings: length in characters, patterns (searched), formats."""

    least: int = 0
    most: int | None = None
    patterns: tuple[tuple[str, str], ...] = ()  # (pattern, pointer)
    formats: tuple[tuple[str, str], ...] = ()

    def meet(self, other: TextShape) -> TextShape:
        return TextShape(
            max(self.least, other.least),
            _least(self.most, other.most),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            tuple(dict.fromkeys(self.formats + other.formats)),
        )


# How many items must match a schema: (schema, least, most).
Contains = tuple[Conjunction, int, int | None]


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Arrays: `prefix[i]` for the item at i, `rest` for all after the prefix; `unique`: no two items are equal."""

    least: int = 0
    most: int | None = None
    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ()
    contains: tuple[Contains, ...] = ()
    unique: bool = False

    def item(self, index: int) -> Conjunction:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def meet(self, other: ArrayShape) -> ArrayShape:
        count = max(len(self.prefix), len(other.prefix))
        return ArrayShape(
            max(self.least, other.least),
            _least(self.most, other.most),
            tuple(conjoin(self.item(i), other.item(i)) for i in range(count)),
            conjoin(self.rest, other.rest),
            _each_schema_once(self.contains + other.contains),
            self.unique or other.unique,
        )


@dataclass(frozen=True, slots=True)
class OtherNames:
    """What one schema says about names that it does not list: those that match patterns, and the rest."""

    patterns: tuple[tuple[str, str, Conjunction], ...] = ()  # (pattern, pointer, schema)
    rest: Conjunction = ()

    def schema_of(self, matching: Collection[str]) -> Conjunction:
        """The schema of a name that matches exactly these patterns."""
        found: Conjunction = ()
        matched = False
        for pattern, _, schema in self.patterns:
            if pattern in matching:
                found, matched = conjoin(found, schema), True
        return found if matched else self.rest


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects: `members` in the order of first appearance; `others`, which all hold, for all other names.

    Attributes:
        names: what all names must be, members' too (as JSON strings).
        least, most: how many members there must be.
    """

    members: tuple[tuple[str, Conjunction], ...] = ()
    required: frozenset[str] = frozenset()
    others: tuple[OtherNames, ...] = ()
    names: Conjunction = ()
    least: int = 0
    most: int | None = None

    @property
    def patterns(self) -> dict[str, str]:
        """All patterns for names, each with a pointer."""
        return {pattern: pointer for other in self.others for pattern, pointer, _ in other.patterns}

    def other_schema(self, matching: Collection[str] = ()) -> Conjunction:
        """The schema of a name that is no member and matches exactly these patterns."""
        found: Conjunction = ()
        for other in self.others:
            found = conjoin(found, other.schema_of(matching))
        return found

    def schema_of(self, name: str, matches: Callable[[str, str], bool]) -> Conjunction:
        """The schema of a name; `matches(pattern, name)` is asked about patterns."""
        for member, schema in self.members:
            if member == name:
                return schema
        return self.other_schema([pattern for pattern in self.patterns if matches(pattern, name)])

    def meet(self, other: ObjectShape, matches: Callable[[str, str], bool]) -> ObjectShape:
        names = dict.fromkeys(name for name, _ in (*self.members, *other.members))
        members = tuple(
            (name, conjoin(self.schema_of(name, matches), other.schema_of(name, matches))) for name in names
        )
        others = tuple(dict.fromkeys(self.others + other.others))
        return ObjectShape(
            members,
            self.required | other.required,
            others,
            conjoin(self.names, other.names),
            max(self.least, other.least),
            _least(self.most, other.most),
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """One conjunction. With `values`, only those values that also fit the rest (see `admits` in normalise)."""

    null: bool = True
    boolean: bool = True
    number: NumberRange | None = field(default_factory=NumberRange)
    text: TextShape | None = field(default_factory=TextShape)
    array: ArrayShape | None = field(default_factory=ArrayShape)
    object: ObjectShape | None = field(default_factory=ObjectShape)
    values: tuple[Any, ...] | None = None

    @property
    def is_nothing(self) -> bool:
        nothing = not (self.null or self.boolean or self.number or self.text or self.array or self.object)
        return nothing or self.values == ()

    def meet(self, other: Shape) -> Shape:
        if other is ANYTHING:
            return self
        if self is ANYTHING:
            return other
        number = self.number.meet(other.number) if self.number and other.number else None
        return Shape(
            self.null and other.null,
            self.boolean and other.boolean,
            None if number is None or number.is_empty else number,
            self.text.meet(other.text) if self.text and other.text else None,
            self.array.meet(other.array) if self.array and other.array else None,
            self.object.meet(other.object, name_matches) if self.object and other.object else None,
            _common_values(self.values, other.values),
        )

    def only_values(self, values: tuple[Any, ...]) -> Shape:
        return replace(self, values=_common_values(self.values, values))


ANYTHING = Shape()
NOTHING = Shape(False, False, None, None, None, None)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _each_schema_once(contains: tuple[Contains, ...]) -> tuple[Contains, ...]:
    limits: dict[Conjunction, tuple[int, int | None]] = {}
    for schema, least, most in contains:
        known = limits.get(schema, (0, None))
        limits[schema] = max(known[0], least), _least(known[1], most)
    return tuple((schema, least, most) for schema, (least, most) in limits.items())


def _common_values(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    keys = {json_key(value) for value in other}
    return tuple(value for value in one if json_key(value) in keys)
