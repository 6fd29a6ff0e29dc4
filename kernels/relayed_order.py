"""What orders the programs where values are polled (device/flagged.py, device/nonzero.py), as data for the validator.

For a folded batch of one Qkv polls the partial sums of its input, the attention those of Qkv, and Down its neurons; for
several rows, too, Output polls the parts of the attention (`StepSizes.polled_parts`). Nobody waits for these at a
counter, and polling a value orders nothing but that value. So the proof has two halves. That everything ends: the
schedule's own waits, which are proven to end, wait for more than the polls do, and what is polled for comes once who
writes it has run. That nothing races: here, by the counters that are left alone, with neither those waits nor the
arrivals that publish nothing.

A poll finds the right value whenever it comes, so all that must be proven of a flagged value is that it is read before
it is overwritten: a reader reads, and a writer writes, what the layer before left. Of a value that is never zero it is
that its reader and its writer each come after it was cleared, and before it is cleared again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from structgen.kernels.dataflow import Access, Kind, accesses, carried
from structgen.kernels.instructions import Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes
from structgen.kernels.validator import ENOUGH_LAYERS, Accesses, Program, Step, check_order, validate

PERIOD = 4  # buffers of `middle` for a batch of one


def prove(schedule: Schedule) -> None:
    """All that the decode step relies on: ScheduleError unless it is so."""
    validate(schedule)
    sizes = StepSizes(schedule)
    if sizes.relayed or sizes.polled_parts:
        validate_polled(schedule)


def validate_polled(schedule: Schedule) -> None:
    """Raise ScheduleError unless the counters that are left order all that needs an order.

    Layers are alike: so many have every pair that can meet in a buffer, at both parities.
    """
    enough = PERIOD + 2 if StepSizes(schedule).relayed else ENOUGH_LAYERS
    few = replace(schedule, shape=replace(schedule.shape, layers=min(schedule.shape.layers, enough)))
    check_polled(few)


@dataclass(frozen=True, kw_only=True)
class Clear(Instruction):
    """Between Qkv and Attention: the parts of the layer before, for those of the next one."""


_KINDS = (Qkv, Clear, Attention, Output, GateUp, Down, Head)


def check_polled(schedule: Schedule, accesses: Accesses | None = None) -> None:
    steps = tuple(Step(program, one) for program in range(schedule.programs) for one in _published(schedule, program))
    check_order(Program(steps), schedule, accesses or polled_accesses, _phase)


def _phase(one: Instruction) -> int:
    return one.layer * len(_KINDS) + _KINDS.index(type(one))


def _published(schedule: Schedule, program: int) -> Iterator[Instruction]:
    sizes, nobody = StepSizes(schedule), schedule.counters()  # a counter that nothing waits at
    for one in schedule.instructions(program):
        yield _with_published(schedule, sizes, one, nobody)
        if sizes.polled_parts and isinstance(one, Qkv):
            yield Clear(layer=one.layer, wait_counter=nobody, wait_arrivals=0, arrive_counter=nobody)


def _with_published(schedule: Schedule, sizes: StepSizes, one: Instruction, nobody: int) -> Instruction:
    """The instruction with only those waits and arrivals that make others' writes visible.

    The kernel counts the other arrivals too. Each member's are in order, and none goes on to its next one before all
    have come so far: so a number of arrivals means the same with and without them.
    """
    layer, programs, last = one.layer, schedule.programs, schedule.shape.layers - 1
    qkv, attention, gate_up = not sizes.polled_sums, not sizes.polled_parts, not sizes.relayed
    before = layer * (qkv + attention + gate_up)  # arrivals of each member at its group's counter
    if isinstance(one, Qkv):
        published, waits, arrivals = qkv, not sizes.relayed, one.wait_arrivals
    elif isinstance(one, Attention):
        published, waits, arrivals = attention, qkv, (before + 1) * schedule.members
    elif isinstance(one, Output):
        published, waits, arrivals = True, attention, (before + qkv + 1) * schedule.members
    elif isinstance(one, GateUp):
        published, waits = gate_up, True
        arrivals = (layer + 1) * programs if sizes.relayed else one.wait_arrivals
    elif isinstance(one, Down):
        published, waits = not sizes.relayed or layer == last, not sizes.relayed
        arrivals = (before + qkv + attention + 1) * schedule.members
    else:
        assert isinstance(one, Head)
        published, waits = True, True
        arrivals = (schedule.shape.layers + 1) * programs if sizes.relayed else one.wait_arrivals
    return replace(
        one, wait_arrivals=arrivals if waits else 0, arrive_counter=one.arrive_counter if published else nobody
    )


def polled_accesses(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    """dataflow.accesses, but for what is polled and the buffers that there are more of."""
    sizes, parity = StepSizes(schedule), one.layer % 2
    if isinstance(one, Clear):
        for group in range(schedule.shape.kv_heads):
            for item in range(schedule.parts * schedule.batch):
                yield from _polled(Access(Kind.CLEAR, ("partial", group, item)), 1 - parity)
        return
    for access in (_relayed_accesses if sizes.relayed else accesses)(schedule, program, one):
        name = access.value[0]
        if (name == "qkv" and sizes.polled_sums) or (name == "partial" and sizes.polled_parts):
            yield from _polled(access, parity)
        elif name == "qkv" and sizes.relayed:
            yield replace(access, value=(*access.value, parity))
        else:
            yield access


def _polled(access: Access, buffer: int) -> Iterator[Access]:
    """Of a value that is cleared, then written and polled: who writes it and who reads it are ordered by the poll."""
    if access.kind is not Kind.READ:
        yield replace(access, value=("written", *access.value, buffer))
    if access.kind in (Kind.READ, Kind.CLEAR):
        yield replace(access, value=("read", *access.value, buffer))


def _relayed_accesses(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    """Those of a batch of one whose values carry flags."""
    layer, shape = one.layer, schedule.shape
    groups = range(shape.kv_heads)
    if isinstance(one, Qkv):
        blocks = range(one.k_begin, one.k_end)
        if layer:
            yield from (Access(Kind.READ, ("relay", layer - 1, group, k)) for group in groups for k in blocks)
        if one.row_begin == 0:
            turns = (k for k in blocks if k % shape.kv_heads == one.group)
            yield from (Access(Kind.ADD, ("middle", layer % PERIOD, k)) for k in turns)
    elif isinstance(one, GateUp):
        neurons = range(one.neuron_begin, one.neuron_end)
        yield from (Access(Kind.WRITE, ("neurons", layer - 1, neuron)) for neuron in neurons if layer)
    elif isinstance(one, Down):
        columns = range(one.first_neuron + one.k_begin, one.first_neuron + one.k_end)
        yield from (Access(Kind.READ, ("neurons", layer, column)) for column in columns)
        yield from (Access(Kind.READ, ("middle", layer % PERIOD, row)) for row in carried(schedule, one))
        rows = range(one.row_begin, one.row_end)
        if layer < shape.layers - 1:
            yield from (Access(Kind.WRITE, ("relay", layer - 1, one.group, row)) for row in rows if layer)
        else:
            yield from (Access(Kind.ADD, ("residual", layer % 2, row)) for row in rows)
    for access in accesses(schedule, program, one):
        name = access.value[0]
        if name == "middle" and isinstance(one, Output | GateUp):
            ahead = 2 if access.kind is Kind.CLEAR else 0
            yield replace(access, value=("middle", (layer + ahead) % PERIOD, access.value[2]))
        elif (name == "residual" and isinstance(one, GateUp | Head)) or name in ("qkv", "cache", "partial"):
            yield access
