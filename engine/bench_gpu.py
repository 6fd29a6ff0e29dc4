"""The GPU figures: Llama-3.2-1B's shapes with random weights, which write recorded records (bench_replay.py).

At batch 1, 8 and 64: what a constraint costs, what jump-forward saves, what a second step in flight gains, how long
the GPU is idle inside decoding, and whether a step takes max(GPU, CPU).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from structgen.engine.bench_replay import Recording, Replay
from structgen.engine.bench_schemas import EXTRACTIONS
from structgen.engine.bench_structured import Contest, Group, Task, Writer, options_of
from structgen.engine.bench_vocabulary import read_vocabulary
from structgen.engine.engine import Engine
from structgen.engine.errors import EngineError
from structgen.engine.llama import LlamaModel
from structgen.engine.model_config import ModelConfig
from structgen.engine.rope_scaling import RopeScaling
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


class RandomWeights:
    """A WeightSource that makes up each tensor when it is asked for: matrices of deviation 0.02, norms of one."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        self._config, self._device = config, device
        self._generator = torch.Generator(device).manual_seed(0)

    def get(self, name: str) -> Tensor:
        config = self._config
        wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (config.vocab_size, config.hidden),
            "q_proj": (wide, config.hidden),
            "k_proj": (narrow, config.hidden),
            "v_proj": (narrow, config.hidden),
            "o_proj": (config.hidden, wide),
            "gate_proj": (config.intermediate, config.hidden),
            "up_proj": (config.intermediate, config.hidden),
            "down_proj": (config.hidden, config.intermediate),
        }
        shape = shapes.get(name.split(".")[-2])
        if shape is None:
            return torch.ones(config.hidden, device=self._device)
        return torch.randn(shape, generator=self._generator, device=self._device).mul_(0.02)

    def has(self, name: str) -> bool:
        return name not in ("rope_factors", "lm_head.weight")


def bench_gpu(options: argparse.Namespace) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise EngineError("PyTorch sees no GPU", hint="leave out --device cuda")
    vocabulary = read_vocabulary(options.tokenizer)
    tasks = list(_tasks(vocabulary))
    writers = {
        "constrained": Writer(_engine(options, depth=2, jump_forward=False)),
        "jump-forward": Writer(_engine(options, depth=2, jump_forward=True)),
        "depth 1": Writer(_engine(options, depth=1, jump_forward=False)),
    }
    writers["free"] = Writer(writers["constrained"].engine, like=writers["constrained"])
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "runner": options.runner}
    for batch in BATCHES:
        many = (tasks * batch)[: max(batch, len(tasks))]
        groups: list[Group] = [many[first : first + batch] for first in range(0, len(many) - batch + 1, batch)]
        figures |= _at_batch(batch, writers, groups, rounds=3 if options.quick else 9)
    return figures


def _at_batch(batch: int, writers: dict[str, Writer], groups: list[Group], rounds: int) -> dict[str, Any]:
    contest = Contest.hold(writers, groups, rounds)
    print(f"\nbatch {batch}, {sum(contest.weights)} tokens:")
    for name in writers:
        seconds = contest.seconds_per_token(name)
        step = seconds * batch * 1e6
        print(f"{name:<16}{1 / seconds:>10.0f} tokens/s {step:>8.0f} us a step{contest.gain(name, 'free'):>8.3f}")
    return {
        f"us_per_step_{batch}": round(contest.seconds_per_token("free") * batch * 1e6, 1),
        f"constrained_ratio_{batch}": round(contest.gain("constrained", "free"), 3),
        f"jump_forward_ratio_{batch}": round(contest.total_gain("jump-forward", "free"), 2),
        f"depth2_gain_{batch}": round(contest.gain("constrained", "depth 1"), 3),
    }


def _tasks(vocabulary: Vocabulary) -> Iterator[Task]:
    rng = random.Random(0)
    for number, each in enumerate(EXTRACTIONS):
        compiled = Grammar.from_json_schema(each.schema, whitespace="compact").compile(vocabulary)
        recording = Recording(compiled, each.record)
        prompt = [rng.randrange(256) for _ in range(PROMPT_TOKENS)]
        yield Task(prompt, partial(Replay, recording), vocabulary.eos_token_ids, seed=number)


def _engine(options: argparse.Namespace, **wanted: Any) -> Engine:
    model = LlamaModel(LLAMA_1B, RandomWeights(LLAMA_1B, options.device), "bfloat16")
    return Engine(model, max_batch=max(BATCHES), max_context=CONTEXT, **options_of(**wanted))
