"""validate: proves of a schedule, before it runs, that it ends, does everything once and races nowhere.

Ends: all instructions run in *some* order. Counters only grow, so a wait that is satisfied stays so, and what runs in
one order runs in every order. For the same reason an instruction B comes after A in *every* order exactly when B does
not run if A is withheld: the proof of an order is one run without A.

Races nowhere: whenever two instructions touch a value and one of them changes it, the earlier phase's comes first in
every order; within one phase they only read, or only add, and so on (dataflow.Kind).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeVar

from structgen.kernels.dataflow import Access, Kind, Value, accesses, carried, phase
from structgen.kernels.instructions import Head, Instruction
from structgen.kernels.schedule import Schedule

PERIOD = 2  # buffers alternate with the layers' parity
ENOUGH_LAYERS = 2 * PERIOD  # every pair of layers that can meet in a buffer, at both parities

Key = TypeVar("Key")
Accesses = Callable[[Schedule, int, Instruction], Iterable[Access]]


class ScheduleError(ValueError):
    """The schedule is wrong; the message says which instruction of which program, and why."""


def validate(schedule: Schedule, accesses: Accesses = accesses) -> None:
    """Raise ScheduleError unless the schedule is right. Layers are alike, so that a few of them prove all."""
    check_coverage(schedule)
    check_stream(schedule)
    check_layers_are_alike(schedule)
    few = replace(schedule, shape=replace(schedule.shape, layers=min(schedule.shape.layers, ENOUGH_LAYERS)))
    check_order(Program.of(few), few, accesses)


@dataclass(frozen=True)
class Step:
    """An instruction in its program."""

    program: int
    instruction: Instruction

    def __str__(self) -> str:
        name = type(self.instruction).__name__
        return f"{name} of layer {self.instruction.layer} in program {self.program}"


@dataclass(frozen=True)
class Program:
    """All programs' instructions, numbered program by program; bit i of a set of instructions stands for number i."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Program:
        return cls(tuple(Step(p, one) for p in range(schedule.programs) for one in schedule.instructions(p)))

    @cached_property
    def _numbers(self) -> tuple[range, ...]:
        """Of each program, the numbers of its instructions."""
        sizes = Counter(step.program for step in self.steps)
        ends, end = [], 0
        for program in range(len(sizes)):
            ends.append(range(end, end + sizes[program]))
            end += sizes[program]
        return tuple(ends)

    @cached_property
    def _twins(self) -> tuple[int, ...]:
        """Of each program, the first one that waits and arrives just as it does."""
        first: dict[tuple[object, ...], int] = {}
        return tuple(
            first.setdefault(tuple((waits(one), arrivals(one)) for one in self._instructions(program)), program)
            for program in range(len(self._numbers))
        )

    def _instructions(self, program: int) -> Iterator[Instruction]:
        return (self.steps[number].instruction for number in self._numbers[program])

    def run_without(self, number: int) -> int:
        """The set of instructions that run when this one does not. Twins are told apart by their numbers alone."""
        program = self.steps[number].program
        twin = self._twins[program]
        own, other = self._numbers[program], self._numbers[twin]
        equal = other.start + number - own.start
        if equal not in self._ran:
            self._ran[equal] = self.run(equal)
        ran, width = self._ran[equal], (1 << len(own)) - 1
        swapped = (ran >> own.start & width) ^ (ran >> other.start & width)
        return ran ^ (swapped << own.start) ^ (swapped << other.start) if program != twin else ran

    @cached_property
    def _ran(self) -> dict[int, int]:
        return {}

    @cached_property
    def _counted(self) -> list[tuple[tuple[tuple[int, int], ...], tuple[int, ...]]]:
        """What each instruction waits for and arrives at."""
        return [(waits(step.instruction), arrivals(step.instruction)) for step in self.steps]

    def run(self, without: int = -1) -> int:
        """The set of instructions that run when number `without` does not.

        A program that cannot go on is looked at again when as many have arrived as it waits for.
        """
        counted, arrived = self._counted, defaultdict[int, int](int)
        places = [numbers.start for numbers in self._numbers]
        waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)  # at a counter: a heap of (arrivals, program)
        ready = list(range(len(places)))
        while ready:
            program = ready.pop()
            place, stop = places[program], self._numbers[program].stop
            while place < stop and place != without:
                awaited, arrives = counted[place]
                lacking = _lacking(awaited, arrived)
                if lacking is not None:
                    counter, count = lacking
                    heappush(waiting[counter], (count, program))
                    break
                for counter in arrives:
                    arrived[counter] += 1
                    heap = waiting[counter]
                    while heap and heap[0][0] <= arrived[counter]:
                        ready.append(heappop(heap)[1])
                place += 1
            places[program] = place
        return sum((1 << end) - (1 << numbers.start) for end, numbers in zip(places, self._numbers, strict=True))


