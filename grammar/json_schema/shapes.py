"""Shapes: what a schema says about each JSON type, in a form that can be intersected.

A schema is a Boolean combination; a `Shape` is one conjunction in it, taken apart by type: for each type either
None (not allowed) or its constraints. A disjunction is a list of shapes. Schemas of items and members stay
unexpanded, as conjunctions of places (`Conjunction`), so that recursion costs nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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


def _implies(one: Conjunction, other: Conjunction) -> bool:
    """Whether, plainly, what satisfies the one satisfies the other."""
    return not other or is_never(one) or set(other) <= set(one)


def is_never(schema: Conjunction) -> bool:
    """Whether a conjunction plainly allows nothing."""
    return any(place.is_never for place in schema)


@dataclass(frozen=True, slots=True)
class TextShape:
    """Strings: length in characters, patterns (searched) and formats, those that must not hold, words taken out."""

    least: int = 0
    most: int | None = None
    patterns: tuple[tuple[str, str], ...] = ()  # (pattern, pointer)
    formats: tuple[tuple[str, str], ...] = ()
    without_patterns: tuple[tuple[str, str], ...] = ()
    without_formats: tuple[tuple[str, str], ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def is_counted(self) -> bool:
        """Whether nothing but lengths is asked."""
        return not (
            self.patterns or self.formats or self.excluded or self.without_patterns or self.without_formats
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """Whether the constraints plainly contradict each other."""
        if self.most is not None and self.most < self.least:
            return True
        return _share_a_name(self.patterns, self.without_patterns) or _share_a_name(self.formats, self.without_formats)

    def meet(self, other: TextShape) -> TextShape:
        return TextShape(
            max(self.least, other.least),
            _least(self.most, other.most),
            _each_once(self.patterns, other.patterns),
            _each_once(self.formats, other.formats),
            _each_once(self.without_patterns, other.without_patterns),
            _each_once(self.without_formats, other.without_formats),
            self.excluded | other.excluded,
        )


def _each_once(one: tuple[tuple[str, str], ...], other: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """All constraints, those with the same text once."""
    if not other or one == other:
        return one
    return tuple({text: (text, pointer) for text, pointer in (*other, *one)}.values()) if one else other


def _share_a_name(one: tuple[tuple[str, str], ...], other: tuple[tuple[str, str], ...]) -> bool:
    return bool(one and other) and not {text for text, _ in one}.isdisjoint(text for text, _ in other)


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

    @property
    def is_empty(self) -> bool:
        """Whether the constraints plainly contradict each other."""
        if self.most is not None and self.most < self.least:
            return True
        return any(is_never(self.item(index)) for index in range(min(self.least, len(self.prefix) + 1)))

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
class SomeMember:
    """That there is a member with a certain name and a value under `schema`; what negation makes of "all members".

    Attributes:
        pointer: where the schema says this.
        taken: names that do not count.
        matching, unmatched: patterns of which the name must match all, and none.
        names: what the name must be.
    """

    pointer: str
    taken: frozenset[str] = frozenset()
    matching: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    names: Conjunction = ()
    schema: Conjunction = ()


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects: `members` in the order of first appearance; `others`, which all hold, for all other names.

    Attributes:
        names: what all names must be, members' too (as JSON strings).
        least, most: how many members there must be.
        some: members that there must be, whatever their names; one member may be several of them.
    """

    members: tuple[tuple[str, Conjunction], ...] = ()
    required: frozenset[str] = frozenset()
    others: tuple[OtherNames, ...] = ()
    names: Conjunction = ()
    least: int = 0
    most: int | None = None
    some: tuple[SomeMember, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the constraints plainly contradict each other."""
        if self.most is not None and self.most < max(self.least, len(self.required)):
            return True
        return any(name in self.required and is_never(schema) for name, schema in self.members)

    def covers(self, other: ObjectShape) -> bool:
        """Whether, plainly, every object of another shape is one of this: whatever is asked here is asked there."""
        if not (self.required <= other.required and self.least <= other.least):
            return False
        if self.most is not None and (other.most is None or self.most < other.most):
            return False
        if not (set(self.others) <= set(other.others) and set(self.names) <= set(other.names)):
            return False
        if not set(self.some) <= set(other.some) or (self.patterns and self.members != other.members):
            return False
        asked, given = dict(self.members), dict(other.members)
        rest, other_rest = self.other_schema(), other.other_schema()
        return all(
            _implies(given.get(name, other_rest), asked.get(name, rest)) for name in dict.fromkeys((*asked, *given))
        )

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
            self.some if self.some == other.some else tuple(dict.fromkeys(self.some + other.some)),
        )


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a shape cannot be promised; it is an error only if the shape is not found to be empty."""

    message: str
    pointer: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """One conjunction. With `values`, only those values that also fit the rest (see `admits` in normalise)."""

    null: bool = True
    true: bool = True
    false: bool = True
    number: NumberRange | None = field(default_factory=NumberRange)
    text: TextShape | None = field(default_factory=TextShape)
    array: ArrayShape | None = field(default_factory=ArrayShape)
    object: ObjectShape | None = field(default_factory=ObjectShape)
    values: tuple[Any, ...] | None = None
    obstacle: Obstacle | None = None

    @property
    def is_nothing(self) -> bool:
        scalars = self.null or self.true or self.false or self.number or self.text
        return not (scalars or self.array or self.object) or self.values == ()

    def meet(self, other: Shape) -> Shape:
        if other is ANYTHING:
            return self
        if self is ANYTHING:
            return other
        number = self.number.meet(other.number) if self.number and other.number else None
        return Shape(
            self.null and other.null,
            self.true and other.true,
            self.false and other.false,
            None if number is None or number.is_empty else number,
            _possible(self.text.meet(other.text)) if self.text and other.text else None,
            _possible(self.array.meet(other.array)) if self.array and other.array else None,
            _possible(self.object.meet(other.object, name_matches)) if self.object and other.object else None,
            _common_values(self.values, other.values),
            self.obstacle or other.obstacle,
        )

    def only_values(self, values: tuple[Any, ...]) -> Shape:
        return replace(self, values=_common_values(self.values, values))

    def covers(self, other: Shape) -> bool:
        """Whether every part of another shape is, plainly, a part of this one."""
        if self.values is not None or other.values is not None or self.obstacle is not None:
            return False
        return (
            self.null >= other.null
            and self.true >= other.true
            and self.false >= other.false
            and (other.number is None or self.number == other.number)
            and (other.text is None or self.text == other.text)
            and (other.array is None or self.array == other.array)
            and (other.object is None or (self.object is not None and self.object.covers(other.object)))
        )


ANYTHING = Shape()
NOTHING = Shape(False, False, False, None, None, None, None)


_Counted = TypeVar("_Counted", TextShape, ArrayShape, ObjectShape)


def _possible(shape: _Counted) -> _Counted | None:
    """None when the least count is above the most."""
    return None if shape.most is not None and shape.most < shape.least else shape


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
