"""Masked sampling: the mask is obeyed, streams do not depend on the batch, faults are told a row at a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgen.engine import SamplingParams
from structgen.engine.sampler import Sampler, draw

VOCAB = 70  # not a multiple of 32, nor of 8


def mask_of(*allowed: int) -> Tensor:
    words = np.zeros(-(-VOCAB // 32), dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(words.view(np.int32))


def sample_one(logits: Tensor, mask: Tensor | None, uniform: float = 0.5, **params: Any) -> int | str:
    sampler = Sampler(VOCAB)
    rows = (mask if mask is not None else mask_of())[None]
    return sampler.sample(logits[None].clone(), rows, [mask is not None], [SamplingParams(**params)], [uniform])[0]


@pytest.mark.parametrize("token", range(VOCAB))
def test_every_bit_of_the_mask_means_its_token(token: int) -> None:
    assert sample_one(torch.zeros(VOCAB), mask_of(token)) == token
    assert sample_one(torch.zeros(VOCAB), mask_of(token), temperature=1.0) == token


def test_greedy_takes_the_best_allowed_token() -> None:
    logits = torch.linspace(0, 1, VOCAB)
    assert sample_one(logits, None) == VOCAB - 1
    assert sample_one(logits, mask_of(3, 40, 64)) == 64


def test_sampling_obeys_the_mask_at_any_temperature_and_uniform() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 5
    allowed = {0, 31, 32, 33, 69}
    for temperature in (1e-30, 0.1, 1.0, 100.0):
        for uniform in (0.0, 0.3, 0.999, 1 - 2**-53):
            for top_p in (1.0, 0.9, 1e-9):
                pick = sample_one(logits, mask_of(*allowed), uniform, temperature=temperature, top_p=top_p)
                assert pick in allowed


def test_a_picked_token_is_as_frequent_as_it_is_likely() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = torch.softmax(logits / 0.7, dim=0)
    uniforms = (np.arange(4000) + 0.5) / 4000
    counts = Counter(draw(logits, SamplingParams(temperature=0.7), uniform) for uniform in uniforms)
    for token in range(4):
        assert counts[token] / 4000 == pytest.approx(float(expected[token]), abs=0.001)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    picked = {draw(logits, SamplingParams(temperature=1.0, top_p=0.65), u) for u in np.linspace(0, 0.9999, 200)}
    assert picked == {1, 3}
    picked = {draw(logits, SamplingParams(temperature=1.0, top_p=0.75), u) for u in np.linspace(0, 0.9999, 200)}
    assert picked == {1, 2, 3}


def test_top_p_over_a_flat_distribution_looks_past_its_first_guess() -> None:
    logits = torch.zeros(4096)
    picked = {draw(logits, SamplingParams(temperature=1.0, top_p=0.5), u) for u in np.linspace(0, 0.99999, 3000)}
    assert len(picked) > 1500


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(8, VOCAB, generator=generator)
    masks = torch.stack([mask_of(*range(row, VOCAB, 3)) for row in range(8)])
    params = [SamplingParams(temperature=1.0, top_p=0.9 if row % 2 else 1.0) for row in range(8)]
    uniforms = [row / 8 for row in range(8)]
    has_mask = [row % 3 != 0 for row in range(8)]
    together = Sampler(VOCAB).sample(logits.clone(), masks, has_mask, params, uniforms)
    alone = [
        Sampler(VOCAB).sample(
            logits[row : row + 1].clone(), masks[row : row + 1], [has_mask[row]], [params[row]], [uniforms[row]]
        )[0]
        for row in range(8)
    ]
    assert together == alone


@pytest.mark.parametrize(
    ("bad", "words"), [(torch.nan, "not finite"), (torch.inf, "not finite")], ids=["nan", "infinity"]
)
def test_logits_that_are_not_finite_are_told_even_under_the_mask(bad: float, words: str) -> None:
    logits = torch.zeros(VOCAB)
    logits[5] = bad
    for mask in (None, mask_of(7)):
        assert words in str(sample_one(logits, mask))
        assert words in str(sample_one(logits, mask, temperature=1.0))


def test_an_empty_mask_is_told() -> None:
    assert "allows no token" in str(sample_one(torch.zeros(VOCAB), mask_of()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("seed", 1.5),
        ("stop_token_ids", frozenset(["x"])),
    ],
)
def test_bad_parameters_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingParams(**{field: value})
