"""Dependencies: watches one run of a schedule, and raises as soon as an instruction touches a value at a wrong time."""

from __future__ import annotations

from collections import Counter, defaultdict

from structgen.kernels.dataflow import Kind, Value, accesses, phase
from structgen.kernels.instructions import Instruction
from structgen.kernels.schedule import Schedule

_HARMLESS = (Kind.READ, Kind.ADD, Kind.APPEND)  # in any order among themselves


class DependencyError(AssertionError):
    """A value was used before everybody who comes before had done with it."""


class Dependencies:
    """Knows how often each value is touched in each phase; a phase's use is due when all earlier ones are over.

    It sees one order of the instructions. That no order is wrong is what the validator proves.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._wanted: dict[Value, Counter[tuple[int, Kind]]] = defaultdict(Counter)
        for program in range(schedule.programs):
            for instruction in schedule.instructions(program):
                for access in accesses(schedule, program, instruction):
                    self._wanted[access.value][phase(instruction), access.kind] += 1
        self._done: dict[Value, Counter[tuple[int, Kind]]] = defaultdict(Counter)

    def begin(self) -> None:
        self._done.clear()

    def touch(self, program: int, instruction: Instruction) -> None:
        """Before the instruction works: everything it touches must be due."""
        now = phase(instruction)
        for access in accesses(self._schedule, program, instruction):
            done = self._done[access.value]
            for (when, kind), count in self._wanted[access.value].items():
                if when == now or (kind is access.kind and kind in _HARMLESS):
                    continue
                if when < now and done[when, kind] < count:
                    self._fail(program, instruction, access.value, f"{done[when, kind]} of {count} to {kind.value}")
                if when > now and done[when, kind]:
                    self._fail(program, instruction, access.value, f"a later instruction did {kind.value}")
            done[now, access.kind] += 1

    def finish(self) -> None:
        """After the step: everything has been done."""
        for value, wanted in self._wanted.items():
            if self._done[value] != wanted:
                raise DependencyError(f"{value} was not used as often as the schedule says")

    def _fail(self, program: int, instruction: Instruction, value: Value, why: str) -> None:
        name = type(instruction).__name__
        raise DependencyError(f"{name} of layer {instruction.layer} in program {program} touches {value} early: {why}")
