"""python -m structgen.engine.bench_lora [--rank 16]: what LoRA adapters cost a step, on the default model.

Random adapters on all seven matrices. First the three ways to the same sums are compared on one step's products, then
decoding is timed in turns: no adapter, the same one in each row, another one in each row, half of the rows with one.
The last line is one JSON object: ms a step by batch and mix, and ms of the adapters' products alone; the best of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from structgen.engine.bench import default_model
from structgen.engine.engine import Engine
from structgen.engine.errors import EngineError
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import FUSED, AdapterTable
from structgen.engine.lora_files import AdapterWeights, LowRank, target_sizes
from structgen.engine.model_config import ModelConfig
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.weights import load_model

ADAPTERS = 4
PROMPT = list(range(100, 132))
MIXES: dict[str, tuple[int, ...]] = {"none": (0,), "one": (1,), "each": (1, 2, 3, 4), "half": (0, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench_lora", description=__doc__)
    parser.add_argument("--model", type=Path, default=default_model(), help=".gguf file or Hugging Face folder")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=24, help="steps in one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        model = load_model(options.model)
    except EngineError as problem:
        print(f"{problem}\nhint: {problem.hint}", file=sys.stderr)
        return 2
    adapters = [random_adapter(model.config, options.rank, seed) for seed in range(ADAPTERS)]
    largest = compare_ways(model.config, adapters)
    print(f"three ways to the same sums: {largest:.1e} apart at most, relative to the largest sum")
    found = {f"batch {batch}": time_mixes(model, adapters, batch, options) for batch in (1, 8)}
    for batch, times in found.items():
        print(f"{batch}: " + ", ".join(f"{mix} {value:.2f} ms" for mix, value in times.items()))
    products = time_products(model, adapters, options.rounds)
    print("products alone: " + ", ".join(f"{rows} {value:.2f} ms" for rows, value in products.items()))
    figures = {"ways_apart": largest, "ms_per_step": found, "products_ms": products}
    print(json.dumps({"rank": options.rank, "precision": model.precision, **figures}))
    return 0 if largest < 1e-4 else 1


def random_adapter(config: ModelConfig, rank: int, seed: int, size: float = 0.01) -> AdapterWeights:
    """`size` is that of B's elements; the default is small enough that texts stay texts."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for layer in range(config.layers):
        for target, (out, inner) in target_sizes(config).items():
            a = torch.randn(rank, inner, generator=generator) / inner**0.5
            pairs[layer, target] = LowRank(a=a, b=torch.randn(out, rank, generator=generator) * size)
    return AdapterWeights(pairs=pairs)


def compare_ways(config: ModelConfig, adapters: list[AdapterWeights]) -> float:
    """The largest difference between the ways over the first layer's products of eight tokens, in float32."""
    table = AdapterTable(config, slots=ADAPTERS, max_rank=adapters[0].rank, dtype=torch.float32)
    for slot, adapter in enumerate(adapters, 1):
        table.load(slot, adapter)
    sizes, slots, largest = target_sizes(config), torch.tensor([0, 1, 2, 3, 4, 1, 0, 2]), 0.0
    for name, parts in FUSED.items():
        x = torch.randn(len(slots), sizes[parts[0]][1])
        sums = [torch.zeros(len(slots), sum(sizes[part][0] for part in parts)) for _ in range(3)]
        for way, out in zip((table._grouped, table._gathered, table._masked), sums, strict=True):
            way(slots)(0, name, x, out)
        apart = max(float((out - sums[0]).abs().max()) for out in sums)
        largest = max(largest, apart / float(sums[0].abs().max()))
    return largest


@torch.inference_mode()
def time_products(model: LlamaModel, adapters: list[AdapterWeights], rounds: int) -> dict[str, float]:
    """ms that the adapters add to one step: all layers, nothing else."""
    config, sizes = model.config, target_sizes(model.config)
    table = AdapterTable(config, slots=ADAPTERS, max_rank=adapters[0].rank, dtype=model.dtype)
    for slot, adapter in enumerate(adapters, 1):
        table.load(slot, adapter)
    found = {}
    for name, slots in {"1 row": [1], "8 rows": [1] * 8, "8 rows, 4 adapters": [1, 2, 3, 4] * 2}.items():
        inputs = [torch.randn(len(slots), sizes[parts[0]][1], dtype=model.dtype) for parts in FUSED.values()]
        outputs = [
            torch.zeros(len(slots), sum(sizes[part][0] for part in parts), dtype=model.dtype)
            for parts in FUSED.values()
        ]
        best = float("inf")
        for _ in range(4 * rounds):
            started = time.perf_counter()
            add = table.bind(torch.tensor(slots))
            for layer in range(config.layers):
                for fused, x, out in zip(FUSED, inputs, outputs, strict=True):
                    add(layer, fused, x, out)
            best = min(best, time.perf_counter() - started)
        found[name] = best * 1000
    return found


def time_mixes(
    model: LlamaModel, adapters: list[AdapterWeights], batch: int, options: argparse.Namespace
) -> dict[str, float]:
    engine = Engine(model, max_batch=batch, max_context=256, max_adapters=ADAPTERS, max_lora_rank=options.rank)
    for number, adapter in enumerate(adapters, 1):
        engine.load_adapter(str(number), adapter)
    best = dict.fromkeys(MIXES, float("inf"))
    for _ in range(options.rounds):
        for mix, slots in MIXES.items():
            best[mix] = min(best[mix], _step_ms(engine, [slots[row % len(slots)] for row in range(batch)], options))
    return best


def _step_ms(engine: Engine, slots: list[int], options: argparse.Namespace) -> float:
    """Mean ms of the decode steps; the prompt's step is not counted."""
    params = SamplingParams(max_tokens=options.tokens + 1)
    sequences = [engine.submit(PROMPT, params, adapter=str(slot) if slot else None) for slot in slots]
    while any(not sequence.output_ids for sequence in sequences):
        engine.step()
    started = time.perf_counter()
    while engine.has_work:
        engine.step()
    tokens: int = options.tokens
    return (time.perf_counter() - started) / tokens * 1000


if __name__ == "__main__":
    sys.exit(main())
