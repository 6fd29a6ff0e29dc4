"""Whether alternatives exclude each other, so that exactly one of them is the same as any of them.

Two shapes are disjoint when no type allows a common value. The proof may fail where it is true that they are (it looks
at bounds, values, patterns, required members and prefixes of arrays, to a limited depth); it never claims too much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_schema.names import name_matches
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape, TextShape, conjoin
from structgen.grammar.json_schema.text import text_dfa

MAX_DEPTH = 6  # constants that tell alternatives apart lie near the top

Expand = Callable[[Conjunction], tuple[Shape, ...]]


def are_disjoint(one: Shape, other: Shape, expand: Expand, depth: int = 0) -> bool:
    """A proof that no value is valid under both."""
    return is_nothing(one.meet(other), expand, depth)


def is_nothing(shape: Shape, expand: Expand, depth: int = 0) -> bool:
    """A proof that no value is valid under a shape."""
    if shape.values is not None:
        return not any(_fits_kind(shape, value) for value in shape.values)
    if shape.null or shape.true or shape.false:
        return False
    return without_empty_parts(shape, expand, depth).is_nothing


def without_empty_parts(shape: Shape, expand: Expand, depth: int = 0) -> Shape:
    """The shape without the types of which it allows, provably, no value. Its `values` are not looked at."""
    number, text, array, object_ = shape.number, shape.text, shape.array, shape.object
    if number is not None and number.is_empty:
        number = None
    if text is not None and _is_empty_text(text):
        text = None
    if array is not None and _is_empty_array(array, expand, depth):
        array = None
    if object_ is not None and _is_empty_object(object_, expand, depth):
        object_ = None
    if number is shape.number and text is shape.text and array is shape.array and object_ is shape.object:
        return shape
    return replace(shape, number=number, text=text, array=array, object=object_)


def _fits_kind(shape: Shape, value: object) -> bool:
    """Whether the type of a value is allowed at all; more is not looked at."""
    if value is None:
        return shape.null
    if isinstance(value, bool):
        return shape.true if value else shape.false
    if isinstance(value, str):
        return shape.text is not None
    if isinstance(value, list):
        return shape.array is not None
    return shape.object is not None if isinstance(value, dict) else shape.number is not None


def _is_empty_text(text: TextShape) -> bool:
    if text.is_empty:
        return True
    if len(text.patterns) + len(text.formats) + _negated(text) < 2:
        return False
    try:
        return text_dfa(text)[0].is_empty
    except GrammarLimitError:
        return False


def _negated(text: TextShape) -> int:
    return len(text.without_patterns) + len(text.without_formats) + bool(text.excluded)


def _is_empty_array(array: ArrayShape, expand: Expand, depth: int) -> bool:
    if array.is_empty:
        return True
    if any(_is_empty(array.item(index), expand, depth) for index in range(min(array.least, len(array.prefix) + 1))):
        return True
    return any(least > 0 and _never_contains(array, schema, expand, depth) for schema, least, _ in array.contains)


def _never_contains(array: ArrayShape, schema: Conjunction, expand: Expand, depth: int) -> bool:
    """A proof that no item can match a schema."""
    if array.most is not None and array.most <= len(array.prefix):
        items = array.prefix[: array.most]
    else:
        items = (*array.prefix, array.rest)
    return all(_is_empty(conjoin(item, schema), expand, depth) for item in items)


def _is_empty_object(object_: ObjectShape, expand: Expand, depth: int) -> bool:
    if object_.is_empty:
        return True
    return any(_is_empty(object_.schema_of(name, name_matches), expand, depth) for name in sorted(object_.required))


def _is_empty(schema: Conjunction, expand: Expand, depth: int) -> bool:
    """A proof that nothing is valid under all of a conjunction."""
    if not schema or depth >= MAX_DEPTH:
        return False
    return all(is_nothing(shape, expand, depth + 1) for shape in expand(schema))
