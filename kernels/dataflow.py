"""Dataflow: every shared value that an instruction touches, and how. What the validator proves orders of.

Values are named at the grain of 64 rows. The input of a layer's attention (`residual`) and of its MLP (`middle`) are
buffers of their own, two of each, by layer parity: so nobody adds to what others may still read, and no barrier is
needed for it. What a buffer held is carried over to the next one by one of those who add to the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from structgen.kernels.instructions import LAYER_INSTRUCTIONS, Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.schedule import Schedule

Value = tuple[str | int, ...]  # name, then indices


class Kind(Enum):
    """What two instructions of one phase may do to the same value, and nothing else: both READ, both ADD, ..."""

    READ = "read"
    ADD = "add"  # atomically; the order does not matter
    CLEAR = "clear"  # to zero, a share of the value
    WRITE = "write"  # all of it, by one instruction
    APPEND = "append"  # the same bytes, by everybody who reads them


@dataclass(frozen=True)
class Access:
    kind: Kind
    value: Value


def phase(instruction: Instruction) -> int:
    """Place in the order in which one program with unlimited time would do everything: layer by layer, kind by kind."""
    kinds = (*LAYER_INSTRUCTIONS, Head)
    return instruction.layer * len(kinds) + kinds.index(type(instruction))


def accesses(schedule: Schedule, program: int, instruction: Instruction) -> Iterator[Access]:
    """Of one instruction of one program; reads of constants (weights, tables, embedding) are left out."""
    shape, layer = schedule.shape, instruction.layer
    hidden = range(shape.hidden_blocks)
    if isinstance(instruction, Qkv):
        if layer:
            yield from _each(Kind.READ, "residual", (layer - 1) % 2, hidden)
        rows = range(instruction.row_begin, instruction.row_end)
        yield from _each(Kind.ADD, "qkv", instruction.group, rows)
    elif isinstance(instruction, Attention):
        yield from _each(Kind.READ, "qkv", instruction.group, range(shape.group_rows // 64))
        yield Access(Kind.APPEND, ("cache", layer, instruction.group))
        items = range(instruction.member, instruction.parts * schedule.batch, instruction.members)
        yield from _each(Kind.WRITE, "partial", instruction.group, items)
    elif isinstance(instruction, Output):
        yield from _each(Kind.READ, "partial", instruction.group, range(schedule.parts * schedule.batch))
        yield from _each(Kind.ADD, "middle", layer % 2, range(instruction.row_begin, instruction.row_end))
        if layer:
            yield from _each(Kind.READ, "residual", (layer - 1) % 2, carried(schedule, instruction))
    elif isinstance(instruction, GateUp):
        share = _share(shape.hidden, program, schedule)
        yield from _each(Kind.READ, "middle", layer % 2, hidden)
        yield from _each(Kind.CLEAR, "middle", (layer + 1) % 2, share)
        yield from _each(Kind.CLEAR, "residual", (layer + 1) % 2, share)
        for group in range(shape.kv_heads):
            yield from _each(Kind.CLEAR, "qkv", group, range(shape.group_rows // 64))
        neurons = range(instruction.neuron_begin, instruction.neuron_end)
        yield from _each(Kind.WRITE, "neurons", 0, neurons)
    elif isinstance(instruction, Down):
        columns = range(instruction.first_neuron + instruction.k_begin, instruction.first_neuron + instruction.k_end)
        yield from _each(Kind.READ, "neurons", 0, columns)
        yield from _each(Kind.READ, "middle", layer % 2, carried(schedule, instruction))
        yield from _each(Kind.ADD, "residual", layer % 2, range(instruction.row_begin, instruction.row_end))
    else:
        assert isinstance(instruction, Head)
        yield from _each(Kind.READ, "residual", (layer - 1) % 2, hidden)


def carried(schedule: Schedule, one: Output | Down) -> list[int]:
    """The rows to which the instruction also adds what the buffer before held: groups take turns."""
    if one.k_begin or one.k_begin == one.k_end:
        return []
    return [row for row in range(one.row_begin, one.row_end) if row % schedule.shape.kv_heads == one.group]


def _each(kind: Kind, name: str, index: int, blocks: Iterable[int]) -> Iterator[Access]:
    return (Access(kind, (name, index, block)) for block in blocks)


def _share(rows: int, program: int, schedule: Schedule) -> range:
    """The blocks that a program's even share of [batch, rows] values may touch."""
    size = -(-schedule.batch * rows // schedule.programs)
    touched = {place % rows // 64 for place in range(program * size, min((program + 1) * size, schedule.batch * rows))}
    return range(min(touched), max(touched) + 1) if touched else range(0)
