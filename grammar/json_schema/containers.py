"""States for arrays and objects. Items and members are calls of other rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from structgen.grammar.errors import UnsupportedSchemaError
from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.json_schema.names import listed_names, parts_of_names, refuse_dead_ends
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape
from structgen.grammar.json_string import quoted
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
    is_possible: Callable[[Conjunction], bool]  # False: nothing is valid, as far as one can see
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
        return self.builder.call(self.rule(schema, depth), self.layout.blank(after))

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
        _refuse(bool(shape.names), "propertyNames")
        _refuse(shape.least > 0, "minProperties")
        _refuse(shape.most is not None, "maxProperties")
        shape = self._with_listed_names(shape)
        return self._in_any_order(shape, depth) if self.any_order else self._in_order(shape, depth)

    def _with_listed_names(self, shape: ObjectShape) -> ObjectShape:
        """Names that match patterns, where they are few, as optional members; the others must never run out.

        Raises:
            UnsupportedSchemaError: names could be begun that cannot be ended.
        """
        if not shape.patterns:
            return shape
        members = list(shape.members)
        for matched, language in parts_of_names(shape.patterns, [name for name, _ in members]):
            schema = shape.other_schema(matched)
            listed = listed_names(language)
            if listed is not None:
                members += [(name, schema) for name in listed]
            elif self.is_possible(schema):
                refuse_dead_ends(language, shape.patterns[next(iter(matched or shape.patterns))])
        return replace(shape, members=tuple(members))

    def _in_order(self, shape: ObjectShape, depth: int) -> int:
        builder, layout = self.builder, self.layout
        close = layout.close(depth, b"}", builder.accept)
        empty = builder.literal(b"}", builder.accept)
        # `choose` offers the members from here on; `after` is where the member in front of them has just ended.
        after = builder.reserve()
        choose = self._other_member(shape, depth, after)
        builder.set_split(after, [layout.comma(depth, choose), close])
        all_optional = True
        for name, schema in reversed(shape.members):
            member = self._member(quoted(name), schema, depth, after)
            if name in shape.required:
                choose, all_optional = member, False
            else:
                choose = builder.split([member, choose])
            after = builder.split([layout.comma(depth, choose)] + ([close] if all_optional else []))
        return builder.literal(b"{", layout.opened(depth, choose, empty if all_optional else None))

    def _member(self, key: bytes, schema: Conjunction, depth: int, after: int) -> int:
        return self.builder.literal(key, self._value(schema, depth, after))

    def _value(self, schema: Conjunction, depth: int, after: int) -> int:
        """The colon and the value."""
        return self.layout.colon(self.builder.call(self.rule(schema, depth), self.layout.blank(after)))

    def _other_member(self, shape: ObjectShape, depth: int, after: int) -> int:
        names = [name for name, _ in shape.members]
        if not shape.patterns:
            key = self.scalars.other_key(frozenset(names))
            return self.builder.call(key, self._value(shape.other_schema(), depth, after))
        choices = []
        for matched, language in parts_of_names(shape.patterns, names):
            key = self.scalars.key_of(language)
            choices.append(self.builder.call(key, self._value(shape.other_schema(matched), depth, after)))
        return self.builder.split(choices) if choices else self.builder.fail

    def _in_any_order(self, shape: ObjectShape, depth: int) -> int:
        builder, layout = self.builder, self.layout
        object_, after, first, later = (builder.reserve() for _ in range(4))
        members = [
            (number, self._member(quoted(name), schema, depth, after))
            for number, (name, schema) in enumerate(shape.members)
        ]
        members.append((-1, self._other_member(shape, depth, after)))
        closing, closing_empty = builder.reserve(), builder.reserve()
        builder.set_close(closing, object_, layout.close(depth, b"}", builder.accept))
        builder.set_close(closing_empty, object_, builder.literal(b"}", builder.accept))
        # The comma belongs to the member behind it, so that none can be read when no member is left.
        builder.set_choose(first, members if layout.flexible else self._on_own_line(members, depth))
        behind = [(number, layout.comma(depth, start)) for number, start in members]
        builder.set_choose(later, behind)
        builder.set_split(after, [later, closing])
        choose = builder.split([first, closing_empty])
        required = [behind[number] for number, (name, _) in enumerate(shape.members) if name in shape.required]
        builder.set_object(object_, choose, after, required)
        return builder.literal(b"{", layout.blank(object_))

    def _on_own_line(self, members: list[tuple[int, int]], depth: int) -> list[tuple[int, int]]:
        return [(number, self.layout.opened(depth, start, None)) for number, start in members]
