"""Members that there must be, whatever their names: what negation makes of "all members".

Which of an object's names can be the one needs to know what schemas allow, so it is worked out once a conjunction is
complete; before that it is a field of `ObjectShape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_schema.document import SchemaDocument
from structgen.grammar.json_schema.name_rules import language_of_names
from structgen.grammar.json_schema.names import NameLanguage, listed_names, name_matches, parts_of_names
from structgen.grammar.json_schema.shapes import (
    Conjunction,
    ObjectShape,
    OtherNames,
    Shape,
    SomeMember,
    conjoin,
    is_never,
)

MAX_CHOICES = 2_000  # ways to say which members are the ones that there must be
MAX_OTHERS = 3  # members of unlisted names that there must be
HINT = "say what is allowed instead"

Expand = Callable[[Conjunction], tuple[Shape, ...]]


@dataclass(frozen=True, slots=True)
class SomeMembers:
    """Settles objects on behalf of a normaliser; `expand` may say "anything" where it does not know, `exact` raises."""

    document: SchemaDocument
    expand: Expand
    exact: Expand
    _languages: dict[Conjunction, NameLanguage] = field(default_factory=dict)

    def settled(self, wanted: ObjectShape) -> list[ObjectShape]:
        """Object shapes whose `some` are only about names that are not listed.

        Raises:
            GrammarLimitError: too many ways.
        """
        if wanted.names:
            wanted = self._with_names(wanted)
        choices = [list(self._choices(wanted, some)) for some in wanted.some]
        count = 1
        for ways in choices:
            count *= len(ways)
        if count > MAX_CHOICES:
            raise GrammarLimitError(
                "too many members of which one must fail", pointer=wanted.some[0].pointer, hint=HINT
            )
        found = []
        for combination in product(*choices):
            shape = replace(wanted, some=())
            for one in combination:
                shape = shape.meet(one, name_matches) if isinstance(one, ObjectShape) else shape
            for others in _shared([one for one in combination if isinstance(one, SomeMember)]):
                found.append(replace(shape, some=others))
        return found

    def _language(self, schema: Conjunction) -> NameLanguage:
        """The names that a schema allows."""
        found = self._languages.get(schema)
        if found is None:
            found = self._languages[schema] = NameLanguage.of(language_of_names(self.exact(schema)))
        return found

    def _with_names(self, wanted: ObjectShape) -> ObjectShape:
        """`propertyNames` as what holds for members and for other names."""
        language, pointer = self._language(wanted.names), wanted.names[0].pointer
        never = (self.document.never(pointer),)
        members = tuple(
            (name, schema if name_matches(language, name) else conjoin(schema, never))
            for name, schema in wanted.members
        )
        others = (*wanted.others, OtherNames(((language, pointer, ()),), never))
        return replace(wanted, members=members, others=others, names=())

    def _choices(self, wanted: ObjectShape, some: SomeMember) -> Iterator[ObjectShape | SomeMember]:
        """The ways in which there can be such a member: by each listed name, and by another name."""
        if some.names:
            some = replace(some, names=(), matching=(*some.matching, self._language(some.names)))
        for name, schema in wanted.members:
            if name not in some.taken and _matches(some, name) and not is_never(schema):
                yield _having(name, some)
        taken = {*some.taken, *(name for name, _ in wanted.members)}
        patterns = wanted.patterns | dict.fromkeys((*some.matching, *some.unmatched), some.pointer)
        if not patterns:
            if self._is_possible(conjoin(wanted.other_schema(), some.schema)):
                yield some
            return
        open_ended = False
        for matched, names in parts_of_names(patterns, taken):
            if not matched.issuperset(some.matching) or not matched.isdisjoint(some.unmatched):
                continue
            if self._is_possible(conjoin(wanted.other_schema(matched), some.schema)):
                words = listed_names(names)
                open_ended = open_ended or words is None
                yield from (_having(name, some) for name in words or ())
        if open_ended:
            yield some

    def _is_possible(self, schema: Conjunction) -> bool:
        return not is_never(schema) and bool(self.expand(schema))


def _matches(some: SomeMember, name: str) -> bool:
    return all(name_matches(one, name) for one in some.matching) and not any(
        name_matches(one, name) for one in some.unmatched
    )


def _having(name: str, some: SomeMember) -> ObjectShape:
    return ObjectShape(((name, some.schema),), frozenset((name,)))


def _shared(wanted: list[SomeMember]) -> list[tuple[SomeMember, ...]]:
    """The ways in which members can be told apart: each member does for one or several of those wanted."""
    if len(wanted) > MAX_OTHERS:
        raise GrammarLimitError(
            f"more than {MAX_OTHERS} members of unknown names must fail", pointer=wanted[0].pointer, hint=HINT
        )
    ways: list[tuple[SomeMember, ...]] = [()]
    for one in wanted:
        ways = [
            (*way[:place], _both(way[place], one), *way[place + 1 :]) if place < len(way) else (*way, one)
            for way in ways
            for place in range(len(way) + 1)
        ]
    return ways


def _both(one: SomeMember, other: SomeMember) -> SomeMember:
    return SomeMember(
        one.pointer,
        one.taken | other.taken,
        tuple(dict.fromkeys(one.matching + other.matching)),
        tuple(dict.fromkeys(one.unmatched + other.unmatched)),
        (),
        conjoin(one.schema, other.schema),
    )
