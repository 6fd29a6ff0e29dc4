"""Values that carry flags: what still orders the programs of a batch of one, and that too few buffers are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from structgen.kernels.dataflow import Access
from structgen.kernels.instructions import Instruction
from structgen.kernels.model_shape import LLAMA_1B, SMOLLM2_135M
from structgen.kernels.relayed_order import PERIOD, relayed_accesses, relayed_program, validate_relayed
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes
from structgen.kernels.validator import Accesses, ScheduleError, check_order

SCHEDULE = Schedule.build(LLAMA_1B, 1, 132)


def test_llama_is_relayed_and_passes() -> None:
    assert StepSizes(SCHEDULE).relayed
    validate_relayed(SCHEDULE)


def test_other_batches_and_shapes_wait_at_counters() -> None:
    assert not StepSizes(Schedule.build(LLAMA_1B, 2, 132)).relayed
    assert not StepSizes(Schedule.build(SMOLLM2_135M, 1, 132)).relayed


def test_middle_has_as_many_planes_as_the_proof_assumes() -> None:
    sizes = StepSizes(SCHEDULE)
    planes = [sizes.middle_plane(layer) for layer in range(PERIOD)]
    assert len(set(planes)) == PERIOD
    assert not {2, 3} & set(planes)
    assert max(planes) < sizes.planes


def two_middles(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    for access in relayed_accesses(schedule, program, one):
        name, place, *rest = access.value
        assert isinstance(place, int)
        yield replace(access, value=(name, place % 2, *rest)) if name == "middle" else access


def one_qkv(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    for access in relayed_accesses(schedule, program, one):
        yield replace(access, value=access.value[:-1]) if access.value[0] == "qkv" else access


@pytest.mark.parametrize("accesses", [two_middles, one_qkv])
def test_too_few_buffers_are_told(accesses: Accesses) -> None:
    few = replace(SCHEDULE, shape=replace(LLAMA_1B, layers=PERIOD + 2))
    with pytest.raises(ScheduleError):
        check_order(relayed_program(few), few, accesses)
