"""CudaRunner on a GPU: the CPU's tokens, with and without graphs and our own kernels, at depth 1 and 2."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from structgen.engine import Engine, LlamaModel, ModelConfig, SamplingParams, Sequence, device_masks
from structgen.engine.weight_source import DictWeights
from tests.engine.fakes import ENDS, Lending, Quoted
from tests.engine.tiny import random_tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CONFIG = ModelConfig(
    vocab_size=1000, hidden=256, intermediate=512, layers=3, heads=4, kv_heads=2, head_dim=64, context=2048
)


@pytest.fixture(scope="module")
def weights() -> DictWeights:
    return DictWeights(random_tensors(CONFIG, seed=3, scale=0.2))


@pytest.fixture(scope="module")
def model(weights: DictWeights) -> LlamaModel:
    return LlamaModel(CONFIG, weights, "float32", "cuda")


@pytest.fixture(scope="module")
def on_cpu(weights: DictWeights) -> LlamaModel:
    return LlamaModel(CONFIG, weights, "float32")


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def submit_all(engine: Engine) -> list[Sequence]:
    """Prompts of many lengths, some alike; half of them under a grammar, of which every other lends its masks."""
    sequences = []
    for number in range(10):
        prompt = [(number * 31 + 7 * place) % 1000 for place in range(3 + 40 * number)]
        sequences.append(engine.submit(prompt, SamplingParams(max_tokens=6 + 3 * number)))
        held = Lending(CONFIG.vocab_size) if number % 2 else Quoted()
        sequences.append(engine.submit(prompt[:50], SamplingParams(max_tokens=8), held, frozenset([0])))
    return sequences


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def texts(engine: Engine) -> list[list[int]]:
    sequences = submit_all(engine)
    drain(engine)
    assert [sequence.error for sequence in sequences] == [None] * len(sequences)
    engine.close()
    return [sequence.output_ids for sequence in sequences]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"fused": False}], ids=["fused", "no graphs", "plain"])
def test_greedy_texts_equal_those_of_the_cpu(
    model: LlamaModel, on_cpu: LlamaModel, options: dict[str, bool], depth: int
) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    runner = CudaRunner(model, max_batch=6, max_context=512, **options)
    found = texts(Engine(runner, max_batch=6, depth=depth))
    expected = texts(Engine(on_cpu, max_batch=6, max_context=512))
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same >= len(expected) - 1, "a near tie may fall the other way, now and then"


@pytest.mark.parametrize("octets", [1, 256, 1 << 20])
def test_masks_come_and_go(octets: int, model: LlamaModel, on_cpu: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with room for one mask, for two, and for all that are lent."""
    from structgen.engine.cuda_runner import CudaRunner

    monkeypatch.setattr(device_masks, "RESIDENT_OCTETS", octets)
    runner = CudaRunner(model, max_batch=6, max_context=512)
    engine = Engine(runner, max_batch=6, depth=2, jump_forward=False)
    expected = texts(Engine(on_cpu, max_batch=6, max_context=512, jump_forward=False))
    for _ in range(2):
        sequences = submit_all(engine)
        drain(engine)
        same = sum(each.output_ids == other for each, other in zip(sequences, expected, strict=True))
        assert same >= len(expected) - 1, "a near tie may fall the other way, now and then"
    residency = runner._slots._masks.residency
    residency.check_integrity()
    assert any(residency._masks)
    engine.close()


@pytest.mark.parametrize("options", [{}, {"graphs": False}], ids=["fused", "no graphs"])
def test_a_stream_of_the_caller_that_is_busy_changes_nothing(
    model: LlamaModel, on_cpu: LlamaModel, options: dict[str, bool]
) -> None:
    """Buffers are made when they are first wanted: filled on that stream, they would be so after the step's inputs."""
    from structgen.engine.cuda_runner import CudaRunner

    engine = Engine(CudaRunner(model, max_batch=6, max_context=512, **options), max_batch=6)
    sequences = submit_all(engine)
    while engine.has_work:
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # cycles: 10 ms
        engine.step()
    engine.close()
    found = [sequence.output_ids for sequence in sequences]
    expected = texts(Engine(on_cpu, max_batch=6, max_context=512))
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= len(expected) - 1


