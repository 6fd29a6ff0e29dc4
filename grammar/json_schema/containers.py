"""States for arrays, and for objects by way of `objects.py`. Items and members are calls of other rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from structgen.grammar.errors import UnsupportedSchemaError
from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.json_schema.members import members_of
from structgen.grammar.json_schema.objects import Objects
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape
from structgen.grammar.program import ProgramBuilder

RuleOf = Callable[[Conjunction, int], int]  # (schema, depth) -> first state of its rule


def _refuse(asserted: bool, name: str) -> None:
    if asserted:
        raise UnsupportedSchemaError(f"{name} is not enforced yet", hint="leave it out")


@dataclass(frozen=True, slots=True)
class Containers:
    builder: ProgramBuilder
    layout: Layout
    scalars: Scalars
    rule: RuleOf
    shapes: Callable[[Conjunction], tuple[Shape, ...]]  # none: nothing is valid, as far as one can see
    any_order: bool

    def array(self, shape: ArrayShape, depth: int) -> int:
        """A rule for an array; `depth` is that of its items."""
        _refuse(shape.unique, "uniqueItems")
        _refuse(bool(shape.contains), "contains")
        if shape.most is not None and shape.most < shape.least:
            return self.builder.fail
        builder, layout = self.builder, self.layout
        close = layout.close(depth, b"]", builder.accept)
        empty = builder.literal(b"]", builder.accept)
        if shape.most == 0:
            return builder.literal(b"[", layout.opened(depth, empty, None))
        # Built from the end: `after` is where an item in front of it has just ended.
        fixed = len(shape.prefix) if shape.most is None else min(len(shape.prefix), shape.most)
        after = self._tail(shape, fixed, close, depth) if fixed else builder.fail
        first = builder.fail
        for index in range(fixed - 1, -1, -1):
            first = self._item(shape.prefix[index], depth, after)
            choices = [layout.comma(depth, first)] + ([close] if index >= shape.least else [])
            after = builder.split(choices)
        if not fixed:
            first = self._item(shape.rest, depth, self._tail(shape, 1, close, depth))
        return builder.literal(b"[", layout.opened(depth, first, empty if shape.least == 0 else None))

    def _item(self, schema: Conjunction, depth: int, after: int) -> int:
        return self.layout.item(self.rule(schema, depth), after)

    def _tail(self, shape: ArrayShape, done: int, close: int, depth: int) -> int:
        """After `done` items: more of `rest`, counted."""
        builder = self.builder
        most = None if shape.most is None else shape.most - done
        if most == 0:
            return close if done >= shape.least else builder.fail
        loop = builder.reserve()
        body = self.layout.comma(depth, self._item(shape.rest, depth, builder.accept))
        builder.set_loop(loop, body, close, max(shape.least - done, 0), most)
        return loop

    def object(self, shape: ObjectShape, depth: int) -> int:
        """A rule for an object; `depth` is that of its members."""
        members = members_of(shape, self.shapes)
        if members is None:
            return self.builder.fail
        objects = Objects(self.builder, self.layout, self.scalars, self.rule, self.any_order)
        return objects.object(members, depth)
