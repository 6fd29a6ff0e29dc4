"""The interpreter of the schedule: equal to the engine's model in every interleaving, and deaf to no broken order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from structgen.kernels.dependencies import DependencyError
from structgen.kernels.instructions import GateUp, Instruction, Output
from structgen.kernels.interpreter import Interpreter
from structgen.kernels.model_shape import ModelShape
from structgen.kernels.schedule import Schedule
from tests.kernels.small_models import CONFIGS, SmallModel, random_sequences, relative_error, shuffled_tables

LENGTHS = [1, 16, 17, 33, 128, 2, 129, 64]  # around the ends of pages, most parts of the context empty or not


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_computes_what_the_model_computes(name: str, batch: int) -> None:
    small = SmallModel.build(CONFIGS[name])
    schedule = Schedule.build(ModelShape.of(small.config), batch, processors=7)
    sequences = random_sequences(small.config, LENGTHS[-batch:])
    tables, cache = shuffled_tables(batch), small.cache()
    for ids, pages in zip(sequences, tables, strict=True):
        if len(ids) > 1:
            small.fill(cache, ids[:-1], pages)
    interpreter = Interpreter(schedule, small.weights, small.layers(cache))
    wanted = small.expected(sequences)
    found = interpreter.step(small.rows(sequences, tables), order="random", seed=batch)
    assert relative_error(found, wanted) < 1e-5
    again = interpreter.step(small.rows(sequences, tables), order="greedy")
    assert relative_error(again, wanted) < 1e-5


def test_rows_may_be_tokens_of_one_sequence_and_steps_follow_each_other() -> None:
    small = SmallModel.build(CONFIGS["deep"])  # an odd number of layers: buffers swap from step to step
    schedule = Schedule.build(ModelShape.of(small.config), 3, processors=5)
    (ids,) = random_sequences(small.config, [36])
    tables, cache = shuffled_tables(1).expand(3, -1), small.cache()
    small.fill(cache, ids[:30], tables[0])
    interpreter = Interpreter(schedule, small.weights, small.layers(cache))
    for end in (33, 36):
        prefixes = [ids[: end - 2], ids[: end - 1], ids[:end]]
        found = interpreter.step(small.rows(prefixes, tables), seed=end)
        assert relative_error(found, small.expected(prefixes)) < 1e-5


def test_a_bfloat16_cache_rounds_keys_and_values_only() -> None:
    small = SmallModel.build(CONFIGS["llama"])
    (ids,) = random_sequences(small.config, [40])
    tables, cache, rounded = shuffled_tables(1), small.cache(), small.cache(torch.bfloat16)
    small.fill(cache, ids[:-1], tables[0])
    for layer, source in zip(rounded.layers, cache.layers, strict=True):
        layer.copy_(source)
    interpreter = Interpreter(Schedule.build(ModelShape.of(small.config), 1, 4), small.weights, small.layers(rounded))
    assert relative_error(interpreter.step(small.rows([ids], tables)), small.expected([ids])) < 1e-2


@dataclass(frozen=True, kw_only=True)
class WithoutWait(Schedule):
    """A schedule in which one kind of instruction waits for fewer arrivals."""

    kind: type[Instruction] = Output
    fewer: int = 1

    def instructions(self, program: int) -> Iterator[Instruction]:
        for one in super().instructions(program):
            if isinstance(one, self.kind):
                yield replace(one, wait_arrivals=max(one.wait_arrivals - self.fewer, 0))
            else:
                yield one


@pytest.mark.parametrize("kind", [Output, GateUp])
def test_a_wait_that_is_too_short_is_found(kind: type[Instruction]) -> None:
    small = SmallModel.build(CONFIGS["llama"])
    shape = ModelShape.of(small.config)
    schedule = WithoutWait(shape=shape, batch=1, members=3, kind=kind)
    (ids,) = random_sequences(small.config, [20])
    tables, cache = shuffled_tables(1), small.cache()
    interpreter = Interpreter(schedule, small.weights, small.layers(cache))
    with pytest.raises(DependencyError, match=f"{kind.__name__} of layer"):
        interpreter.step(small.rows([ids], tables), order="greedy")


def test_programs_that_wait_for_ever_are_found() -> None:
    small = SmallModel.build(CONFIGS["llama"])
    schedule = WithoutWait(shape=ModelShape.of(small.config), batch=1, members=3, kind=GateUp, fewer=-1)
    interpreter = Interpreter(schedule, small.weights, small.layers(small.cache()))
    with pytest.raises(AssertionError, match="for ever"):
        interpreter.step(small.rows([[1]], shuffled_tables(1)))


def test_the_buffers_must_be_clear() -> None:
    small = SmallModel.build(CONFIGS["ungrouped"])
    interpreter = Interpreter(
        Schedule.build(ModelShape.of(small.config), 1, 3), small.weights, small.layers(small.cache())
    )
    interpreter.qkv += torch.ones(())
    with pytest.raises(AssertionError, match="not clear"):
        interpreter.step(small.rows([[1]], shuffled_tables(1)))
