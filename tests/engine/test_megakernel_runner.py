"""MegakernelRunner on a Hopper GPU: the texts of CudaRunner, whatever rows ask for and however steps are mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgen.engine import Engine, LlamaModel, ModelConfig, ModelRunner, SamplingParams, Sequence
from structgen.engine.weight_source import DictWeights
from tests.engine.fakes import ENDS, Quoted, is_quoted
from tests.engine.tiny import random_tensors

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)

CONFIG = ModelConfig(
    vocab_size=1000, hidden=256, intermediate=512, layers=3, heads=4, kv_heads=2, head_dim=64, context=2048
)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return LlamaModel(CONFIG, DictWeights(random_tensors(CONFIG, seed=5, scale=0.2)), "bfloat16", "cuda")


def make(kind: str, model: LlamaModel, **options: Any) -> ModelRunner:
    from structgen.engine.cuda_runner import CudaRunner
    from structgen.engine.megakernel_runner import MegakernelRunner

    return (MegakernelRunner if kind == "kernel" else CudaRunner)(model, max_batch=12, max_context=512, **options)


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def texts(runner: ModelRunner, params: dict[str, Any], count: int, depth: int) -> list[list[int]]:
    engine = Engine(runner, max_batch=12, depth=depth)
    sequences: list[Sequence] = []
    for number in range(count):
        prompt = [(number * 31 + 7 * place) % 1000 for place in range(3 + 20 * number)]
        chosen = SamplingParams(max_tokens=12 + 2 * number, seed=number, **params)
        held = number % 2 == 1
        sequences.append(engine.submit(prompt, chosen, Quoted() if held else None, ENDS if held else frozenset()))
    drain(engine)
    assert [sequence.error for sequence in sequences] == [None] * count
    assert all(is_quoted(sequence.output_ids) for sequence in sequences[1::2])
    return [sequence.output_ids for sequence in sequences]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("count", [1, 3, 8, 12])
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.7}, {"temperature": 0.9, "top_k": 20, "top_p": 0.9}, {"frequency_penalty": 0.5}],
    ids=["greedy", "gumbel", "cuts", "penalty"],
)
def test_texts_equal_those_of_pytorch(model: LlamaModel, params: dict[str, Any], count: int, depth: int) -> None:
    """Both compute in bfloat16 and round differently, so that a near tie falls the other way now and then."""
    found = texts(make("kernel", model), params, count, depth)
    expected = texts(make("plain", model), params, count, depth)
    shared = sum(sum(1 for _ in _common(a, b)) for a, b in zip(found, expected, strict=True))
    assert shared >= 0.6 * sum(map(len, expected))


def _common(one: list[int], other: list[int]) -> list[int]:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:index]
    return one


def test_graphs_and_single_launches_give_the_same(model: LlamaModel) -> None:
    assert texts(make("kernel", model), {}, 5, 2) == texts(make("kernel", model, graphs=False), {}, 5, 2)


def test_logprobs_and_faults(model: LlamaModel) -> None:
    runner = make("kernel", model)
    engine = Engine(runner, max_batch=4, share_prefixes=False)
    told = engine.submit([3] * 20, SamplingParams(max_tokens=10, logprobs=True, top_logprobs=3))
    empty = engine.submit([5] * 20, SamplingParams(max_tokens=9), Quoted(fault="empty"), ENDS)
    bad = engine.submit([4] * 20, SamplingParams(max_tokens=30))
    for _ in range(14):
        engine.step()
    torch.cuda.synchronize()
    for layer in runner.cache.layers:  # type: ignore[attr-defined]
        layer[bad.pages] = torch.nan
    drain(engine)
    assert [each.token_id for each in told.logprobs] == told.output_ids
    assert ("no token" in str(empty.error), "finite" in str(bad.error)) == (True, True)
