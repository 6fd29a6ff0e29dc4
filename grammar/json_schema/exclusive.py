"""oneOf: exactly one of several schemas.

A shape of one branch excludes the other branches where that is not provable anyway: (A and not B) or (B and not A).
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_schema.document import Place
from structgen.grammar.json_schema.shapes import ANYTHING, Shape

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normalise import Normaliser

MAX_PAIRS = 50_000  # of shapes that a oneOf may ask to be told apart: about a second

Shapes = tuple[Shape, ...]


def exactly_one(normaliser: Normaliser, place: Place, context: Shapes) -> Shapes:
    """The shapes of a oneOf together with what holds beside it."""
    children = _children(normaliser, place)
    branches = [normaliser.product(context, normaliser.expand(child), place) for child in children]
    rivals = _rivals(normaliser, place, branches)
    found = []
    for shape, others in ((s, o) for branch, overlaps in zip(branches, rivals, strict=True)
                          for s, o in zip(branch, overlaps, strict=True)):  # fmt: skip
        shapes: Shapes = (shape,)
        for index in others:
            shapes = normaliser.product(shapes, normaliser.expand(children[index].opposite), place)
            shapes = normaliser.pruned(shapes)
        found.append(shapes)
    return normaliser.union(found, place)


def _rivals(normaliser: Normaliser, place: Place, branches: list[Shapes]) -> list[list[list[int]]]:
    """For each shape of each branch, the other branches that may hold, too."""
    pairs = sum(len(left) * len(right) for left, right in combinations(branches, 2))
    if pairs > MAX_PAIRS:
        raise GrammarLimitError(
            f"more than {MAX_PAIRS:,} pairs of alternatives in oneOf", pointer=place.pointer, hint="use anyOf"
        )
    rivals: list[list[list[int]]] = [[[] for _ in branch] for branch in branches]
    for (earlier, left), (later, right) in combinations(enumerate(branches), 2):
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                if normaliser.are_disjoint(one, other):
                    continue
                if later not in rivals[earlier][i]:
                    rivals[earlier][i].append(later)
                if earlier not in rivals[later][j]:
                    rivals[later][j].append(earlier)
    return rivals


def not_exactly_one(normaliser: Normaliser, place: Place) -> Shapes:
    """None of the branches, or some two of them."""
    children = _children(normaliser, place)
    none: Shapes = (ANYTHING,)
    for child in children:
        none = normaliser.product(none, normaliser.expand(child.opposite), place)
    found = [none]
    for left, right in combinations(children, 2):
        both = normaliser.product(normaliser.expand(left), normaliser.expand(right), place)
        found.append(normaliser.pruned(both))
    return normaliser.union(found, place)


def _children(normaliser: Normaliser, place: Place) -> list[Place]:
    return [normaliser.document.child(place, "oneOf", index) for index in range(len(place.schema["oneOf"]))]
