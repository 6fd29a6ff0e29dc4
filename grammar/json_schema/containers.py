"""Rules for arrays and objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structgen.grammar.json_schema.arrays import Arrays
from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.json_schema.members import members_of
from structgen.grammar.json_schema.objects import Objects
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, Shape
from structgen.grammar.program import ProgramBuilder

RuleOf = Callable[[Conjunction, int], int]  # (schema, depth) -> first state of its rule


class Containers:
    """`shapes` expands a schema (none: nothing is valid, as far as one can see); `exactly` makes one for a value."""

    def __init__(
        self,
        builder: ProgramBuilder,
        layout: Layout,
        scalars: Scalars,
        rule: RuleOf,
        shapes: Callable[[Conjunction], tuple[Shape, ...]],
        exactly: Callable[[Any], Conjunction],
        *,
        any_order: bool,
    ) -> None:
        self._builder, self._shapes = builder, shapes
        self._arrays = Arrays(builder, layout, scalars, rule, shapes, exactly)
        self._objects = Objects(builder, layout, scalars, rule, any_order)

    def array(self, shape: ArrayShape, depth: int) -> int:
        """A rule for an array; `depth` is that of its items."""
        return self._arrays.array(shape, depth)

    def object(self, shape: ObjectShape, depth: int) -> int:
        """A rule for an object; `depth` is that of its members."""
        members = members_of(shape, self._shapes)
        return self._builder.fail if members is None else self._objects.object(members, depth)
