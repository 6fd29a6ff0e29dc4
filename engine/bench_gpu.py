"""The GPU figures: Llama-3.2-1B's shapes with random weights, which write recorded records (bench_replay.py).

At batch 1, 8 and 64: what a constraint costs, what jump-forward saves, what a second step in flight gains, how long
the GPU is idle inside decoding, and whether a step takes max(GPU, CPU).
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from structgen.engine.bench_peer import TransformersPeer
from structgen.engine.bench_replay import Recording, Replay
from structgen.engine.bench_schemas import EXTRACTIONS
from structgen.engine.bench_structured import MAX_TOKENS, Contest, Group, Task, Writer
from structgen.engine.bench_vocabulary import read_vocabulary
from structgen.engine.engine import Engine
from structgen.engine.errors import EngineError
from structgen.engine.llama import LlamaModel
from structgen.engine.made_up_weights import MadeUpWeights
from structgen.engine.model_config import ModelConfig
from structgen.engine.rope_scaling import RopeScaling
from structgen.engine.runner import PAGE_SIZE, ModelRunner
from structgen.grammar import Grammar, Vocabulary

LLAMA_1B = ModelConfig(
    vocab_size=128_256,
    hidden=2048,
    intermediate=8192,
    layers=16,
    heads=32,
    kv_heads=8,
    head_dim=64,
    context=131_072,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(kind="llama3", factor=32.0),
    tied_head=True,
)
BATCHES = (1, 8, 64)
CONTEXT = 1024
PROMPT_TOKENS = 48
HEADLINES = ("constrained_ratio", "jump_forward_ratio", "depth2_gain", "bubble_pct")


def random_weights(config: ModelConfig, device: str) -> MadeUpWeights:
    """Matrices of deviation 0.02, norms of one."""
    generator = torch.Generator(device).manual_seed(0)

    def make(shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=device)
        return torch.randn(shape, generator=generator, device=device).mul_(0.02)

    return MadeUpWeights(config, make)


def bench_gpu(options: argparse.Namespace) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise EngineError("PyTorch sees no GPU", hint="leave out --device cuda")
    vocabulary = read_vocabulary(options.tokenizer)
    tasks = list(recorded_tasks(vocabulary))
    model = LlamaModel(LLAMA_1B, random_weights(LLAMA_1B, options.device), "bfloat16", options.device)
    runner = _runner(model, options.runner)
    deep, serial, jumping = (
        Engine(runner, max_batch=max(BATCHES), depth=depth, jump_forward=jump, share_prefixes=False)
        for depth, jump in ((2, False), (1, False), (2, True))
    )
    gc.freeze()  # as the server does
    writers = {"constrained": Writer(deep), "jump-forward": Writer(jumping), "depth 1": Writer(serial)}
    writers["free"] = Writer(deep, like=writers["constrained"])
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "runner": options.runner}
    for batch in BATCHES:
        many = (tasks * batch)[: max(batch, len(tasks))]
        groups: list[Group] = [many[first : first + batch] for first in range(0, len(many) - batch + 1, batch)]
        figures |= _at_batch(batch, writers, groups, rounds=3 if options.quick else 9)
    figures |= {name: figures[f"{name}_1"] for name in HEADLINES}
    figures["ms_per_token"] = round(figures["us_per_step_1"] / 1000, 4)
    figures["transformers_ms_per_token"] = _transformers_ms(options.device)
    figures["throughput_8"] = round(8e6 / figures["us_per_step_8"], 1)
    for engine in (deep, serial, jumping):
        engine.close()
    return figures


def _transformers_ms(device: str) -> float | None:
    """A token of greedy `generate` at batch 1, the best of three; None where transformers is not installed."""
    try:
        peer, tokens = TransformersPeer.random(LLAMA_1B, device), 32
    except EngineError as problem:
        print(problem)
        return None
    return round(min(peer.decode([1] * PROMPT_TOKENS, tokens) for _ in range(3)) / tokens * 1000, 3)


def _at_batch(batch: int, writers: dict[str, Writer], groups: list[Group], rounds: int) -> dict[str, Any]:
    contest = Contest.hold(writers, groups, rounds)
    print(f"\nbatch {batch}, {sum(contest.weights)} tokens; microseconds a step, over free text in tokens/s:")
    print(f"{'':<16}{'tokens/s':>10}{'step':>8}{'GPU':>8}{'CPU':>8}{'bubble':>9}{'step/max':>10}{'gain':>8}")
    for name, writer in writers.items():
        load, per = writer.load, 1e6 / writer.load.steps
        print(
            f"{name:<16}{1 / contest.seconds_per_token(name):>10.0f}{load.microseconds:>8.0f}{load.device * per:>8.0f}"
            f"{load.host * per:>8.0f}{load.bubble_percent:>8.2f}%{load.over_the_longer:>10.3f}"
            f"{contest.gain(name, 'free'):>8.3f}"
        )
    free, held, jumps = (writers[name].load for name in ("free", "constrained", "jump-forward"))
    return {
        f"us_per_step_{batch}": round(free.microseconds, 1),
        f"constrained_ratio_{batch}": round(contest.gain("constrained", "free"), 3),
        f"jump_forward_ratio_{batch}": round(contest.total_gain("jump-forward", "free"), 2),
        f"forced_share_{batch}": round(jumps.forced / jumps.tokens, 3),
        f"depth2_gain_{batch}": round(contest.gain("constrained", "depth 1"), 3),
        f"bubble_pct_{batch}": round(held.bubble_percent, 2),
        f"step_over_max_{batch}": round(held.over_the_longer, 3),
    }


def _runner(model: LlamaModel, kind: str) -> ModelRunner:
    """One for all engines: they take turns, and none finds a prefix that another has overwritten."""
    from structgen.engine.cuda_runner import CudaRunner
    from structgen.engine.megakernel_runner import MegakernelRunner

    made = MegakernelRunner if kind == "megakernel" else CudaRunner
    pages = 2 * max(BATCHES) * (PROMPT_TOKENS + MAX_TOKENS) // PAGE_SIZE
    runner = made(model, max_batch=max(BATCHES), max_context=CONTEXT, pages=pages)
    runner.warm_up()
    return runner


def recorded_tasks(vocabulary: Vocabulary) -> Iterator[Task]:
    """The ten records of bench_schemas.py, each behind a prompt of its own."""
    rng = random.Random(0)
    for number, each in enumerate(EXTRACTIONS):
        compiled = Grammar.from_json_schema(each.schema, whitespace="compact").compile(vocabulary)
        recording = Recording(compiled, each.record)
        prompt = [rng.randrange(256) for _ in range(PROMPT_TOKENS)]
        yield Task(prompt, partial(Replay, recording), vocabulary.eos_token_ids, seed=number)
