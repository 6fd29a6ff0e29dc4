"""Two steps of the resident loop in a row, as data for the validator: what they share, and who waits for whom.

Beside the consumers, whose instructions are the schedule's, there are lanes for what goes on at the same time: each
program's producer, which fetches masks (Fetch, and in program 0 the host's Word before it), and the last program to
finish a step, which chooses the tokens (Choose). See device/resident_step.py. The host may grant both steps at once.

Here nothing is polled, and the consumers stage for themselves: what is polled within a pass is relayed_order.py's to
prove, and between two passes all programs meet where the tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from structgen.kernels.dataflow import Access, Kind, accesses
from structgen.kernels.instructions import (
    DONE,
    FIRST_GROUP,
    FULL,
    LAYER_INSTRUCTIONS,
    Attention,
    Head,
    Instruction,
    Output,
    Qkv,
)
from structgen.kernels.schedule import Schedule
from structgen.kernels.validator import ENOUGH_LAYERS, Program, Step, check_order

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Word(Instruction):
    """Program 0 has the host's word of a step, whose masks nobody reads any more."""


@dataclass(frozen=True, kw_only=True)
class Fetch(Instruction):
    """A program's share of the masks, to device memory, and how many tokens they allow."""


@dataclass(frozen=True, kw_only=True)
class Choose(Instruction):
    """The step's tokens from all programs' best ones, and what else the next step reads."""


_KINDS = (*LAYER_INSTRUCTIONS, Word, Fetch, Head, Choose)


def validate_resident(schedule: Schedule) -> None:
    """Raise ScheduleError unless two steps in a row end and race nowhere. Two layers of each parity prove all."""
    few = replace(schedule, shape=replace(schedule.shape, layers=ENOUGH_LAYERS))
    check_order(Program(tuple(resident_steps(few))), few, resident_accesses, resident_phase)


def resident_steps(schedule: Schedule) -> Iterator[Step]:
    """Lane by lane: consumers, producers, and the one who chooses. `layer` counts on from step to step, heads too."""
    programs, last = schedule.programs, schedule.shape.layers
    chosen, granted, fetched = (schedule.counters() + place for place in range(3))
    for program in range(programs):
        for step in range(STEPS):
            for one in schedule.instructions(program):
                later = replace(one, layer=_layer(schedule, step, one.layer))
                if one.layer == 0 and isinstance(one, Qkv):
                    yield Step(program, replace(later, wait_counter=chosen, wait_arrivals=step))
                    continue
                before = step * _arrivals(schedule, one.wait_counter)
                later = replace(later, wait_arrivals=one.wait_arrivals + before)
                if isinstance(one, Head):
                    later = replace(later, also_waits=((fetched, (step + 1) * programs),))
                yield Step(program, later)
    for program in range(programs):
        for step in range(STEPS):
            layer = _layer(schedule, step, last)
            if program == 0:
                word = Word(layer=layer, wait_counter=chosen, wait_arrivals=step, arrive_counter=granted)
                yield Step(programs, word)
            fetch = Fetch(layer=layer, wait_counter=granted, wait_arrivals=step + 1, arrive_counter=fetched)
            yield Step(programs + program, fetch)
    for step in range(STEPS):
        done = programs * (step + 1)
        yield Step(
            2 * programs,
            Choose(layer=_layer(schedule, step, last), wait_counter=DONE, wait_arrivals=done, arrive_counter=chosen),
        )


def resident_accesses(schedule: Schedule, lane: int, instruction: Instruction) -> Iterator[Access]:
    """As dataflow.accesses; and the tokens, masks and best tokens that pass between steps."""
    layer = instruction.layer % (schedule.shape.layers + 1)
    programs = schedule.programs
    if isinstance(instruction, Word):
        return
    if isinstance(instruction, Fetch):
        yield Access(Kind.WRITE, ("mask", lane - programs))
        yield Access(Kind.ADD, ("allowed",))
    elif isinstance(instruction, Choose):
        yield from (Access(Kind.READ, ("best", program)) for program in range(programs))
        yield Access(Kind.WRITE, ("next",))
        yield Access(Kind.CLEAR, ("allowed",))
    else:
        yield from accesses(schedule, lane, replace(instruction, layer=layer))
        if isinstance(instruction, Attention) or (layer == 0 and isinstance(instruction, Qkv | Output)):
            yield Access(Kind.READ, ("next",))
        if isinstance(instruction, Head):
            yield from (Access(Kind.READ, ("mask", program)) for program in range(programs))
            yield Access(Kind.READ, ("allowed",))
            yield Access(Kind.WRITE, ("best", lane))


def resident_phase(instruction: Instruction) -> int:
    return instruction.layer * len(_KINDS) + _KINDS.index(type(instruction))


def _layer(schedule: Schedule, step: int, layer: int) -> int:
    return step * (schedule.shape.layers + 1) + layer


def _arrivals(schedule: Schedule, counter: int) -> int:
    """At a counter of the schedule, in one step."""
    if counter == FULL:
        return 2 * schedule.programs * schedule.shape.layers
    assert counter >= FIRST_GROUP
    return 3 * schedule.members * schedule.shape.layers
