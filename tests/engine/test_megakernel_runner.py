"""MegakernelRunner on a Hopper GPU: the texts of CudaRunner, whatever rows ask for and however steps are mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgen.engine import Engine, LlamaModel, ModelConfig, ModelRunner, SamplingParams, Sequence
from structgen.engine.weight_source import DictWeights
from tests.engine.fakes import ENDS, Forcing, Quoted, is_quoted
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


@pytest.mark.parametrize(("count", "depth"), [(1, 2), (3, 2), (8, 2), (12, 2), (3, 1)])
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


def test_the_first_depth_gives_what_the_second_gives(model: LlamaModel) -> None:
    """Eight rows at a time, all of them to the end: both depths run the same kernel on the same rows."""
    found, expected = (texts(make("kernel", model), {"temperature": 0.7}, 8, depth) for depth in (2, 1))
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 6, "rows leave at other steps: near ties"


def test_forced_tokens_run_as_rows_that_see_each_other(model: LlamaModel) -> None:
    """Chunks of two to eight tokens in one step of the kernel, beside other rows; PyTorch's texts."""

    def run(kind: str) -> list[list[int]]:
        engine = Engine(make(kind, model), max_batch=4)
        held = [
            engine.submit([number + 1] * (number + 2), SamplingParams(max_tokens=60), Forcing(number), ENDS)
            for number in range(3)
        ]
        drain(engine)
        assert [each.error for each in held] == [None] * 3
        assert engine.metrics.tokens_forced > 60
        engine.close()
        return [each.output_ids for each in held]

    found, expected = run("kernel"), run("plain")
    shared = sum(sum(1 for _ in _common(a, b)) for a, b in zip(found, expected, strict=True))
    assert shared >= 0.6 * sum(map(len, expected))


def test_adapters_are_pytorchs_beside_the_kernel(model: LlamaModel) -> None:
    """Steps with an adapted row and steps without alternate over the same pages."""
    from structgen.engine.bench_lora import random_adapter

    adapters = [random_adapter(CONFIG, rank, rank, 0.3) for rank in (4, 16)]

    def run(kind: str) -> list[list[int]]:
        runner = make(kind, model)
        engine = Engine(runner, max_batch=12)
        made = []
        for number in range(12):
            if number in (2, 6):
                engine.load_adapter(str(number // 6), adapters[number // 6])
            name = None if number < 2 or number % 3 == 0 else str(min(number // 6, 1))
            made.append(engine.submit([number, 4, 9] * 3, SamplingParams(max_tokens=4 + 3 * number), adapter=name))
            for _ in range(3):
                engine.step()
        drain(engine)
        assert [each.error for each in made] == [None] * 12
        engine.close()
        return [each.output_ids for each in made]

    found, expected = run("kernel"), run("plain")
    shared = sum(sum(1 for _ in _common(a, b)) for a, b in zip(found, expected, strict=True))
    assert shared >= 0.6 * sum(map(len, expected))


@pytest.mark.parametrize("kind", ["tokens", "logprobs", "cuts", "nothing"])
def test_a_launch_that_gives_up_is_noticed(model: LlamaModel, kind: str) -> None:
    """The error word is set by hand, as a program that waited too long sets it: all others then go on at once."""
    params: dict[str, dict[str, Any]] = {"logprobs": {"logprobs": True}, "cuts": {"temperature": 0.5, "top_k": 3}}
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5] if kind == "nothing" else [3]
    runners = [make("kernel", model) for _ in range(2)]
    found = []
    for runner in runners:
        engine = Engine(runner, max_batch=1, prefill_tokens=3, depth=2)
        sequence = engine.submit(prompt, SamplingParams(max_tokens=9, seed=1, **params.get(kind, {})))
        engine.step()
        if runner is runners[0]:
            torch.cuda.synchronize()
            for decoder in runner._decoders.values():  # type: ignore[attr-defined]
                decoder.error.fill_(1)
            torch.cuda.synchronize()
        drain(engine)
        found.append((sequence.output_ids, sequence.error, engine.metrics.rescued_steps > 0))
        engine.close()
    assert found == [(found[1][0], None, True), (found[1][0], None, False)]


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
