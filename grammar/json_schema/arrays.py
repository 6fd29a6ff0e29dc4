"""States for arrays. Items are calls of other rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from structgen.grammar.errors import GrammarLimitError, UnsupportedSchemaError
from structgen.grammar.json_schema.any_order import Left, Parts, place_any_order
from structgen.grammar.json_schema.domains import all_values, are_free, reserve_for
from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, Shape, conjoin
from structgen.grammar.json_schema.values import scalar_spellings
from structgen.grammar.program import ProgramBuilder

RuleOf = Callable[[Conjunction, int], int]  # (schema, depth) -> first state of its rule

MAX_PLACES = 5_000  # items in a row, each with how many matching ones must and may still come
MAX_CONTAINS = 4
MAX_TOLD = 2_000  # unique items that must come: of so many it is known how long they can get


@dataclass(frozen=True, slots=True)
class Arrays:
    builder: ProgramBuilder
    layout: Layout
    scalars: Scalars
    rule: RuleOf
    shapes: Callable[[Conjunction], tuple[Shape, ...]]
    exactly: Callable[[Any], Conjunction]  # a schema for one value

    def array(self, shape: ArrayShape, depth: int) -> int:
        """A rule for an array; `depth` is that of its items.

        Raises:
            UnsupportedSchemaError: items must differ, and it is not plain that there are enough.
        """
        shape = _without_forbidden(shape)
        if shape.most is not None and shape.most < shape.least:
            return self.builder.fail
        if not shape.unique or (shape.most is not None and shape.most <= 1):
            return self._bracketed(shape, depth, 0)
        if not shape.prefix and not shape.contains:
            values = all_values(self.shapes(shape.rest))
            if values is not None:
                return self._of_values(values, shape, depth)
        builder = self.builder
        inner = self._inside(shape, depth, self._reserve(shape))
        schemas = {*shape.prefix, shape.rest}
        is_free = not shape.contains and all(are_free(self.shapes(schema), self.shapes) for schema in schemas)
        return builder.literal(b"[", builder.unique_array(inner, is_free=is_free))

    def _bracketed(self, shape: ArrayShape, depth: int, reserve: int) -> int:
        return self.builder.literal(b"[", self._inside(shape, depth, reserve))

    def _inside(self, shape: ArrayShape, depth: int, reserve: int) -> int:
        """Behind the opening bracket."""
        builder, layout = self.builder, self.layout
        close = layout.close(depth, b"]", builder.accept)
        empty = builder.literal(b"]", builder.accept)
        if shape.most == 0:
            return layout.opened(depth, builder.fail, empty if not shape.contains or not _must(shape) else None)
        if shape.contains:
            first = _Contains(self, shape, depth, reserve).first(close)
            return layout.opened(depth, first, empty if shape.least == 0 and not _must(shape) else None)
        # Built from the end: `after` is where an item in front of it has just ended.
        fixed = len(shape.prefix) if shape.most is None else min(len(shape.prefix), shape.most)
        after = self._tail(shape, fixed, close, depth, reserve) if fixed else builder.fail
        first = builder.fail
        for index in range(fixed - 1, -1, -1):
            first = self.item(shape.prefix[index], depth, after, reserve)
            choices = [layout.comma(depth, first)] + ([close] if index >= shape.least else [])
            after = builder.split(choices)
        if not fixed:
            first = self.item(shape.rest, depth, self._tail(shape, 1, close, depth, reserve), reserve)
        return layout.opened(depth, first, empty if shape.least == 0 else None)

    def item(self, schema: Conjunction, depth: int, after: int, reserve: int) -> int:
        return self.builder.reserve_tokens(reserve, self.layout.item(self.rule(schema, depth), after))

    def _tail(self, shape: ArrayShape, done: int, close: int, depth: int, reserve: int) -> int:
        """After `done` items: more of `rest`, counted."""
        builder = self.builder
        most = None if shape.most is None else shape.most - done
        if most == 0:
            return close if done >= shape.least else builder.fail
        loop = builder.reserve()
        body = self.layout.comma(depth, self.item(shape.rest, depth, builder.accept, reserve))
        builder.set_loop(loop, body, close, max(shape.least - done, 0), most)
        return loop

    def _of_values(self, values: list[Any], shape: ArrayShape, depth: int) -> int:
        """Few values: each comes at most once, and the automaton itself knows which have."""
        if len(values) < shape.least:
            return self.builder.fail
        most = shape.most if shape.most is not None and shape.most < len(values) else None
        left: Left = (shape.least, most)

        def parts(after: int) -> Parts:
            return [(number, self._value(value, depth, after)) for number, value in enumerate(values)]

        return place_any_order(self.builder, self.layout, depth, (b"[", b"]"), parts, (), left)

    def _value(self, value: Any, depth: int, after: int) -> int:
        if isinstance(value, list | dict):
            return self.item(self.exactly(value), depth, after, 0)
        spellings = self.scalars.words(scalar_spellings(value))
        return self.layout.item(spellings, after)

    def _reserve(self, shape: ArrayShape) -> int:
        """How many more tokens than the shortest a unique item may take, when so many as must come are there.

        Raises:
            UnsupportedSchemaError: there may be fewer values.
        """
        least = shape.least
        if shape.contains:
            least = max(least, len(shape.prefix) + sum(least for _, least, _ in shape.contains))
        if least < 2:
            return 0
        schemas = {shape.item(index) for index in range(min(least, len(shape.prefix) + 1))}
        schemas |= {conjoin(one, schema) for schema, many, _ in shape.contains if many > 0 for one in schemas}
        found = [self._reserve_for(schema, least) for schema in schemas]
        if least > MAX_TOLD or any(reserve is None for reserve in found):
            raise UnsupportedSchemaError(
                f"{least} items must differ, and it is not certain that there are so many",
                hint="leave out minItems or uniqueItems, or let items be texts or numbers",
            )
        return max(reserve for reserve in found if reserve is not None)

    def _reserve_for(self, schema: Conjunction, count: int) -> int | None:
        shapes = self.shapes(schema)
        values = all_values(shapes)
        if values is not None and len(values) >= count:
            return max(len(str(value)) for value in values) + 2
        return reserve_for(shapes, count, self.shapes)


def _must(shape: ArrayShape) -> bool:
    return any(least > 0 for _, least, _ in shape.contains)


def _without_forbidden(shape: ArrayShape) -> ArrayShape:
    """The same shape, where schemas that no item may match are said of all items."""
    kept = []
    for schema, least, most in shape.contains:
        if least == 0 and most == 0 and len(schema) == 1:
            never = (schema[0].opposite,)
            prefix = tuple(conjoin(one, never) for one in shape.prefix)
            shape = replace(shape, prefix=prefix, rest=conjoin(shape.rest, never))
        elif least > 0 or most is not None:
            kept.append((schema, least, most))
    return replace(shape, contains=tuple(kept))


# How many items are there (as far as it matters), how many must and may come, and so for each schema of `contains`.
Place = tuple[int, Left, tuple[Left, ...]]


class _Contains:
    """An array of which some items must match schemas: a state for each `Place`.

    An item is read under each choice of the schemas that it is counted for. One that it is not counted for it may match
    all the same, unless at most so many may.
    """

    def __init__(self, arrays: Arrays, shape: ArrayShape, depth: int, reserve: int) -> None:
        if len(shape.contains) > MAX_CONTAINS:
            raise GrammarLimitError(f"more than {MAX_CONTAINS} times contains on one array", hint="use fewer")
        self._arrays, self._shape, self._depth, self._reserve = arrays, shape, depth, reserve
        self._after: dict[Place, int] = {}
        self._todo: list[Place] = []

    def first(self, close: int) -> int:
        """The first item."""
        builder, layout = self._arrays.builder, self._arrays.layout
        shape = self._shape
        start: Place = (0, (shape.least, shape.most), tuple((least, most) for _, least, most in shape.contains))
        first = builder.split(self._items(start))
        while self._todo:
            place = self._todo.pop()
            done = place[1][0] == 0 and all(least == 0 for least, _ in place[2])
            items = self._items(place)
            choices = [layout.comma(self._depth, builder.split(items))] if items else []
            builder.set_split(self._after[place], choices + ([close] if done else []))
        return first

    def _items(self, place: Place) -> list[int]:
        """An item, in each way in which it can be counted."""
        index, left, matching = place
        if left[1] == 0:
            return []
        schema = self._shape.item(index)
        ways = [[False, True] if most != 0 and (least > 0 or most is not None) else [False] for least, most in matching]
        found = []
        for counted in product(*ways):
            both = list(zip(matching, counted, strict=True))
            following = tuple(_less(one) if is_counted else one for one, is_counted in both)
            after = self._place_after((min(index + 1, len(self._shape.prefix)), _less(left), following))
            for wanted in self._wanted(schema, both):
                found.append(self._arrays.item(wanted, self._depth, after, self._reserve))
        return found

    def _wanted(self, schema: Conjunction, counted: list[tuple[Left, bool]]) -> list[Conjunction]:
        """The alternatives for an item that is counted for some of the schemas."""
        alternatives = [schema]
        for (one, _, _), ((least, most), is_counted) in zip(self._shape.contains, counted, strict=True):
            if is_counted:
                alternatives = [conjoin(wanted, one) for wanted in alternatives]
            elif most is not None or (least > 0 and self._shape.unique):
                # Of unique items, one that matches in another spelling must not be taken for one that does not.
                alternatives = [conjoin(wanted, (place.opposite,)) for wanted in alternatives for place in one]
        return alternatives

    def _place_after(self, place: Place) -> int:
        known = self._after.get(place)
        if known is None:
            if len(self._after) >= MAX_PLACES:
                raise GrammarLimitError(
                    f"more than {MAX_PLACES:,} combinations of items and how many match",
                    hint="use smaller minItems, maxItems, minContains and maxContains",
                )
            known = self._after[place] = self._arrays.builder.reserve()
            self._todo.append(place)
        return known


def _less(left: Left) -> Left:
    return max(left[0] - 1, 0), None if left[1] is None else left[1] - 1
