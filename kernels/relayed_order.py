"""What orders the programs of a batch of one whose values carry flags, as data for the validator (device/flagged.py).

There Qkv polls the partial sums of its input and Down its neurons; neither waits at a counter, and polling a value
orders nothing but that value. So the proof has two halves. That everything ends: the schedule's own waits, which are
proven to end, wait for more than the polls do, and what is polled for comes once who writes it has run. That nothing
races: here, by the counters that are left alone, with neither those waits nor the arrivals that publish nothing.

A poll finds the right value whenever it comes, so all that must be proven of a flagged value is that it is read before
it is overwritten: a reader reads, and a writer writes, what the layer before left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from structgen.kernels.dataflow import Access, Kind, accesses, carried
from structgen.kernels.instructions import FIRST_GROUP, FULL, Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes
from structgen.kernels.validator import Program, Step, check_order, validate

PERIOD = 4  # buffers of `middle`


def prove(schedule: Schedule) -> None:
    """All that the decode step relies on: ScheduleError unless it is so."""
    validate(schedule)
    if StepSizes(schedule).relayed:
        validate_relayed(schedule)


def validate_relayed(schedule: Schedule) -> None:
    """Raise ScheduleError unless the counters that are left order all that needs an order.

    Layers are alike: so many have every pair that can meet in a buffer, at both parities.
    """
    few = replace(schedule, shape=replace(schedule.shape, layers=min(schedule.shape.layers, PERIOD + 2)))
    check_order(relayed_program(few), few, relayed_accesses)


def relayed_program(schedule: Schedule) -> Program:
    return Program(
        tuple(
            Step(program, _published(schedule, one))
            for program in range(schedule.programs)
            for one in schedule.instructions(program)
        )
    )


def _published(schedule: Schedule, one: Instruction) -> Instruction:
    """The instruction with only those waits and arrivals that make others' writes visible."""
    layer, programs, members = one.layer, schedule.programs, schedule.members
    nobody = schedule.counters()  # a counter that nothing waits at
    if isinstance(one, Qkv):
        return replace(one, wait_arrivals=0)
    if isinstance(one, Attention):
        return replace(one, wait_counter=FIRST_GROUP + one.group, wait_arrivals=(2 * layer + 1) * members)
    if isinstance(one, Output):
        return replace(one, wait_counter=FIRST_GROUP + one.group, wait_arrivals=(2 * layer + 2) * members)
    if isinstance(one, GateUp):
        return replace(one, wait_arrivals=(layer + 1) * programs, arrive_counter=nobody)
    if isinstance(one, Down):
        last = layer == schedule.shape.layers - 1
        return replace(one, wait_arrivals=0, arrive_counter=FULL if last else nobody)
    assert isinstance(one, Head)
    return replace(one, wait_arrivals=(schedule.shape.layers + 1) * programs)


def relayed_accesses(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    """dataflow.accesses, but for the flagged values and the buffers that there are more of."""
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
        if name == "qkv":
            yield replace(access, value=(*access.value, layer % 2))
        elif name == "middle" and isinstance(one, Output | GateUp):
            ahead = 2 if access.kind is Kind.CLEAR else 0
            yield replace(access, value=("middle", (layer + ahead) % PERIOD, access.value[2]))
        elif (name == "residual" and isinstance(one, GateUp | Head)) or name in ("cache", "partial"):
            yield access
