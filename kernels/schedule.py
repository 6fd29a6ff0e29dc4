"""Schedule: who computes what in a decode step, for a ModelShape, a batch size and a number of programs.

Built on the host once and reused for every step. It also fixes the order in which a program reads its weights: the
packed weights are laid out in exactly that order, so a program's producer needs nothing but a first slot and a stride.
A *slot* is `slot_blocks` blocks of 64 x 64, the unit that is copied into shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from math import gcd

from structgen.kernels.instructions import (
    DONE,
    FIRST_GROUP,
    FULL,
    STREAM_FIELDS,
    Attention,
    Down,
    GateUp,
    Head,
    Instruction,
    Output,
    Qkv,
    packed_fields,
)
from structgen.kernels.model_shape import ModelShape, UnsupportedShape

MAX_BATCH = 8
ATTENTION_ITEMS = 16  # parts * batch (rounded up to a power of two), for one key/value head


@dataclass(frozen=True)
class Block:
    """One 64 x 64 block of a weight: block row `row`, block column `k` of "qkv", "output", "gate", "up" or "down".

    "qkv" rows are in group order: for each key/value head its queries, its key, its value.
    """

    matrix: str
    row: int
    k: int


@dataclass(frozen=True)
class Rectangle:
    row_begin: int
    row_end: int
    k_begin: int
    k_end: int

    @property
    def blocks(self) -> int:
        return (self.row_end - self.row_begin) * (self.k_end - self.k_begin)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`members` programs for each key/value head; the programs beyond kv_heads * members stay unused."""

    shape: ModelShape
    batch: int
    members: int
    largest_slot: int = 2  # blocks; measured

    @classmethod
    def build(cls, shape: ModelShape, batch: int, processors: int, largest_slot: int = 2) -> Schedule:
        if not 1 <= batch <= MAX_BATCH:
            raise UnsupportedShape(f"batch {batch} is not within 1 to {MAX_BATCH}")
        if shape.kv_heads > processors:
            raise UnsupportedShape(f"{shape.kv_heads} key/value heads need as many programs, there are {processors}")
        if shape.neuron_blocks < shape.kv_heads:
            raise UnsupportedShape(f"intermediate {shape.intermediate} is too little for {shape.kv_heads} groups")
        members = processors // shape.kv_heads
        return cls(shape=shape, batch=batch, members=members, largest_slot=largest_slot)

    @property
    def programs(self) -> int:
        return self.members * self.shape.kv_heads

    @property
    def batch_slots(self) -> int:
        """Rows that the partial results of the attention are laid out for: 1, 4 or 8."""
        return 1 if self.batch == 1 else 4 if self.batch <= 4 else 8

    @property
    def parts(self) -> int:
        """Shares of each row's context, so that parts * rows keeps the members of a group busy."""
        return ATTENTION_ITEMS // self.batch_slots

    @cached_property
    def qkv(self) -> tuple[Rectangle, ...]:
        return rectangles(self.shape.group_rows // 64, self.shape.hidden_blocks, self.members)

    @cached_property
    def output(self) -> tuple[Rectangle, ...]:
        return rectangles(self.shape.hidden_blocks, self.shape.group_blocks, self.members)

    def neurons(self, group: int) -> tuple[int, int]:
        """Blocks of neurons of a group, as even as possible."""
        return _share(self.shape.neuron_blocks, group, self.shape.kv_heads)

    @cached_property
    def down(self) -> tuple[tuple[Rectangle, ...], ...]:
        """[kv_heads][members]."""
        counts = [end - begin for begin, end in map(self.neurons, range(self.shape.kv_heads))]
        return tuple(rectangles(self.shape.hidden_blocks, count, self.members) for count in counts)

    @cached_property
    def slot_blocks(self) -> int:
        """Blocks in a slot: a power of two such that no slot straddles two rows of blocks or two phases."""
        common = gcd(self.largest_slot, self.shape.hidden_blocks)
        for part in (*self.qkv, *self.output, *(part for group in self.down for part in group)):
            common = gcd(common, part.k_end - part.k_begin)
        return common

    def counters(self) -> int:
        return FIRST_GROUP + self.shape.kv_heads

    # the instructions

    def instructions(self, program: int) -> Iterator[Instruction]:
        """Everything a program does in one step, in order."""
        for layer in range(self.shape.layers):
            yield from self.layer_instructions(program, layer)
        yield self._head(program)

    def layer_instructions(self, program: int, layer: int) -> tuple[Qkv, Attention, Output, GateUp, Down]:
        group, member = divmod(program, self.members)
        own = FIRST_GROUP + group
        q, o, d = self.qkv[member], self.output[member], self.down[group][member]
        grouped = 3 * self.members * layer
        full = 2 * self.programs * layer
        qkv = Qkv(
            layer=layer,
            wait_counter=FULL,
            wait_arrivals=full,
            arrive_counter=own,
            group=group,
            row_begin=q.row_begin,
            row_end=q.row_end,
            k_begin=q.k_begin,
            k_end=q.k_end,
        )
        attention = Attention(
            layer=layer,
            wait_counter=own,
            wait_arrivals=grouped + self.members,
            arrive_counter=own,
            group=group,
            member=member,
            members=self.members,
            parts=self.parts,
        )
        output = Output(
            layer=layer,
            wait_counter=own,
            wait_arrivals=grouped + 2 * self.members,
            arrive_counter=FULL,
            group=group,
            row_begin=o.row_begin,
            row_end=o.row_end,
            k_begin=o.k_begin,
            k_end=o.k_end,
        )
        first_neuron, end_neuron = self.neurons(group)
        begin, end = _share(end_neuron - first_neuron, member, self.members)
        gate_up = GateUp(
            layer=layer,
            wait_counter=FULL,
            wait_arrivals=full + self.programs,
            arrive_counter=own,
            group=group,
            neuron_begin=first_neuron + begin,
            neuron_end=first_neuron + end,
        )
        down = Down(
            layer=layer,
            wait_counter=own,
            wait_arrivals=grouped + 3 * self.members,
            arrive_counter=FULL,
            group=group,
            first_neuron=first_neuron,
            row_begin=d.row_begin,
            row_end=d.row_end,
            k_begin=d.k_begin,
            k_end=d.k_end,
        )
        return qkv, attention, output, gate_up, down

    def _head(self, program: int) -> Head:
        count = len(range(program, self.shape.vocab_blocks, self.programs))
        return Head(
            layer=self.shape.layers,
            wait_counter=FULL,
            wait_arrivals=2 * self.programs * self.shape.layers,
            arrive_counter=DONE,
            block_begin=program,
            block_stride=self.programs,
            block_count=count,
        )

    # the order of the weights

    def layer_blocks(self, program: int) -> list[Block]:
        """The blocks that a program multiplies in one layer, in order."""
        qkv, _, output, gate_up, down = self.layer_instructions(program, 0)
        shape = self.shape
        first_row = qkv.group * (shape.group_rows // 64)
        first_k = output.group * shape.group_blocks
        order = [
            Block("qkv", first_row + row, k)
            for row in range(qkv.row_begin, qkv.row_end)
            for k in range(qkv.k_begin, qkv.k_end)
        ]
        order += [
            Block("output", row, first_k + k)
            for row in range(output.row_begin, output.row_end)
            for k in range(output.k_begin, output.k_end)
        ]
        for neuron in range(gate_up.neuron_begin, gate_up.neuron_end):
            order += [Block("gate", neuron, k) for k in range(shape.hidden_blocks)]
            order += [Block("up", neuron, k) for k in range(shape.hidden_blocks)]
        order += [
            Block("down", row, down.first_neuron + k)
            for row in range(down.row_begin, down.row_end)
            for k in range(down.k_begin, down.k_end)
        ]
        return order

    @cached_property
    def layer_slots(self) -> tuple[int, ...]:
        return tuple(len(self.layer_blocks(program)) // self.slot_blocks for program in range(self.programs))

    @property
    def interleaved(self) -> bool:
        """When all programs read equally much, their slots lie in turn, so that all read near each other."""
        return len(set(self.layer_slots)) == 1

    def stream(self, program: int) -> dict[str, int]:
        """Values of STREAM_FIELDS."""
        counts, layers = self.layer_slots, self.shape.layers
        row_slots = self.shape.hidden_blocks // self.slot_blocks
        values = {
            "layer_slots": counts[program],
            "layer_base": program if self.interleaved else sum(counts[:program]) * layers,
            "layer_stride": self.programs if self.interleaved else 1,
            "head_slots": row_slots,
            "head_base": sum(counts) * layers,
            "head_stride": row_slots,
        }
        assert tuple(values) == STREAM_FIELDS
        return values

    @property
    def total_slots(self) -> int:
        head = self.shape.vocab_blocks * self.shape.hidden_blocks // self.slot_blocks
        return sum(self.layer_slots) * self.shape.layers + head

    def packed(self) -> list[list[int]]:
        """[programs][fields] int32: the kernel's form of the schedule, in the order of `packed_fields()`."""
        return [self._packed_row(program) for program in range(self.programs)]

    def _packed_row(self, program: int) -> list[int]:
        values: dict[str, int] = dict(self.stream(program))
        for instruction in (*self.layer_instructions(program, 0), self._head(program)):
            prefix = type(instruction).__name__.lower()
            values |= {f"{prefix}_{field.name}": getattr(instruction, field.name) for field in fields(instruction)}
        return [values[name] for name in packed_fields()]


def rectangles(rows: int, columns: int, members: int) -> tuple[Rectangle, ...]:
    """Split rows x columns blocks over `members`: the largest share as small as possible, then few column splits.

    Members without a share get an empty rectangle. Each column split means one more addition to every row;
    """
    best = (rows * columns + 1, 1, 1)
    for column_parts in range(1, min(columns, members) + 1):
        row_parts = min(rows, members // column_parts)
        best = min(best, (-(-rows // row_parts) * -(-columns // column_parts), column_parts, row_parts))
    _, column_parts, row_parts = best
    parts = []
    for member in range(members):
        row_part, column_part = divmod(member, column_parts)
        if row_part >= row_parts:
            parts.append(Rectangle(0, 0, 0, 0))
            continue
        parts.append(Rectangle(*_share(rows, row_part, row_parts), *_share(columns, column_part, column_parts)))
    return tuple(parts)


def _share(total: int, index: int, parts: int) -> tuple[int, int]:
    """The index-th of `parts` consecutive shares of `total`, the first ones larger by one."""
    size, rest = divmod(total, parts)
    begin = index * size + min(index, rest)
    return begin, begin + size + (index < rest)
