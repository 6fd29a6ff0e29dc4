"""Where blanks may or must stand between JSON tokens."""

from __future__ import annotations

from structgen.grammar.block import BLOCKS
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.program import Interior, Op, ProgramBuilder

MAX_BLANKS = 16  # a model that likes blanks must come to an end
MAX_PRETTY_DEPTH = 24  # deeper nesting is not produced in pretty layout: each depth needs rules of its own
_BLANKS = ((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))


def blank_rule(builder: ProgramBuilder) -> int:
    """Up to MAX_BLANKS blanks, then RETURN."""
    state = builder.accept
    for _ in range(MAX_BLANKS):
        read, either = builder.reserve(), builder.reserve()
        builder.set_ranges(read, [(low, high, state) for low, high in _BLANKS], Interior.BLANK)
        builder.set_split(either, [read, builder.accept])
        state = either
    return state


_BYTE, _CALL = int(Op.BYTE), int(Op.CALL)


class Layout:
    """Blanks as states. Depth counts the open containers; only the pretty layout looks at it."""

    def __init__(self, builder: ProgramBuilder, options: JsonOptions) -> None:
        self._builder = builder
        self.flexible = options.whitespace == "flexible"
        self.pretty = options.whitespace == "pretty"
        self._blanks = BLOCKS.place(builder, "blanks", blank_rule) if self.flexible else builder.accept
        self._blank = [(_CALL, self._blanks)] if self.flexible else []
        colon = [(_BYTE, byte) for byte in (b": " if self.pretty else b":")]
        self._comma = [(_BYTE, 0x2C), *self._blank]
        self._colon = [*self._blank, *colon, *self._blank]

    def blank(self, then: int) -> int:
        """Optional blanks, in flexible layout."""
        return self._builder.call(self._blanks, then) if self.flexible else then

    def _line(self, depth: int, then: int) -> int:
        return self._builder.literal(b"\n" + b"  " * depth, then) if self.pretty else self.blank(then)

    def opened(self, depth: int, first: int, empty: int | None) -> int:
        """After an opening bracket: the first item at `depth`, or the closing bracket of an empty container."""
        if self.flexible:
            return self.blank(self._builder.split([first] if empty is None else [first, empty]))
        first = self._line(depth, first)
        return first if empty is None else self._builder.split([first, empty])

    def comma(self, depth: int, then: int) -> int:
        if self.flexible:
            return self._builder.steps(self._comma, then)
        return self._builder.literal(b",", self._line(depth, then))

    def member(self, key: bytes, rule: int, then: int) -> int:
        """A key, which may be empty, the colon, and a value."""
        steps = [(_BYTE, byte) for byte in key]
        steps += [*self._colon, (_CALL, rule), *self._blank]
        return self._builder.steps(steps, then)

    def item(self, rule: int, then: int) -> int:
        return self._builder.steps([(_CALL, rule), *self._blank], then)

    def close(self, depth: int, bracket: bytes, then: int) -> int:
        """The closing bracket of a container that is not empty; `depth` is that of its items."""
        state = self._builder.literal(bracket, then)
        return self._builder.literal(b"\n" + b"  " * (depth - 1), state) if self.pretty else state
