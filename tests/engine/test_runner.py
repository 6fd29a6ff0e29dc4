"""Engine and TorchRunner on a tiny random model: batching, chunks, pages and shared prefixes change no token."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from structgen.engine import Engine, LlamaModel, SamplingParams
from tests.engine.tiny import CONFIG, random_weights


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield LlamaModel(CONFIG, random_weights(), "float32")
    torch.set_num_threads(before)


def greedy(model: LlamaModel, prompt: list[int], count: int) -> list[int]:
    """The slow twin: the whole text again for every token, no cache shared with anything."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model.logits(text)[-1].argmax()))
    return text[len(prompt) :]


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def test_a_batch_with_long_and_shared_prompts_gives_each_its_greedy_text(model: LlamaModel) -> None:
    rng = random.Random(4)
    common = [rng.randrange(90) for _ in range(290)]  # longer than one prefill chunk
    prompts = [common, [1], [*common[:100], 5, 6], [rng.randrange(90) for _ in range(33)], common, common[:64]]
    engine = Engine(model, max_batch=3)
    sequences = []
    for number, prompt in enumerate(prompts):
        sequences.append((engine.submit(prompt, SamplingParams(max_tokens=6 + number)), prompt))
        engine.step()
    drain(engine)
    for sequence, prompt in sequences:
        assert sequence.output_ids == greedy(model, prompt, len(sequence.output_ids))
        assert sequence.finish_reason == "length"


def test_what_a_failed_sequence_left_in_its_pages_reaches_nobody(model: LlamaModel) -> None:
    """Two sequences fail with NaN in all their pages; rows of different lengths then get the same pages."""
    engine = Engine(model, max_batch=2, max_context=64, share_prefixes=False)
    failed = [engine.submit([3] * 20, SamplingParams(max_tokens=8)) for _ in range(2)]
    engine.step()
    cache = engine.runner._cache  # type: ignore[attr-defined]
    for layer in cache.layers:
        layer[[page for sequence in failed for page in sequence.pages]] = torch.nan
    drain(engine)
    assert [sequence.finish_reason for sequence in failed] == ["error", "error"]
    prompts = [[7, 8, 9], [4] * 19]
    sequences = [engine.submit(prompt, SamplingParams(max_tokens=8)) for prompt in prompts]
    drain(engine)
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.output_ids == greedy(model, prompt, 8)
