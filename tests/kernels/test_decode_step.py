"""The persistent kernel compiles for a GPU that is not there, and its packed weights lie where its schedule looks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from structgen.kernels.model_shape import ModelShape
from structgen.kernels.packing import group_order, pack_weights
from structgen.kernels.random_model import random_weights
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_numbers import SHARED_MEMORY
from structgen.kernels.step_sizes import StepSizes

SMALL = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=330)


@pytest.mark.parametrize("options", [[], ["--resident"]], ids=["one step", "resident loop"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_compiles_for_hopper(batch: int, options: list[str]) -> None:
    """In a process of its own: here Triton may be set to interpret."""
    pytest.importorskip("triton", reason="needs Triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "structgen.kernels.ahead_of_time", "--batch", str(batch), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) <= SHARED_MEMORY


def test_a_derived_number_is_part_of_the_cache_key() -> None:
    sizes = StepSizes(Schedule.build(SMALL, 1, 8))
    assert sizes.cache_key == StepSizes(Schedule.build(SMALL, 1, 8)).cache_key
    for other in ({"flight_bytes": 32768}, {"waiting_bytes": 16384}, {"ahead": 0}, {"trace": True}):
        assert sizes.cache_key != StepSizes(Schedule.build(SMALL, 1, 8), **other).cache_key
    assert f"'slots': {sizes.slots}" in sizes.cache_key


@pytest.mark.parametrize("processors", [6, 7, 8])
def test_packed_blocks_lie_where_the_schedule_says(processors: int) -> None:
    schedule = Schedule.build(SMALL, 1, processors)
    weights = random_weights(SMALL, "cpu")
    packed = pack_weights(weights, schedule).view(-1, 64, 64)
    order, size = group_order(SMALL), schedule.slot_blocks
    for program in range(schedule.programs):
        stream = schedule.stream(program)
        for index, layer in enumerate(weights.layers):
            gate, up = layer.gate_up.chunk(2)
            matrices = {"qkv": layer.qkv[order], "output": layer.output, "gate": gate, "up": up, "down": layer.down}
            for number, block in enumerate(schedule.layer_blocks(program)):
                slot = index * stream["layer_slots"] + number // size
                place = (stream["layer_base"] + slot * stream["layer_stride"]) * size + number % size
                rows = matrices[block.matrix][block.row * 64 :][:64]
                assert torch.equal(packed[place], rows[:, block.k * 64 :][:, :64])


def test_the_heads_last_block_is_padded_with_zeros() -> None:
    schedule = Schedule.build(SMALL, 1, 8)
    packed = pack_weights(random_weights(SMALL, "cpu"), schedule).view(-1, 64, 64)
    last = packed[-SMALL.hidden_blocks :]
    assert last[:, : 330 % 64].any()
    assert not last[:, 330 % 64 :].any()
