"""unevaluatedProperties and unevaluatedItems: what the subschemas that hold do not look at.

Which subschemas hold decides what is left, so a schema is divided into cases that exclude each other: in each it is
known what has been evaluated. Only subschemas that evaluate something need cases of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from structgen.grammar.errors import GrammarLimitError, UnsupportedSchemaError
from structgen.grammar.json_schema.assertions import own_shape
from structgen.grammar.json_schema.conditions import required_by_members, schemas_of_members
from structgen.grammar.json_schema.document import Place
from structgen.grammar.json_schema.shapes import (
    ANYTHING,
    NOTHING,
    ArrayShape,
    Conjunction,
    ObjectShape,
    OtherNames,
    Shape,
    SomeMember,
)

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normalise import Normaliser

MAX_CASES = 300
KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")

Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What has been looked at: names, names that match patterns, or all; items up to an index, or all, or those that
    match a schema."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[tuple[str, str]] = frozenset()  # with their pointers
    all_names: bool = False
    items: int = 0
    all_items: bool = False
    matching: frozenset[Place] = frozenset()

    def join(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_names or other.all_names,
            max(self.items, other.items),
            self.all_items or other.all_items,
            self.matching | other.matching,
        )


UNTOUCHED = Evaluated()
Cases = dict[Evaluated, Shapes]


def has_unevaluated(normaliser: Normaliser, place: Place) -> bool:
    return any(keyword in place.schema and normaliser.document.knows(keyword) for keyword in KEYWORDS)


class Evaluation:
    """Divides schemas into cases on behalf of a normaliser."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._document = normaliser.document

    def shapes(self, place: Place) -> Shapes:
        """The shapes of a schema with one of the keywords, or of its negation."""
        normaliser = self._normaliser
        found: list[Shapes] = []
        for evaluated, shapes in self._cases_beside(place.opposite if place.negated else place).items():
            rest = self._rest(place, evaluated)
            if place.negated:
                found += [normaliser.product(shapes, self._failing(one, evaluated), place) for one in rest]
                continue
            for child in rest:
                shapes = normaliser.product(shapes, (self._left(child, evaluated),), place)
            found.append(shapes)
        return normaliser.union(found, place)

    def _rest(self, place: Place, evaluated: Evaluated) -> list[Place]:
        """The schemas of the keywords that matter in a case."""
        done = {"unevaluatedProperties": evaluated.all_names, "unevaluatedItems": evaluated.all_items}
        names = [one for one in KEYWORDS if one in place.schema and self._document.knows(one) and not done[one]]
        return [self._document.child(place, name) for name in names]

    def _left(self, child: Place, evaluated: Evaluated) -> Shape:
        """What is not evaluated, under its schema."""
        if _is_about_names(child):
            patterns = tuple((pattern, pointer, ()) for pattern, pointer in sorted(evaluated.patterns))
            members: tuple[tuple[str, Conjunction], ...] = tuple((name, ()) for name in sorted(evaluated.names))
            return replace(ANYTHING, object=ObjectShape(members, others=(OtherNames(patterns, (child,)),)))
        return replace(
            ANYTHING, array=ArrayShape(prefix=((),) * evaluated.items, rest=self._items_left(child, evaluated))
        )

    def _items_left(self, child: Place, evaluated: Evaluated) -> Conjunction:
        """What an item behind the prefix must be: one that contains has matched, or one under the schema."""
        if not evaluated.matching or child.is_always:
            return (child,)
        options = sorted(evaluated.matching, key=lambda place: place.pointer)
        return (self._document.either((*options, child), child.pointer),)

    def _failing(self, child: Place, evaluated: Evaluated) -> Shapes:
        """That something is not evaluated and fails its schema."""
        failing = child.opposite
        if _is_about_names(child):
            patterns = tuple(pattern for pattern, _ in sorted(evaluated.patterns))
            some = SomeMember(child.pointer, evaluated.names, unmatched=patterns, schema=(failing,))
            return () if failing.is_never else (replace(NOTHING, object=ObjectShape(some=(some,))),)
        if failing.is_never:
            return ()
        if evaluated.items == 0:
            wanted = (failing, *(one.opposite for one in evaluated.matching))
            return (replace(NOTHING, array=ArrayShape(contains=((wanted, 1, None),))),)
        if failing.is_always and not evaluated.matching:
            return (replace(NOTHING, array=ArrayShape(evaluated.items + 1)),)
        raise UnsupportedSchemaError(
            "that an item behind others fails unevaluatedItems is not enforced", pointer=child.pointer, hint="use false"
        )

    def cases(self, place: Place) -> Cases:
        """A schema that applies in place: its cases, with what each evaluates."""
        if not isinstance(place.schema, dict):
            return {} if place.schema is False else {UNTOUCHED: (ANYTHING,)}
        if not has_unevaluated(self._normaliser, place):
            with self._normaliser.opened(place):
                return self._cases_beside(place)
        evaluated = Evaluated(
            all_names="unevaluatedProperties" in place.schema, all_items="unevaluatedItems" in place.schema
        )
        return {evaluated: self._normaliser.expand(place)}

    def _cases_beside(self, place: Place) -> Cases:
        """The cases of all keywords but the two."""
        document, schema = self._document, place.schema
        if "$ref" in schema and document.ignores_siblings:
            return self.cases(document.resolve(place, schema["$ref"]))
        cases: Cases = {self._own(place): (own_shape(document, place),)}
        for target in document.targets(place):
            cases = self._both(cases, self.cases(target), place)
        for child in self._normaliser.children(place, "allOf"):
            cases = self._both(cases, self.cases(child), place)
        if "not" in schema:
            cases = self._with(cases, self._normaliser.expand(document.child(place, "not").opposite), place)
        for one in required_by_members(self._normaliser, place):
            cases = self._with(cases, one, place)
        for child, absent, present in schemas_of_members(self._normaliser, place):
            given = {
                evaluated: self._product(present, shapes, place) for evaluated, shapes in self.cases(child).items()
            }
            cases = self._both(cases, self._either([{UNTOUCHED: absent}, given], place), place)
        if "if" in schema and document.knows("if"):
            cases = self._both(cases, self._conditional(place), place)
        if "oneOf" in schema:
            cases = self._both(cases, self._one_of(place), place)
        if "anyOf" in schema:
            cases = self._both(cases, self._any_of(place), place)
        return cases

    def _own(self, place: Place) -> Evaluated:
        """What the keywords of a schema evaluate by themselves."""
        document, schema = self._document, place.schema
        items, prefix = schema.get("items"), schema.get("prefixItems") if document.knows("prefixItems") else None
        count = len(items) if isinstance(items, list) else len(prefix or ())
        rest = "additionalItems" in schema and document.knows("additionalItems") and isinstance(items, list)
        contains = document.draft >= 2020 and "contains" in schema
        return Evaluated(
            frozenset(schema.get("properties", ())),
            frozenset(
                (pattern, f"{place.pointer}/patternProperties") for pattern in schema.get("patternProperties", ())
            ),
            "additionalProperties" in schema,
            count,
            isinstance(items, dict | bool) or rest,
            frozenset((document.child(place, "contains"),)) if contains else frozenset(),
        )

    def _conditional(self, place: Place) -> Cases:
        condition = self._document.child(place, "if")
        then: Cases = self.cases(condition)
        otherwise: Cases = {UNTOUCHED: self._normaliser.expand(condition.opposite)}
        if "then" in place.schema:
            then = self._both(then, self.cases(self._document.child(place, "then")), place)
        if "else" in place.schema:
            otherwise = self._both(otherwise, self.cases(self._document.child(place, "else")), place)
        return self._either([then, otherwise], place)

    def _one_of(self, place: Place) -> Cases:
        children = self._normaliser.children(place, "oneOf")
        found = []
        for child in children:
            cases = self.cases(child)
            for other in children:
                if other is not child:
                    cases = self._with(cases, self._normaliser.expand(other.opposite), place)
            found.append(cases)
        return self._either(found, place)

    def _any_of(self, place: Place) -> Cases:
        """Branches that evaluate something hold or do not, each; one of the others is enough."""
        normaliser = self._normaliser
        plain: list[Shapes] = []
        some: Cases = {}  # a branch so far holds
        none: Shapes = (ANYTHING,)  # no branch so far holds, but perhaps plain ones
        for child in normaliser.children(place, "anyOf"):
            branch = self.cases(child)
            if set(branch) <= {UNTOUCHED}:
                plain.append(normaliser.expand(child))
                continue
            fails = normaliser.expand(child.opposite)
            either = self._either([branch, {UNTOUCHED: fails}], place)
            some = self._either([self._both(some, either, place), self._with(branch, none, place)], place)
            none = self._product(none, fails, place)
        if plain:
            untouched = self._product(none, normaliser.union(plain, place), place)
            some = self._either([some, {UNTOUCHED: untouched}], place)
        return some

    def _both(self, left: Cases, right: Cases, place: Place) -> Cases:
        found: dict[Evaluated, list[Shapes]] = {}
        for one, shapes in left.items():
            for other, more in right.items():
                found.setdefault(one.join(other), []).append(self._product(shapes, more, place))
        return self._limited(found, place)

    def _either(self, cases: Iterable[Cases], place: Place) -> Cases:
        found: dict[Evaluated, list[Shapes]] = {}
        for one in cases:
            for evaluated, shapes in one.items():
                found.setdefault(evaluated, []).append(shapes)
        return self._limited(found, place)

    def _with(self, cases: Cases, shapes: Shapes, place: Place) -> Cases:
        return {evaluated: self._product(one, shapes, place) for evaluated, one in cases.items()}

    def _product(self, left: Shapes, right: Shapes, place: Place) -> Shapes:
        return self._normaliser.pruned(self._normaliser.product(left, right, place))

    def _limited(self, found: dict[Evaluated, list[Shapes]], place: Place) -> Cases:
        cases = {evaluated: self._normaliser.union(parts, place) for evaluated, parts in found.items()}
        if len(cases) > MAX_CASES:
            raise GrammarLimitError(
                f"more than {MAX_CASES} cases of what has been evaluated", pointer=place.pointer, hint="use fewer anyOf"
            )
        return {evaluated: shapes for evaluated, shapes in cases.items() if shapes}


def _is_about_names(child: Place) -> bool:
    return child.pointer.endswith("/unevaluatedProperties")
