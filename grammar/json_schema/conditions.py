"""if/then/else, and what the presence of a member demands, as disjunctions; negated for a negated place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from structgen.grammar.json_schema.document import Place
from structgen.grammar.json_schema.shapes import ANYTHING, NOTHING, ObjectShape, Shape

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normalise import Normaliser

Shapes = tuple[Shape, ...]


def conditional(normaliser: Normaliser, place: Place) -> Shapes:
    """(if and then) or (not if and else)."""
    condition = normaliser.document.child(place, "if")
    cases = []
    for test, keyword in ((condition, "then"), (condition.opposite, "else")):
        if keyword in place.schema:
            child = normaliser.document.child(place, keyword)
            child = child.opposite if place.negated else child
            cases.append(normaliser.product(normaliser.expand(test), normaliser.expand(child), place))
        elif not place.negated:
            cases.append(normaliser.expand(test))
    return normaliser.union(cases, place)


def dependencies(normaliser: Normaliser, place: Place) -> Iterator[Shapes]:
    """For each demand, its alternatives: the members that cause it are absent, or it is met.

    For a negated place: a member is there, and its demand is not met.
    """
    yield from required_by_members(normaliser, place)
    for child, absent, present in schemas_of_members(normaliser, place):
        if place.negated:
            yield normaliser.product(present, normaliser.expand(child.opposite), place)
        else:  # whether they are there does not matter where the schema holds
            objects = (replace(NOTHING, object=ObjectShape()),)
            yield (*absent, *normaliser.product(objects, normaliser.expand(child), place))


def required_by_members(normaliser: Normaliser, place: Place) -> Iterator[Shapes]:
    """The alternatives of each list of members that others demand."""
    for names, members in _required(normaliser, place).items():
        absent = tuple((member, (normaliser.document.never(place.pointer),)) for member in members)
        if not place.negated:
            wanted = ObjectShape(tuple((name, ()) for name in names), frozenset(names))
            yield replace(ANYTHING, object=ObjectShape(absent)), replace(NOTHING, object=wanted)
            continue
        for name in names:
            without = (name, (normaliser.document.never(place.pointer),))
            yield tuple(
                replace(NOTHING, object=ObjectShape(((member, ()), without), frozenset((member,))))
                for member in members if member != name
            )  # fmt: skip


def schemas_of_members(normaliser: Normaliser, place: Place) -> Iterator[tuple[Place, Shapes, Shapes]]:
    """Each schema that members demand, with the shapes in which all of them are absent, and in which one is there."""
    for schema, members in _schemas(normaliser, place).items():
        never = (normaliser.document.never(schema.pointer),)
        absent = replace(ANYTHING, object=ObjectShape(tuple((member, never) for member in members)))
        present = tuple(
            replace(NOTHING, object=ObjectShape(((member, ()),), frozenset((member,)))) for member in members
        )
        yield schema, (absent,), present


def _required(normaliser: Normaliser, place: Place) -> dict[tuple[str, ...], list[str]]:
    """Lists of members that others demand, each with those others."""
    found: dict[tuple[str, ...], list[str]] = {}
    for keyword in ("dependencies", "dependentRequired"):
        if keyword in place.schema and normaliser.document.knows(keyword):
            for member, names in place.schema[keyword].items():
                if isinstance(names, list) and not set(names) <= {member}:
                    found.setdefault(tuple(sorted(set(names))), []).append(member)
    return found


def _schemas(normaliser: Normaliser, place: Place) -> dict[Place, list[str]]:
    """Schemas that members demand, each with those members."""
    found: dict[Place, list[str]] = {}
    for keyword in ("dependencies", "dependentSchemas"):
        if keyword in place.schema and normaliser.document.knows(keyword):
            for member, schema in place.schema[keyword].items():
                if not isinstance(schema, list):
                    child = normaliser.document.child(place, keyword, member)
                    found.setdefault(normaliser.sameness.first(child), []).append(member)
    return found
