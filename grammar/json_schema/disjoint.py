"""Whether alternatives exclude each other, so that exactly one of them is the same as any of them.

Two shapes are disjoint when no type allows a common value. The proof may fail where it is true that they are (it looks
at bounds, values, patterns, required members and prefixes of arrays, to a limited depth); it never claims too much.
"""

from __future__ import annotations

from collections.abc import Callable

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape, TextShape, conjoin
from structgen.grammar.json_schema.text import text_dfa

MAX_DEPTH = 6  # constants that tell alternatives apart lie near the top

Expand = Callable[[Conjunction], tuple[Shape, ...]]


def are_disjoint(one: Shape, other: Shape, expand: Expand, depth: int = 0) -> bool:
    """A proof that no value is valid under both."""
    both = one.meet(other)
    if both.values is not None:
        return not any(_fits_kind(both, value) for value in both.values)
    if both.null or both.boolean:
        return False
    if both.number is not None and not both.number.is_empty:
        return False
    if both.text is not None and not _is_empty_text(both.text):
        return False
    if both.array is not None and not _is_empty_array(both.array, expand, depth):
        return False
    return both.object is None or _is_empty_object(both.object, expand, depth)


def _fits_kind(shape: Shape, value: object) -> bool:
    """Whether the type of a value is allowed at all; more is not looked at."""
    if value is None:
        return shape.null
    if isinstance(value, bool):
        return shape.boolean
    if isinstance(value, str):
        return shape.text is not None
    if isinstance(value, list):
        return shape.array is not None
    return shape.object is not None if isinstance(value, dict) else shape.number is not None


def _is_empty_text(text: TextShape) -> bool:
    if text.most is not None and text.most < text.least:
        return True
    if len(text.patterns) + len(text.formats) < 2:
        return False
    try:
        return text_dfa(text)[0].is_empty
    except GrammarLimitError:
        return False


def _is_empty_array(array: ArrayShape, expand: Expand, depth: int) -> bool:
    if array.most is not None and array.most < array.least:
        return True
    return any(_is_empty(array.item(index), expand, depth) for index in range(min(array.least, len(array.prefix) + 1)))


def _is_empty_object(object_: ObjectShape, expand: Expand, depth: int) -> bool:
    return any(_is_empty(object_.schema_of(name, name_matches), expand, depth) for name in sorted(object_.required))


def _is_empty(schema: Conjunction, expand: Expand, depth: int) -> bool:
    """A proof that nothing is valid under all of a conjunction."""
    if depth >= MAX_DEPTH:
        return False
    # A shape is empty when it has nothing in common with itself.
    return all(are_disjoint(shape, shape, expand, depth + 1) for shape in expand(conjoin((), schema)))
