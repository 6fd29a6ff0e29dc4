"""The persistent kernel compiles for a GPU that is not there, and its packed weights lie where its schedule looks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgen.kernels.model_shape import ModelShape
from structgen.kernels.packing import group_order, pack_weights
from structgen.kernels.random_model import random_weights
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import SHARED_MEMORY, StepSizes

SMALL = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=330)
POINTERS = {
    "*i32": "schedule state counters error ids positions table_of tables mask best_tokens lanes decisions",
    "*i64": "trace slot_traces cache_offsets last_tokens seeds offsets tokens",
    "*bf16": "norms embedding head_rows cache_base",
    "*fp32": "residuals qkv neurons partial partial_max partial_sum cos sin temperatures logits best_scores",
    "*i8": "constrained",
}
NUMBERS = {"layers": "i32", "mode": "i32", "cache_stride": "i64", "max_pages": "i32", "sparse_limit": "i32"}


def compiled_kernel(sizes: StepSizes) -> Any:
    triton = pytest.importorskip("triton", reason="needs Triton")
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from structgen.kernels.device.decode_step import decode_step

    rows = sizes.schedule.slot_blocks * 64
    types = {name: kind for kind, names in POINTERS.items() for name in names.split()} | NUMBERS
    types |= {"desc": f"tensordesc<bf16[{rows}, 64],{sizes.weight_layout!r}>", "cfg": "constexpr"}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(decode_step.arg_names)
        if types[name].startswith("*")
    }
    source = GluonASTSource(decode_step, {name: types[name] for name in decode_step.arg_names}, {"cfg": sizes}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


@pytest.mark.parametrize("batch", [1, 8])
def test_compiles_for_hopper(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns when it is unset
    kernel = compiled_kernel(StepSizes(Schedule.build(SMALL, batch, 8)))
    assert kernel.metadata.shared <= SHARED_MEMORY
    assert "wgmma" in kernel.asm["ptx"]


def test_a_derived_number_is_part_of_the_cache_key() -> None:
    sizes = StepSizes(Schedule.build(SMALL, 1, 8))
    assert sizes.cache_key == StepSizes(Schedule.build(SMALL, 1, 8)).cache_key
    assert sizes.cache_key != StepSizes(Schedule.build(SMALL, 1, 8), flight_bytes=32768).cache_key
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