def test_the_same_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(model: LlamaModel) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    def tokens(companions: int) -> list[int]:
        engine = Engine(CudaRunner(model, max_batch=8, max_context=512), max_batch=8)
        for number in range(companions):
            engine.submit([number + 1] * 9, SamplingParams(max_tokens=30, temperature=2.0, top_k=5 * number))
        params = SamplingParams(max_tokens=16, seed=3, logprobs=True, temperature=0.8, top_p=0.9, frequency_penalty=0.5)
        sequence = engine.submit([8, 8], params)
        while engine.has_work:
            engine.step()
        assert len(sequence.logprobs) == 16
        assert all(told.logprob <= 0 for told in sequence.logprobs)
        engine.close()
        return sequence.output_ids

    assert tokens(0) == tokens(3) == tokens(7)


@pytest.mark.parametrize("way", ["warm", "cold", "no graphs"])
def test_adapters_give_the_texts_of_the_cpu(model: LlamaModel, on_cpu: LlamaModel, way: str) -> None:
    """One, two and ten rows at a time (each way of the products), prompts in pieces beside decoding; loaded and
    unloaded while others run, the table growing each time.
    """
    from structgen.engine.bench_lora import random_adapter
    from structgen.engine.cuda_runner import CudaRunner

    adapters = [random_adapter(CONFIG, rank, seed, 0.5) for seed, rank in enumerate((2, 8, 16))]

    def texts_of(engine: Engine) -> list[list[int]]:
        engine.load_adapter("0", adapters[0])
        engine.load_adapter("1", adapters[1])
        made = []
        for number in range(30):
            name = [None, "0", "1"][number % 3]
            prompt = [(number * 31 + 7 * place) % 1000 for place in range(3 + 10 * (number % 7))]
            made.append(engine.submit(prompt, SamplingParams(max_tokens=6), adapter=name))
            if number < 8:
                drain(engine)
            elif number == 12:
                engine.step()
                engine.unload_adapter("1")
                engine.load_adapter("1", adapters[2])
        drain(engine)
        assert [sequence.error for sequence in made] == [None] * len(made)
        engine.close()
        return [sequence.output_ids for sequence in made]

    runner = CudaRunner(model, max_batch=10, max_context=512, max_lora_rank=16, graphs=way != "no graphs")
    if way == "warm":
        runner.warm_up(32)
    found = texts_of(Engine(runner, max_batch=10, prefill_tokens=22))
    expected = texts_of(Engine(on_cpu, max_batch=10, max_context=512, prefill_tokens=22))
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same >= len(expected) - 1, "a near tie may fall the other way, now and then"


ASKED: dict[str, dict[str, Any]] = {
    "masked logprobs": {"logprobs": "masked", "top_logprobs": 4},
    "raw logprobs": {"logprobs": "raw", "top_logprobs": 2},
    "penalties": {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.3},
    "bias": {"logit_bias": {7: 3.0, 8: -100.0}},
}


@pytest.mark.parametrize("asked", ASKED)
def test_logprobs_and_edits_are_those_of_the_cpu(model: LlamaModel, on_cpu: LlamaModel, asked: str) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    params = SamplingParams(max_tokens=10, **ASKED[asked])

    def answers(engine: Engine) -> list[Sequence]:
        made = [
            engine.submit([number, 5, 6, 7] * (number + 1), params, Quoted() if number % 2 else None, ENDS)
            for number in range(5)
        ]
        drain(engine)
        engine.close()
        return made

    found = answers(Engine(CudaRunner(model, max_batch=6, max_context=512), max_batch=6))
    expected = answers(Engine(on_cpu, max_batch=6, max_context=512))
    alike = [(a, b) for a, b in zip(found, expected, strict=True) if a.output_ids == b.output_ids]
    assert len(alike) >= len(expected) - 1, "a near tie may fall the other way, now and then"
    for one, other in alike:
        assert len(one.logprobs) == len(other.logprobs) == (len(one.output_ids) if "logprobs" in asked else 0)
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-3)


def test_the_answers_to_one_prompt_are_those_of_their_streams_alone(model: LlamaModel) -> None:
    """Thirteen of them, more than run at a time and no power of two; they share the prompt's pages."""
    from structgen.engine.cuda_runner import CudaRunner

    def answers(streams: Iterable[int]) -> list[list[int]]:
        engine = Engine(CudaRunner(model, max_batch=12, max_context=512), max_batch=12, share_prefixes=False)
        made = [
            engine.submit([9, 8, 7] * 30, SamplingParams(max_tokens=12, temperature=1.0, seed=5, stream=stream))
            for stream in streams
        ]
        drain(engine)
        engine.close()
        return [each.output_ids for each in made]

    together = answers(range(13))
    assert len({tuple(text) for text in together}) > 1
    assert together[:1] == answers([0])
    assert together[11:] == answers([11, 12])


