"""The validator: right schedules pass, and each way of breaking one is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from structgen.kernels.dataflow import Access, accesses
from structgen.kernels.instructions import Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.model_shape import LLAMA_1B, SMOLLM2_135M, ModelShape, UnsupportedShape
from structgen.kernels.schedule import Rectangle, Schedule
from structgen.kernels.validator import Program, ScheduleError, validate
from tests.kernels.small_models import CONFIGS

SMALL = ModelShape.of(CONFIGS["llama"])


@pytest.mark.parametrize("processors", [2, 7, 24])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", ["llama", "wide", "deep"])
def test_small_shapes_pass(name: str, batch: int, processors: int) -> None:
    validate(Schedule.build(ModelShape.of(CONFIGS[name]), batch, processors))


@pytest.mark.parametrize("shape", [LLAMA_1B, SMOLLM2_135M], ids=["Llama-3.2-1B", "SmolLM2-135M"])
def test_real_shapes_pass(shape: ModelShape) -> None:
    validate(Schedule.build(shape, 1, processors=132))


@pytest.mark.parametrize("seed", range(40))
def test_any_shape_passes_or_is_not_supported(seed: int) -> None:
    random = Random(seed)
    kv_heads = random.choice([1, 2, 3, 4, 5, 8])
    shape = ModelShape(
        hidden=64 * random.randint(1, 12),
        intermediate=64 * random.randint(1, 16),
        layers=random.randint(1, 3),
        heads=kv_heads * random.choice([1, 2, 3, 4, 7]),
        kv_heads=kv_heads,
        head_dim=random.choice([64, 128, 256]),
        vocab_size=random.randint(1, 3000),
    )
    batch, processors = random.randint(1, 8), random.randint(kv_heads, 40)
    if shape.neuron_blocks < kv_heads:
        with pytest.raises(UnsupportedShape, match="too little"):
            Schedule.build(shape, batch, processors)
    else:
        validate(Schedule.build(shape, batch, processors))


def test_programs_that_wait_alike_are_run_once_for_all() -> None:
    program = Program.of(Schedule.build(SMALL, 3, processors=7))
    assert all(program.run(number) == program.run_without(number) for number in range(len(program.steps)))


@dataclass(frozen=True, kw_only=True)
class Waiting(Schedule):
    """One kind of instruction waits for `more` arrivals than it should, in the layers from `since` on."""

    kind: type[Instruction]
    more: int
    since: int = 0

    def _changed(self, one: Instruction) -> Instruction:
        if isinstance(one, self.kind) and one.layer >= self.since:
            return replace(one, wait_arrivals=max(one.wait_arrivals + self.more, 0))
        return one

    def layer_instructions(self, program: int, layer: int) -> tuple[Qkv, Attention, Output, GateUp, Down]:
        qkv, attention, output, gate_up, down = map(self._changed, super().layer_instructions(program, layer))
        assert isinstance(qkv, Qkv)
        assert isinstance(attention, Attention)
        assert isinstance(output, Output)
        assert isinstance(gate_up, GateUp)
        assert isinstance(down, Down)
        return qkv, attention, output, gate_up, down

    def instructions(self, program: int) -> Iterator[Instruction]:
        for one in super().instructions(program):
            yield self._changed(one) if isinstance(one, Head) else one


@pytest.mark.parametrize("kind", [Attention, Output, GateUp, Down, Head])
def test_a_wait_that_is_one_short_is_a_race(kind: type[Instruction]) -> None:
    with pytest.raises(ScheduleError, match=r"may touch \(.*\) before .* has"):
        validate(Waiting(shape=SMALL, batch=1, members=3, kind=kind, more=-1))


@pytest.mark.parametrize("kind", [Qkv, Attention, Output, GateUp, Down, Head])
def test_a_wait_for_too_many_never_ends(kind: type[Instruction]) -> None:
    with pytest.raises(ScheduleError, match=f"{kind.__name__} of layer . in program . waits for ever"):
        validate(Waiting(shape=SMALL, batch=1, members=3, kind=kind, more=1))


def test_layers_must_be_alike() -> None:
    with pytest.raises(ScheduleError, match="grow unevenly"):
        validate(Waiting(shape=SMALL, batch=1, members=3, kind=Output, more=1, since=2))


@dataclass(frozen=True, kw_only=True)
class Reshaped(Schedule):
    """The shares of the output projection are replaced."""

    shares: tuple[Rectangle, ...]

    @property
    def output(self) -> tuple[Rectangle, ...]:
        return self.shares


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Rectangle(2, 3, 0, 4), "nobody computes block"),
        (Rectangle(1, 4, 0, 4), "several compute block"),
        (Rectangle(2, 5, 0, 4), "somebody computes block"),
    ],
)
def test_every_block_is_computed_once(second: Rectangle, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(Reshaped(shape=SMALL, batch=1, members=2, shares=(Rectangle(0, 2, 0, 4), second)))


def one_buffer(schedule: Schedule, program: int, instruction: Instruction) -> Iterator[Access]:
    """As if the inputs of attention and MLP were one buffer that everybody adds to, and nobody cleared it."""
    for access in accesses(schedule, program, instruction):
        name, _, *block = access.value
        if name not in ("middle", "residual"):
            yield access
        elif access.kind.value != "clear":
            yield Access(access.kind, ("residual", 0, *block))


def test_one_buffer_for_the_whole_residual_would_be_a_race() -> None:
    with pytest.raises(ScheduleError, match="nothing orders them"):
        validate(Schedule.build(SMALL, 1, 6), one_buffer)


def whole_heads(schedule: Schedule, program: int, instruction: Instruction) -> Iterator[Access]:
    """A short context: every member of a group computes all of its attention, and nothing goes through `partial`."""
    return (one for one in accesses(schedule, program, instruction) if one.value[0] != "partial")


def test_a_short_context_needs_no_wait_between_attention_and_output() -> None:
    without = Waiting(shape=SMALL, batch=1, members=6, kind=Output, more=-1000)
    validate(without, whole_heads)
    with pytest.raises(ScheduleError, match="'partial'"):
        validate(without)
