"""CudaRunner on a GPU: the CPU's tokens, with and without graphs and our own kernels, at depth 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from structgen.engine import Engine, LlamaModel, ModelConfig, SamplingParams, Sequence
from structgen.engine.weight_source import DictWeights
from tests.engine.fakes import Quoted
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
    """Prompts of many lengths, some alike; half of them under a grammar, one of them sampled."""
    sequences = []
    for number in range(10):
        prompt = [(number * 31 + 7 * place) % 1000 for place in range(3 + 40 * number)]
        sequences.append(engine.submit(prompt, SamplingParams(max_tokens=6 + 3 * number)))
        held = Quoted()
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


@pytest.mark.parametrize("graphs", [True, False])
def test_adapters_give_the_texts_of_the_cpu(model: LlamaModel, on_cpu: LlamaModel, graphs: bool) -> None:
    """One, two and ten rows at a time (each way of the products), loaded and unloaded while others run."""
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

    found = texts_of(Engine(CudaRunner(model, max_batch=10, max_context=512, max_lora_rank=16, graphs=graphs)))
    expected = texts_of(Engine(on_cpu, max_context=512))
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same >= len(expected) - 1, "a near tie may fall the other way, now and then"


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