def test_after_the_warm_up_nothing_is_captured_while_serving(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structgen.engine.cuda_graphs import GraphMaker
    from structgen.engine.cuda_runner import CudaRunner

    captured = []
    capture = GraphMaker.capture

    def spy(maker: GraphMaker, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        captured.append(work)
        return capture(maker, work)

    monkeypatch.setattr(GraphMaker, "capture", spy)
    runner = CudaRunner(model, max_batch=6, max_context=512)
    before = torch.cuda.memory_reserved()
    runner.warm_up(64)
    assert torch.cuda.memory_reserved() - before < 256 << 20
    count = len(captured)
    assert count >= 7
    engine = Engine(runner, max_batch=6, prefill_tokens=58)
    submit_all(engine)
    for options in ({"temperature": 0.7}, {"temperature": 0.7, "top_k": 9}, {"logprobs": True}):
        for number in range(4):
            engine.submit([3, number], SamplingParams(max_tokens=8, **options))
    drain(engine)
    assert engine.metrics.failed == 0
    assert len(captured) == count
    engine.close()


def test_a_step_of_more_tokens_than_the_largest_graph(model: LlamaModel, on_cpu: LlamaModel) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    def answers(engine: Engine) -> list[list[int]]:
        made = [
            engine.submit([(number * 7 + place) % 1000 for place in range(450)], SamplingParams(max_tokens=5))
            for number in range(3)
        ]
        drain(engine)
        assert engine.metrics.failed == 0
        engine.close()
        return [each.output_ids for each in made]

    options: dict[str, Any] = {"max_batch": 4, "prefill_tokens": 1350, "share_prefixes": False}
    found = answers(Engine(CudaRunner(model, max_batch=4, max_context=512), **options))
    expected = answers(Engine(on_cpu, max_context=512, **options))
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 2, "a near tie may fall the other way"


HUNG = """
import logging, sys, torch
from structgen.engine import Engine, LlamaModel, SamplingParams, cuda_runner
from structgen.engine.made_up_weights import MadeUpWeights
from structgen.engine.warm_up import TINY
logging.basicConfig(stream=sys.stderr)
cuda_runner.REST_SECONDS = 0.5
runner = cuda_runner.CudaRunner(LlamaModel(TINY, MadeUpWeights(TINY, torch.ones), "bfloat16", "cuda"), max_batch=1)
engine = Engine(runner, max_batch=1)
engine.submit([1], SamplingParams(max_tokens=4))
while engine.has_work:
    engine.step()
with torch.cuda.stream(runner._compute):
    torch.cuda._sleep(60 * 10**9)  # clock ticks: half a minute and more
engine.close()
"""


def test_a_gpu_that_hangs_holds_up_neither_closing_nor_the_end_of_the_interpreter() -> None:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=60, check=False)
    assert "the device hangs" in done.stderr, done.stderr
    assert time.perf_counter() - begin < 25
    assert done.returncode == 0


def test_a_sequence_with_nan_in_its_pages_ends_alone(model: LlamaModel) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    runner = CudaRunner(model, max_batch=4, max_context=256)
    engine = Engine(runner, max_batch=4, share_prefixes=False)
    bad, good = (engine.submit([word] * 20, SamplingParams(max_tokens=20)) for word in (3, 4))
    for _ in range(4):
        engine.step()
    torch.cuda.synchronize()
    for layer in runner.cache.layers:
        layer[bad.pages] = torch.nan
    drain(engine)
    assert [each.finish_reason for each in (bad, good)] == ["error", "length"]
    again = engine.submit([4] * 20, SamplingParams(max_tokens=20))
    drain(engine)
    assert again.output_ids == good.output_ids
    engine.close()


def test_the_trace_sees_the_device(model: LlamaModel) -> None:
    from structgen.engine.cuda_runner import CudaRunner

    engine = Engine(CudaRunner(model, max_batch=4, max_context=256), max_batch=4)
    engine.trace.record = True
    engine.submit([3] * 20, SamplingParams(max_tokens=30))
    while engine.has_work:
        engine.step()
    totals = engine.trace.totals
    assert totals["device.forward"] > 0
    assert totals["device.sample"] > 0
    device = sorted((span.begin, span.end) for span in engine.trace.spans if span.track == "device")
    assert all(end <= begin + 1e-4 for (_, end), (begin, _) in pairwise(device))
    engine.close()
