"""The decode step of Llama-3.2-1B, random weights: validated, then timed beside the read ceiling and torch.compile."""

from __future__ import annotations

import json
from typing import Any

import torch

from structgen.kernels import bench_check, bench_sampling
from structgen.kernels.bench_micro import processors, read_ceiling
from structgen.kernels.bench_timing import loop_milliseconds, replay_milliseconds
from structgen.kernels.compiled_baseline import compiled_milliseconds
from structgen.kernels.decoder import RUN_HEAD, RUN_LAYERS, USE_MASK, Decoder, StepInput
from structgen.kernels.model_shape import LLAMA_1B
from structgen.kernels.random_model import RandomBench
from structgen.kernels.schedule import Schedule

CONTEXTS = (128, 1024, 4096)
STRUCTURAL_TOKENS = 64
WHOLE = RUN_LAYERS | RUN_HEAD | USE_MASK


def run(compiled: bool = True) -> dict[str, Any]:
    """The JSON object of the last line; a table on the way."""
    ceiling = read_ceiling()
    bench = RandomBench.build(Schedule.build(LLAMA_1B, 1, processors()), max(CONTEXTS))
    one = Decoder(Schedule.build(LLAMA_1B, 1, processors()), bench.model)
    eight = Decoder(Schedule.build(LLAMA_1B, 8, processors()), bench.model)
    for decoder, positions in ((one, [127]), (eight, [127, 0, 15, 16, 126, 128, 999, 4095])):
        assert bench_check.compare(decoder, bench, positions).good, "the kernel is wrong: not timed"
    result: dict[str, Any] = {"read_ceiling_ms": round(ceiling, 4)}
    result["ms_per_token"] = {
        str(context): _time(f"batch 1, context {context}", one, bench.step([-1], [context - 1]), ceiling)
        for context in CONTEXTS
    }
    batch = bench.step([-1 - row for row in range(8)], [127] * 8)
    result["batch8_ms"] = _time("batch 8, context 128", eight, batch, ceiling)
    result["batch8_ratio"] = round(result["batch8_ms"] / result["ms_per_token"]["128"], 3)
    structural = bench.step([-1], [127])
    structural.mask.zero_()
    structural.mask[0, torch.randperm(structural.mask.shape[1], device="cuda")[:STRUCTURAL_TOKENS]] = 1
    result["structural_ms"] = _time(
        f"batch 1, {STRUCTURAL_TOKENS} tokens allowed", one, structural, ceiling, head=False
    )
    result["torch_compile_ms"] = round(compiled_milliseconds(bench.model.weights), 4) if compiled else None
    if compiled:
        print(f"torch.compile, blocks in one CUDA graph, static cache of 256: {result['torch_compile_ms']} ms")
    print(json.dumps(result), flush=True)
    result["masked_sampling_us"] = bench_sampling.masked_sampling_us()
    return result


def _time(label: str, decoder: Decoder, step: StepInput, ceiling: float, head: bool = True) -> float:
    """Each step reads the token that the one before it chose. ms by the wall clock, launches included.

    Without `head` the head's weights do not count as read, in the rate and in the ceiling.
    """
    decoder.reset()
    ms = replay_milliseconds(lambda: decoder.launch(step, WHOLE))
    looped = loop_milliseconds(lambda: decoder.launch(step, WHOLE))
    decoder.check()
    unread = 0 if head else 2 * LLAMA_1B.vocab_size * LLAMA_1B.hidden
    read = LLAMA_1B.weight_bytes - unread
    rate, share = read / ms / 1e9, ceiling * read / LLAMA_1B.weight_bytes / ms
    print(
        f"{label}: {ms:.4f} ms in a graph, {looped:.4f} launched from Python, "
        f"{rate:.3f} TB/s of weights, {share:.1%} of the read ceiling"
    )
    return round(ms, 4)
