"""Two steps of the resident loop in a row: what passes between them is proven to come in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from structgen.kernels import resident_order
from structgen.kernels.instructions import Head, Instruction, Qkv
from structgen.kernels.model_shape import LLAMA_1B, ModelShape
from structgen.kernels.resident_order import Fetch, Word, resident_steps, validate_resident
from structgen.kernels.schedule import Schedule
from structgen.kernels.validator import ScheduleError, Step
from tests.kernels.small_models import CONFIGS

Change = Callable[[Instruction], Instruction]


@pytest.mark.parametrize("processors", [2, 7, 24])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", ["llama", "wide", "deep"])
def test_small_shapes_pass(name: str, batch: int, processors: int) -> None:
    validate_resident(Schedule.build(ModelShape.of(CONFIGS[name]), batch, processors))


def test_a_real_shape_passes() -> None:
    validate_resident(Schedule.build(LLAMA_1B, 1, processors=132))


def early(kind: type[Instruction]) -> Change:
    """The instruction waits for one arrival less."""
    return lambda one: replace(one, wait_arrivals=max(one.wait_arrivals - 1, 0)) if type(one) is kind else one


def never(kind: type[Instruction]) -> Change:
    return lambda one: replace(one, wait_arrivals=one.wait_arrivals + 1) if type(one) is kind else one


def without_masks(one: Instruction) -> Instruction:
    return replace(one, also_waits=()) if isinstance(one, Head) else one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (early(Qkv), r"Qkv .* may touch .* before"),
        (early(Word), r"Fetch .* may touch \('(mask|allowed)'.* before Head"),
        (early(Fetch), r"may touch \('(mask|allowed)'"),
        (without_masks, r"Head .* may touch \('(mask|allowed)'.* before Fetch"),
        (never(Word), "waits for ever"),
    ],
    ids=["token", "word", "grant", "masks", "deadlock"],
)
def test_each_wait_between_steps_is_needed(change: Change, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(schedule: Schedule) -> Iterator[Step]:
        for step in resident_steps(schedule):
            yield replace(step, instruction=change(step.instruction))

    monkeypatch.setattr(resident_order, "resident_steps", changed)
    with pytest.raises(ScheduleError, match=message):
        validate_resident(Schedule.build(ModelShape.of(CONFIGS["llama"]), 3, 7))
