"""Containers whose parts come in any order, each at most once: the stack holds those that were seen."""

from __future__ import annotations

from collections.abc import Callable, Collection

from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.program import ProgramBuilder

Parts = list[tuple[int, int]]  # (number, first state); number -1 may come any number of times

# How many more parts must come, and may come (None: any number).
Left = tuple[int, int | None]


def place_any_order(
    builder: ProgramBuilder,
    layout: Layout,
    depth: int,
    brackets: tuple[bytes, bytes],
    parts_before: Callable[[int], Parts],
    required: Collection[int],
    left: Left,
) -> int:
    """A rule for a container.

    Args:
        parts_before: the parts, each going on at the given state.
        required: numbers of the parts that must come.
        left: how many must and may come in all, as far as that is not said by the parts.
    """
    object_, after, first, later = (builder.reserve() for _ in range(4))
    parts = parts_before(after)
    closing, closing_empty = builder.reserve(), builder.reserve()
    builder.set_close(closing, object_, layout.close(depth, brackets[1], builder.accept))
    builder.set_close(closing_empty, object_, builder.literal(brackets[1], builder.accept))
    # The comma belongs to the part behind it, so that none can be read when no part is left.
    on_own_line = parts if layout.flexible else [(number, layout.opened(depth, one, None)) for number, one in parts]
    builder.set_choose(first, on_own_line)
    behind = [(number, layout.comma(depth, start)) for number, start in parts]
    builder.set_choose(later, behind)
    builder.set_split(after, [later, closing])
    choose = builder.split([first] if left[0] else [first, closing_empty])
    must = [pair for pair in behind if pair[0] in required]
    fillers = [pair for pair in behind if pair[0] not in required]
    # That there is a part at all needs no counting.
    builder.set_object(object_, choose, after, must, None if left in ((0, None), (1, None)) else left, fillers)
    return builder.literal(brackets[0], layout.blank(object_))
