"""The negation of what one schema object asserts: for each type, what its constraints leave out.

A negated conjunction is a disjunction: some constraint fails. A shape has room for one alternative of each type, so
the alternatives of all types share shapes. What cannot be said is a shape with an `Obstacle`, which is an error only
where nothing else excludes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.format_complements import NEGATABLE_FORMATS
from structgen.grammar.json_number import NumberRange
from structgen.grammar.json_schema.document import SchemaDocument
from structgen.grammar.json_schema.shapes import (
    ANYTHING,
    NOTHING,
    ArrayShape,
    Conjunction,
    ObjectShape,
    Obstacle,
    OtherNames,
    Shape,
    SomeMember,
    TextShape,
)
from structgen.grammar.json_schema.values import exact, type_of

T = TypeVar("T")

MAX_ALTERNATIVES = 500  # that arrays or objects among excluded values may make together
_CONSTANT = frozenset(("const", "enum"))
MAX_PLACES = 100  # where an item behind a prefix may fail


@dataclass(frozen=True, slots=True)
class Negation:
    """Negates shapes on behalf of the schema at a pointer."""

    document: SchemaDocument
    pointer: str

    def of(self, shape: Shape) -> list[Shape]:
        """The shapes of all that a shape excludes. Its `values`, if any, must be those that fit the rest of it.

        Raises:
            GrammarLimitError: too many arrays or objects among the values.
        """
        if shape.values is not None:
            return self.without(shape.values)
        scalars = replace(NOTHING, null=not shape.null, true=not shape.true, false=not shape.false)
        parts = (
            [NumberRange()] if shape.number is None else shape.number.complement(),
            [TextShape()] if shape.text is None else _other_texts(shape.text),
            [ArrayShape()] if shape.array is None else _other_arrays(shape.array),
            [ObjectShape()] if shape.object is None else self._other_objects(shape.object),
        )
        made = [
            replace(NOTHING, number=number, text=text, array=array, object=object_)
            for number, text, array, object_ in zip_longest(*parts)
        ]
        return [one for one in (scalars, *made, *self._obstacles(shape)) if not one.is_nothing]

    def without(self, values: tuple[Any, ...]) -> list[Shape]:
        """Everything but these values."""
        kinds: dict[str, list[Any]] = {}
        for value in values:
            kinds.setdefault(type_of(value), []).append(value)
        booleans = kinds.get("boolean", ())
        numbers, texts = kinds.get("number", ()), kinds.get("string", ())
        scalars = replace(
            ANYTHING,
            null="null" not in kinds,
            true=True not in booleans,
            false=False not in booleans,
            number=NumberRange(excluded=frozenset(map(exact, numbers))),
            text=TextShape(excluded=frozenset(texts)),
            array=None,
            object=None,
        )
        arrays = [ArrayShape()]
        for value in kinds.get("array", ()):
            arrays = self._limited([one.meet(other) for one in arrays for other in self._arrays_without(value)])
        objects = [ObjectShape()]
        for value in kinds.get("object", ()):
            objects = self._limited(
                [one.meet(other, lambda *_: False) for one in objects for other in self._objects_without(value)]
            )
        containers = [replace(NOTHING, array=array, object=object_) for array, object_ in zip_longest(arrays, objects)]
        first = replace(scalars, array=containers[0].array, object=containers[0].object)
        return [first, *containers[1:]]

    def _limited(self, alternatives: list[T]) -> list[T]:
        if len(alternatives) > MAX_ALTERNATIVES:
            raise GrammarLimitError(
                "too many arrays or objects among the values that are excluded", pointer=self.pointer,
                hint="exclude fewer of them",
            )  # fmt: skip
        return alternatives

    def _arrays_without(self, value: list[Any]) -> Iterator[ArrayShape]:
        count = len(value)
        if count:
            yield ArrayShape(most=count - 1)
        yield ArrayShape(count + 1)
        for index, one in enumerate(value):
            other = (self.document.constant(one, self.pointer).opposite,)
            yield ArrayShape(index + 1, prefix=(*(((),) * index), other))

    def _objects_without(self, value: dict[str, Any]) -> Iterator[ObjectShape]:
        for name, one in value.items():
            yield self._without_member(name)
            other = (self.document.constant(one, self.pointer).opposite,)
            yield ObjectShape(((name, other),), frozenset((name,)))
        yield self._with_some(taken=frozenset(value))

    def _other_objects(self, wanted: ObjectShape) -> Iterator[ObjectShape]:
        """A member with a constant fails; or all of those hold and something else fails.

        Constants tell alternatives apart: with them said, combinations of negations exclude each other at once.
        """
        told = [(name, schema) for name, schema in wanted.members if name in wanted.required and _is_constant(schema)]
        for name, schema in told:
            yield from self._failing_member(name, schema, required=True)
        given = ObjectShape(tuple(told), frozenset(name for name, _ in told))
        rest = replace(wanted, members=tuple(member for member in wanted.members if member not in told))
        names = frozenset(name for name, _ in wanted.members)
        for other in self._other_failures(rest, names):
            yield given.meet(other, lambda *_: False) if told else other

    def _other_failures(self, wanted: ObjectShape, names: frozenset[str]) -> Iterator[ObjectShape]:
        for name, schema in wanted.members:
            yield from self._failing_member(name, schema, required=name in wanted.required)
        for others in wanted.others:
            yield from self._other_members(others, names)
        for failing in _failures(wanted.names):
            yield self._with_some(names=failing)
        if wanted.least > 0:
            yield ObjectShape(most=wanted.least - 1)
        if wanted.most is not None:
            yield ObjectShape(least=wanted.most + 1)

    def _failing_member(self, name: str, schema: Conjunction, *, required: bool) -> Iterator[ObjectShape]:
        failures = _failures(schema)
        for failing in failures:
            # Where the member is required, its absence is a failure as well.
            yield ObjectShape(((name, failing),), frozenset() if required else frozenset((name,)))
        if required and not failures:
            yield self._without_member(name)

    def _other_members(self, others: OtherNames, taken: frozenset[str]) -> Iterator[ObjectShape]:
        for pattern, _, schema in others.patterns:
            for failing in _failures(schema):
                yield self._with_some(taken=taken, matching=(pattern,), schema=failing)
        for failing in _failures(others.rest):
            unmatched = tuple(pattern for pattern, _, _ in others.patterns)
            yield self._with_some(taken=taken, unmatched=unmatched, schema=failing)

    def _without_member(self, name: str) -> ObjectShape:
        return ObjectShape(((name, (self.document.never(self.pointer),)),))

    def _with_some(self, **wanted: Any) -> ObjectShape:
        return ObjectShape(some=(SomeMember(pointer=self.pointer, **wanted),))

    def _obstacles(self, shape: Shape) -> Iterator[Shape]:
        for name, pointer in shape.text.formats if shape.text is not None else ():
            if name not in NEGATABLE_FORMATS:
                yield replace(
                    NOTHING,
                    text=TextShape(),
                    obstacle=Obstacle(f"texts not of format {name!r} are not enforced", pointer, "use a pattern"),
                )
        array = shape.array
        if array is None:
            return
        if array.unique:
            yield self._refused_array(2, "arrays with equal items are not enforced", "leave out uniqueItems")
        if not _is_listed(array) and any(not failing[0].is_always for failing in _failures(array.rest)):
            yield self._refused_array(
                len(array.prefix) + 1, "arrays with an unwanted item behind a prefix are not enforced", "limit maxItems"
            )

    def _refused_array(self, least: int, message: str, hint: str) -> Shape:
        return replace(NOTHING, array=ArrayShape(least), obstacle=Obstacle(message, self.pointer, hint))


def _other_texts(text: TextShape) -> Iterator[TextShape]:
    if text.least > 0:
        yield TextShape(most=text.least - 1)
    if text.most is not None:
        yield TextShape(least=text.most + 1)
    for pattern in text.patterns:
        yield TextShape(without_patterns=(pattern,))
    for name in text.formats:
        if name[0] in NEGATABLE_FORMATS:
            yield TextShape(without_formats=(name,))


def _other_arrays(array: ArrayShape) -> Iterator[ArrayShape]:
    if array.least > 0:
        yield ArrayShape(most=array.least - 1)
    if array.most is not None:
        yield ArrayShape(array.most + 1)
    for index, schema in enumerate(array.prefix):
        for failing in _failures(schema):
            yield ArrayShape(index + 1, prefix=(*(((),) * index), failing))
    for failing in _failures(array.rest):
        if failing[0].is_always:
            yield ArrayShape(len(array.prefix) + 1)
        elif not array.prefix:
            yield ArrayShape(contains=((failing, 1, None),))
        elif _is_listed(array):
            for index in range(len(array.prefix), array.most or 0):
                yield ArrayShape(index + 1, prefix=(*(((),) * index), failing))
    for schema, least, most in array.contains:
        if least > 0:
            yield ArrayShape(contains=((schema, 0, least - 1),))
        if most is not None:
            yield ArrayShape(contains=((schema, most + 1, None),))


def _is_constant(schema: Conjunction) -> bool:
    return any(isinstance(place.schema, dict) and not place.schema.keys().isdisjoint(_CONSTANT) for place in schema)


def _is_listed(array: ArrayShape) -> bool:
    """Whether it can be said that some item behind the prefix fails: by `contains`, or place by place."""
    return not array.prefix or (array.most is not None and array.most - len(array.prefix) <= MAX_PLACES)


def _failures(schema: Conjunction) -> list[Conjunction]:
    """The ways in which a conjunction can fail."""
    return [(place.opposite,) for place in schema if not place.is_always]
