"""How many values a schema allows: all of them where they are few, or whether there are surely enough."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from structgen.grammar.json_number import NumberRange
from structgen.grammar.json_schema.name_rules import words_of
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape, TextShape
from structgen.grammar.json_schema.values import json_key
from structgen.grammar.number_automaton import number_dfa
from structgen.grammar.word_count import can_run_out, lengths_of_words

MAX_VALUES = 1_000
FREE_COUNT = 1_000_000  # so many values are as good as infinitely many
FREE_LENGTH = 64  # a limit that no token reaches which only begins a text
MAX_DEPTH = 4  # of members and items that are looked into

Expand = Callable[[Conjunction], tuple[Shape, ...]]


def all_values(shapes: tuple[Shape, ...]) -> list[Any] | None:
    """The values, equal ones once; None where there are too many, or they are not plain to see."""
    found: dict[Hashable, Any] = {}
    for shape in shapes:
        values = _values_of(shape)
        if values is None:
            return None
        for value in values:
            found.setdefault(json_key(value), value)
        if len(found) > MAX_VALUES:
            return None
    return list(found.values())


def _values_of(shape: Shape) -> list[Any] | None:
    if shape.values is not None:
        return list(shape.values)
    if shape.text is not None or shape.array is not None or shape.object is not None:
        return None
    found: list[Any] = [None] if shape.null else []
    found += [False] if shape.false else []
    found += [True] if shape.true else []
    if shape.number is not None:
        numbers = _integers(shape.number)
        if numbers is None:
            return None
        found += numbers
    return found


def _integers(numbers: NumberRange) -> list[Any] | None:
    low, high = numbers.low, numbers.high
    if not numbers.integer or numbers.whole_fraction or low is None or high is None or high - low > MAX_VALUES:
        return None
    return [number for number in range(int(low) - 1, int(high) + 2) if numbers.admits(Decimal(number))]


def reserve_for(shapes: tuple[Shape, ...], count: int, expand: Expand) -> int | None:
    """A bound R: beside any count - 1 values there is another that takes at most R more tokens than the shortest.

    None: there may be fewer values, or it is not plain to see how many there are.
    """
    found = [_reserve_of(shape, count, expand, 0) for shape in shapes]
    known = [reserve for reserve in found if reserve is not None]
    return min(known) if known else None


def _reserve_of(shape: Shape, count: int, expand: Expand, depth: int) -> int | None:
    if shape.values is not None:
        return None
    options = []
    if shape.text is not None:
        options.append(_texts(shape.text, count))
    if shape.number is not None:
        options.append(_numbers(shape.number, count))
    if shape.object is not None and depth < MAX_DEPTH:
        options.append(_objects(shape.object, count, expand, depth))
    if shape.array is not None and depth < MAX_DEPTH:
        options.append(_arrays(shape.array, count, expand, depth))
    known = [option for option in options if option is not None]
    return min(known) if known else None


def _texts(text: TextShape, count: int) -> int | None:
    length = lengths_of_words(words_of(text), count, same=False)
    return None if length is None else length + 2


def _numbers(numbers: NumberRange, count: int) -> int | None:
    if numbers.is_free:
        return len(str(count)) + 1
    # Of numbers that are equally long, only zero has two spellings.
    return lengths_of_words(number_dfa(numbers), count + 1, same=True)


def _objects(shape: ObjectShape, count: int, expand: Expand, depth: int) -> int | None:
    """By a required member with enough values, or by names that are free."""
    for name, schema in shape.members:
        if name in shape.required:
            for one in expand(schema):
                reserve = _reserve_of(one, count, expand, depth + 1)
                if reserve is not None:
                    return reserve
    if shape.most is None and not shape.names and not shape.patterns and shape.other_schema() == ():
        return lengths_needed(count) + 8  # a comma, the key, a colon, and a digit
    return None


def _arrays(shape: ArrayShape, count: int, expand: Expand, depth: int) -> int | None:
    if shape.contains or shape.unique or shape.least == 0:
        return None
    for one in expand(shape.item(0)):
        reserve = _reserve_of(one, count, expand, depth + 1)
        if reserve is not None:
            return reserve
    return None


def lengths_needed(count: int) -> int:
    """How long `count` texts must be at most that differ, of letters and digits."""
    length, words = 0, 1
    while words < count:
        length += 1
        words += 62**length
    return length


def are_free(shapes: tuple[Shape, ...], expand: Expand) -> bool:
    """Whether there are values without end in each of some shapes, also when a few characters of one have been read."""
    return bool(shapes) and all(_is_free(shape, expand) for shape in shapes)


def _is_free(shape: Shape, expand: Expand) -> bool:
    if shape.values is not None or shape.null or shape.true or shape.false:
        return False
    if shape.number is not None and not shape.number.is_free:
        return False
    if shape.text is not None and not _is_free_text(shape.text):
        return False
    if shape.array is not None:
        return False
    return shape.object is None or _objects(shape.object, FREE_COUNT, expand, 0) is not None


def _is_free_text(text: TextShape) -> bool:
    if text.most is not None and text.most < FREE_LENGTH:
        return False
    return text.is_counted or not can_run_out(words_of(replace(text, most=None)))
