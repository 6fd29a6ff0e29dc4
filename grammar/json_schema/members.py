"""Which members an object may have: an `ObjectShape` with its names sorted out.

Names that patterns or propertyNames leave to the others are listed where they are few, as optional members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.errors import UnsupportedSchemaError
from structgen.grammar.json_schema.any_order import Left
from structgen.grammar.json_schema.name_rules import language_of_names
from structgen.grammar.json_schema.names import listed_names, parts_of_names
from structgen.grammar.json_schema.shapes import Conjunction, ObjectShape, Shape, SomeMember, conjoin, is_never
from structgen.grammar.regex_tree import MAX_COUNT
from structgen.grammar.word_count import count_words

Expand = Callable[[Conjunction], tuple[Shape, ...]]


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    schema: Conjunction
    required: bool


@dataclass(frozen=True, slots=True)
class OtherNames:
    """Names that are not listed: those of a language; None: all but the listed ones."""

    language: CharDFA | None
    schema: Conjunction


@dataclass(frozen=True)
class Members:
    """Attributes:
    listed: in the order in which they come.
    others: parts of all other names that exclude each other.
    least, most: how many members there must be in all.
    some: different members that there must be among the others, each of one of some parts.
    """

    listed: tuple[Member, ...]
    others: tuple[OtherNames, ...]
    least: int
    most: int | None
    some: tuple[tuple[OtherNames, ...], ...] = ()

    @property
    def required_from(self) -> list[int]:
        """For each place in `listed`, and behind it: how many required members come from there on."""
        counts = [len(self.some)]
        for member in reversed(self.listed):
            counts.append(counts[-1] + member.required)
        return counts[::-1]

    @cached_property
    def words(self) -> int | None:
        """How many names there are beside the listed ones; None: more than any output has."""
        counts = [None if other.language is None else count_words(other.language) for other in self.others]
        total = sum(count or 0 for count in counts)
        return None if None in counts or total > MAX_COUNT else total

    def settled(self, place: int, left: Left, required: int) -> Left | None:
        """What of `left` still matters at a place in `listed` with so many required ones to come; None: impossible."""
        least, most = left
        possible = None if self.words is None else len(self.listed) - place + self.words
        if most is not None and most < max(least, required):
            return None
        if possible is not None and least > possible:
            return None
        if possible is not None and most is not None and most >= possible:
            most = None
        return (0 if least <= required else least), most


def members_of(shape: ObjectShape, expand: Expand) -> Members | None:
    """The members of a shape; None when it contradicts itself.

    Raises:
        GrammarLimitError: patterns overlap too much.
    """
    some = tuple(_parts_of_some(shape, one, expand) for one in shape.some)
    if not all(some):
        return None
    if not shape.patterns and not shape.names:
        listed = tuple(Member(name, schema, name in shape.required) for name, schema in shape.members)
        rest = shape.other_schema()
        if is_never(rest):
            return Members(listed, (), shape.least, shape.most, some)
        return Members(listed, (OtherNames(None, rest),), shape.least, shape.most, some)
    allowed = language_of_names(expand(shape.names)) if shape.names else None
    members = []
    for name, schema in shape.members:
        if allowed is None or allowed.matches(name):
            members.append(Member(name, schema, name in shape.required))
        elif name in shape.required:
            return None
    others = []
    for matched, language in parts_of_names(shape.patterns, [name for name, _ in shape.members], allowed):
        schema = shape.other_schema(matched)
        names = listed_names(language)
        if names is not None:
            members += [Member(name, schema, False) for name in names]
        elif expand(schema):
            others.append(OtherNames(language, schema))
    return Members(tuple(members), tuple(others), shape.least, shape.most, some)


def _parts_of_some(shape: ObjectShape, some: SomeMember, expand: Expand) -> tuple[OtherNames, ...]:
    """The names that are not listed by which there can be such a member.

    Raises:
        UnsupportedSchemaError: other members could take all these names. GrammarLimitError.
    """
    listed = {name for name, _ in shape.members}
    patterns = shape.patterns | dict.fromkeys((*some.matching, *some.unmatched), some.pointer)
    if not patterns and some.taken <= listed:
        schema = conjoin(shape.other_schema(), some.schema)
        return (OtherNames(None, schema),) if expand(schema) else ()
    parts = []
    for matched, language in parts_of_names(patterns, listed | some.taken):
        if matched.issuperset(some.matching) and matched.isdisjoint(some.unmatched):
            schema = conjoin(shape.other_schema(matched), some.schema)
            # Names that are few are members, each in a shape of its own.
            if listed_names(language) is None and expand(schema):
                _refuse_finite(language, some.pointer)
                parts.append(OtherNames(language, schema))
    return tuple(parts)


def _refuse_finite(names: CharDFA, pointer: str) -> None:
    count = count_words(names)
    if count is not None and count <= MAX_COUNT:
        raise UnsupportedSchemaError(
            "the names of which one must fail could all be taken by others", pointer=pointer, hint="list the names"
        )