def _lacking(awaited: tuple[tuple[int, int], ...], arrived: dict[int, int]) -> tuple[int, int] | None:
    """The first (counter, arrivals) of those awaited that has not come yet."""
    for counter, count in awaited:
        if arrived[counter] < count:
            return counter, count
    return None


def waits(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    """(counter, arrivals that must have happened) pairs."""
    return ((instruction.wait_counter, instruction.wait_arrivals), *instruction.also_waits)


def arrivals(instruction: Instruction) -> tuple[int, ...]:
    return (instruction.arrive_counter,)


def check_order(
    program: Program, schedule: Schedule, accesses: Accesses, phase: Callable[[Instruction], int] = phase
) -> None:
    everything = (1 << len(program.steps)) - 1
    missing = everything & ~program.run()
    if missing:
        stuck = program.steps[_lowest(missing)]
        raise ScheduleError(f"{stuck} waits for ever: {waits(stuck.instruction)}")
    touched: dict[Value, dict[tuple[int, Kind], int]] = defaultdict(lambda: defaultdict(int))
    for number, step in enumerate(program.steps):
        for access in accesses(schedule, step.program, step.instruction):
            touched[access.value][phase(step.instruction), access.kind] |= 1 << number
    after: dict[int, int] = {}  # instruction -> what never runs before it
    for value, uses in touched.items():
        for early, late in _conflicts(value, uses):
            for number in _numbers(early):
                if number not in after:
                    after[number] = everything & ~program.run_without(number)
                loose = late & ~after[number]
                if loose:
                    first, second = program.steps[number], program.steps[_lowest(loose)]
                    raise ScheduleError(f"{second} may touch {value} before {first} has, which must come first")


def _conflicts(value: Value, uses: dict[tuple[int, Kind], int]) -> Iterator[tuple[int, int]]:
    """Pairs of sets: all of the first set must come before all of the second.

    Only neighbours in time: between two uses that change the value there is an order, which carries over.
    """
    order: dict[int, dict[Kind, int]] = defaultdict(dict)
    for (when, kind), numbers in uses.items():
        order[when][kind] = numbers
    times = sorted(order)
    for when in times:
        if len(order[when]) > 1:
            kinds = ", ".join(kind.value for kind in order[when])
            raise ScheduleError(f"in phase {when} instructions {kinds} {value}, and nothing orders them")
        if Kind.WRITE in order[when] and order[when][Kind.WRITE].bit_count() > 1:
            raise ScheduleError(f"in phase {when} several instructions write {value}")
    for index, when in enumerate(times):
        ((kind, early),) = order[when].items()
        for later in times[index + 1 :]:
            ((later_kind, late),) = order[later].items()
            if kind is later_kind and kind in (Kind.READ, Kind.ADD, Kind.APPEND):
                continue
            yield early, late


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        yield _lowest(bits)
        bits &= bits - 1


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def check_coverage(schedule: Schedule) -> None:
    """Every block of every matrix, every item of attention and every block of the head belongs to one program."""
    shape = schedule.shape
    blocks: Counter[tuple[str, int, int]] = Counter()
    items: Counter[tuple[int, int]] = Counter()
    head: Counter[int] = Counter()
    carries: Counter[tuple[str, int]] = Counter()
    for program in range(schedule.programs):
        blocks.update((block.matrix, block.row, block.k) for block in schedule.layer_blocks(program))
        _, attention, output, _, down = schedule.layer_instructions(program, 0)
        carries.update(("middle", row) for row in carried(schedule, output))
        carries.update(("residual", row) for row in carried(schedule, down))
        own = range(attention.member, attention.parts * schedule.batch, attention.members)
        items.update((attention.group, item) for item in own)
        last = _head(schedule, program)
        head.update(last.block_begin + index * last.block_stride for index in range(last.block_count))
    attended = shape.heads * shape.head_dim // 64
    sizes = {
        "qkv": (shape.kv_heads * shape.group_rows // 64, shape.hidden_blocks),
        "output": (shape.hidden_blocks, attended),
        "gate": (shape.neuron_blocks, shape.hidden_blocks),
        "up": (shape.neuron_blocks, shape.hidden_blocks),
        "down": (shape.hidden_blocks, shape.neuron_blocks),
    }
    wanted = {(name, row, k) for name, (rows, columns) in sizes.items() for row in range(rows) for k in range(columns)}
    _check_once("block", blocks, wanted)
    every = {(group, item) for group in range(shape.kv_heads) for item in range(schedule.parts * schedule.batch)}
    _check_once("attention item", items, every)
    rows = {(name, row) for name in ("middle", "residual") for row in range(shape.hidden_blocks)}
    _check_once("carried row", carries, rows)
    _check_once("head block", head, set(range(shape.vocab_blocks)))


def check_stream(schedule: Schedule) -> None:
    """The slots that the programs read are all slots of the packed weights, each read once."""
    slots: Counter[int] = Counter()
    for program in range(schedule.programs):
        stream = schedule.stream(program)
        count, base, stride = stream["layer_slots"], stream["layer_base"], stream["layer_stride"]
        if count * schedule.slot_blocks != len(schedule.layer_blocks(program)):
            raise ScheduleError(f"program {program} reads {count} slots a layer, not what its products need")
        slots.update(base + index * stride for index in range(count * schedule.shape.layers))
        last = _head(schedule, program)
        for index in range(last.block_count):
            block = last.block_begin + index * last.block_stride
            first = stream["head_base"] + block * stream["head_stride"]
            slots.update(range(first, first + stream["head_slots"]))
    _check_once("slot", slots, set(range(schedule.total_slots)))


def _head(schedule: Schedule, program: int) -> Head:
    *_, last = schedule.instructions(program)
    assert isinstance(last, Head)
    return last


def _check_once(name: str, found: Counter[Key], wanted: set[Key]) -> None:
    missing, extra = wanted - set(found), set(found) - wanted
    twice = [one for one, count in found.items() if count > 1]
    for what, which in (("nobody computes", missing), ("somebody computes", extra), ("several compute", twice)):
        if which:
            raise ScheduleError(f"{what} {name} {next(iter(which))} ({len(which)} such)")


def check_layers_are_alike(schedule: Schedule) -> None:
    """From layer to layer nothing changes but the arrivals waited for, by the same number each time."""
    for program in range(schedule.programs):
        layers = [schedule.layer_instructions(program, layer) for layer in range(schedule.shape.layers)]
        steps = set()
        for before, after in pairwise(layers):
            for early, late in zip(before, after, strict=True):
                same = replace(late, layer=early.layer, wait_arrivals=early.wait_arrivals)
                if same != early:
                    raise ScheduleError(f"{Step(program, late)} differs from the layer before in more than its wait")
                steps.add((type(late).__name__, late.wait_arrivals - early.wait_arrivals))
        if len(steps) > len(layers[0]):
            raise ScheduleError(f"the waits of program {program} grow unevenly from layer to layer: {steps}")
