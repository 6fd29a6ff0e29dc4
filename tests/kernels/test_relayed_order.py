"""Values that are polled: what still orders the programs, and that too few buffers are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from structgen.kernels.dataflow import Access
from structgen.kernels.instructions import GateUp, Instruction
from structgen.kernels.model_shape import LLAMA_1B, SMOLLM2_135M, ModelShape
from structgen.kernels.relayed_order import PERIOD, Clear, check_polled, polled_accesses, validate_polled
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes
from structgen.kernels.validator import Accesses, ScheduleError

ONE = Schedule.build(LLAMA_1B, 1, 132)
THREE = Schedule.build(SMOLLM2_135M, 3, 132)


def cut(schedule: Schedule) -> Schedule:
    return replace(schedule, shape=replace(schedule.shape, layers=PERIOD + 2))


def test_a_llama_of_one_row_polls_everything() -> None:
    sizes = StepSizes(ONE)
    assert (sizes.relayed, sizes.polled_sums, sizes.polled_parts) == (True, True, True)
    validate_polled(ONE)


@pytest.mark.parametrize("shape", [LLAMA_1B, SMOLLM2_135M])
@pytest.mark.parametrize("batch", [2, 8])
def test_several_rows_poll_the_parts_of_the_attention(shape: ModelShape, batch: int) -> None:
    schedule = Schedule.build(shape, batch, 132)
    sizes = StepSizes(schedule)
    assert (sizes.relayed, sizes.polled_sums, sizes.polled_parts) == (False, False, True)
    validate_polled(schedule)


def test_a_group_of_few_programs_has_several_parts_for_each() -> None:
    schedule = Schedule.build(LLAMA_1B, 8, 24)
    assert StepSizes(schedule).polled_parts
    assert schedule.members < schedule.parts * schedule.batch
    validate_polled(schedule)


def test_one_row_that_is_not_folded_waits_at_counters() -> None:
    sizes = StepSizes(Schedule.build(SMOLLM2_135M, 1, 132))
    assert (sizes.relayed, sizes.polled_parts) == (False, False)


def test_the_poll_of_sums_walks_as_they_lie() -> None:
    nonzero = pytest.importorskip("structgen.kernels.device.nonzero", reason="needs Triton")
    sizes = StepSizes(ONE)
    assert (sizes.qkv_parts, sizes.qkv_stride) == (nonzero.SUM_PARTS, nonzero.SUM_STRIDE)


def test_middle_has_as_many_planes_as_the_proof_assumes() -> None:
    sizes = StepSizes(ONE)
    planes = [sizes.middle_plane(layer) for layer in range(PERIOD)]
    assert len(set(planes)) == PERIOD
    assert not {2, 3} & set(planes)
    assert max(planes) < sizes.planes


def two_middles(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    for access in polled_accesses(schedule, program, one):
        name, place, *rest = access.value
        yield replace(access, value=(name, int(place) % 2, *rest)) if name == "middle" else access


def one_qkv(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    for access in polled_accesses(schedule, program, one):
        yield replace(access, value=access.value[:-1]) if access.value[1] == "qkv" else access


def one_set_of_parts(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    for access in polled_accesses(schedule, program, one):
        yield replace(access, value=access.value[:-1]) if access.value[1] == "partial" else access


def parts_cleared_late(schedule: Schedule, program: int, one: Instruction) -> Iterator[Access]:
    """By GateUp, behind the barrier that would order it."""
    if not isinstance(one, Clear):
        yield from polled_accesses(schedule, program, one)
    if isinstance(one, GateUp):
        clear = Clear(layer=one.layer, wait_counter=0, wait_arrivals=0, arrive_counter=0)
        yield from polled_accesses(schedule, program, clear)


@pytest.mark.parametrize("accesses", [two_middles, one_qkv, one_set_of_parts, parts_cleared_late])
def test_too_few_buffers_are_told(accesses: Accesses) -> None:
    with pytest.raises(ScheduleError):
        check_polled(cut(ONE), accesses)


def test_several_rows_need_two_sets_of_parts() -> None:
    with pytest.raises(ScheduleError, match="'partial'"):
        check_polled(cut(THREE), one_set_of_parts)
