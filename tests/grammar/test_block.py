"""Ready states: a rule copied into a program is the rule placed there."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from structgen.grammar.block import BlockCache, block_of
from structgen.grammar.json_number import NumberRange
from structgen.grammar.json_schema.scalars import _place_number, _place_text
from structgen.grammar.json_schema.shapes import TextShape
from structgen.grammar.json_string import key_interior
from structgen.grammar.program import ProgramBuilder
from structgen.grammar.tables import IN_BYTES

pytestmark = pytest.mark.nojit

Rule = Callable[[ProgramBuilder], int]
RULES: dict[str, Rule] = {
    "free text": lambda builder: _place_text(builder, TextShape()),
    "counted text": lambda builder: _place_text(builder, TextShape(2, 5)),
    "a pattern": lambda builder: _place_text(builder, TextShape(patterns=(("^a(b|[^c])*$", ""),))),
    "a pattern with lengths": lambda builder: _place_text(builder, TextShape(1, 9, patterns=(("^(ab|é)+$", ""),))),
    "a format with rules": lambda builder: _place_text(builder, TextShape(formats=(("regex", ""),))),
    "a free number": lambda builder: _place_number(builder, NumberRange()),
    "bounds": lambda builder: _place_number(builder, NumberRange(low=Decimal(-3), high=Decimal("12.5"))),
    "multiples": lambda builder: _place_number(builder, NumberRange(multiple_of=Decimal("0.5"))),
    "a key": key_interior,
    "nothing": lambda builder: builder.fail,
    "the empty rule": lambda builder: builder.accept,
}


@pytest.mark.parametrize("name", RULES)
def test_a_block_is_the_rule_placed_there(name: str) -> None:
    rule, block = RULES[name], block_of(RULES[name])
    placed, copied = ProgramBuilder(), ProgramBuilder()
    for builder in (placed, copied):
        builder.split([builder.literal(b"some states before it", builder.accept), builder.fail])
    assert rule(placed) == block.place(copied)
    one, other = placed.finish(0), copied.finish(0)
    assert np.array_equal(one.code, other.code)
    assert np.array_equal(one.edges, other.edges)
    assert one.has_other_keys == other.has_other_keys


def test_objects_are_no_blocks() -> None:
    def rule(builder: ProgramBuilder) -> int:
        state = builder.reserve()
        builder.set_choose(state, [(0, builder.accept)])
        return state

    with pytest.raises(AssertionError):
        block_of(rule)


def test_the_cache_is_bounded() -> None:
    built: list[int] = []

    def rule_of(number: int) -> Rule:
        def rule(builder: ProgramBuilder) -> int:
            built.append(number)
            return builder.literal(b"x" * 10, builder.accept)

        return rule

    blocks = BlockCache(words=400)  # ten of 40 words
    for _ in range(2):
        for number in range(10):
            blocks.place(ProgramBuilder(), number, rule_of(number))
    assert built == list(range(10))
    blocks.place(ProgramBuilder(), 10, rule_of(10))
    blocks.place(ProgramBuilder(), 1, rule_of(1))
    blocks.place(ProgramBuilder(), 0, rule_of(0))  # was the oldest
    assert built == [*range(11), 0]

    def large(builder: ProgramBuilder) -> int:
        built.append(-1)
        return builder.literal(b"x" * 100, builder.accept)

    for _ in range(2):
        blocks.place(ProgramBuilder(), "large", large)
    assert built[-2:] == [-1, -1]


def test_distances_of_a_copy() -> None:
    block = block_of(RULES["a pattern with lengths"])
    builder = ProgramBuilder()
    start = builder.literal(b"[", block.place(builder))
    assert builder.finish(start).byte_distance[start, IN_BYTES] == len('["é"'.encode())
