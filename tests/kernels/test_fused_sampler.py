"""FusedSampler against Sampler: the same greedy tokens, faults and logprobs, and drawn tokens among the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from structgen.engine import SamplingParams
from structgen.engine.penalties import TokenHistory
from structgen.engine.sampled import Pick
from structgen.engine.sampler import RowSampling, Sampler
from tests.engine import sampling_twin as twin

VOCAB = 70
DRAWS = 16  # the interpreter takes 0.1 s for one


@pytest.fixture(scope="module")
def fused(device: str) -> Sampler:
    from structgen.engine.fused_sampler import FusedSampler

    return FusedSampler(VOCAB, device, max_batch=DRAWS)


def logits_of(rows: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def row_of(params: SamplingParams, uniform: float = 0.5) -> RowSampling:
    history = TokenHistory(params, [1, 2]) if params.edits_logits else None
    if history is not None:
        history.append(2)
    return RowSampling(params, uniform, history)


def sample(sampler: Sampler, logits: torch.Tensor, rows: list[RowSampling], every: int = 1) -> list[Pick]:
    """Under a mask of every `every`-th token."""
    bits = np.zeros(96, dtype=np.uint8)
    bits[:VOCAB:every] = 1
    words = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())
    device = sampler.device
    masks = words.repeat(len(rows), 1).to(device)
    return sampler.sample(logits.clone().to(device), masks, [True] * len(rows), rows).read()


@pytest.mark.parametrize("every", [1, 3, 100])
def test_greedy_rows_and_their_logprobs_are_the_samplers(fused: Sampler, every: int) -> None:
    rows = [
        row_of(SamplingParams(**options, logprobs=kind, top_logprobs=3))
        for options in ({}, {"frequency_penalty": 1.5, "logit_bias": {3: 9.0}}, {"temperature": 1.0, "top_k": 1})
        for kind in ("masked", "raw")
    ]
    logits = logits_of(len(rows))
    for one, other in zip(sample(fused, logits, rows, every), sample(Sampler(VOCAB), logits, rows, every), strict=True):
        assert (one.token, one.fault) == (other.token, other.fault)
        assert one.logprob is not None
        assert other.logprob is not None
        assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-5)
        assert [token for token, _ in one.logprob.top] == [token for token, _ in other.logprob.top]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 4},
        {"temperature": 1.0, "top_k": 1 << 40},
        {"temperature": 2.0, "top_p": 0.6},
        {"temperature": 2.0, "top_p": 5e-324},
        {"temperature": 3.0, "min_p": 0.2},
        {"temperature": 3.0, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
        {"temperature": 3.0, "top_p": 0.8, "min_p": 0.3},
        {"temperature": 5e-324},
        {"temperature": 1e300},
    ],
    ids=str,
)
def test_drawn_tokens_are_among_those_that_the_cuts_leave(fused: Sampler, options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    logits = logits_of(1, seed=3).repeat(DRAWS, 1)
    uniforms = np.random.default_rng(5).random(DRAWS)
    picks = sample(fused, logits, [row_of(params, uniform) for uniform in uniforms], every=2)
    assert not any(pick.fault for pick in picks)
    left = twin.masked(logits[0].numpy().astype(np.float64), range(0, VOCAB, 2))
    tempered = SamplingParams(**{**options, "temperature": min(max(params.temperature, 1e-3), 1e6)})
    kept = np.flatnonzero(twin.truncated(left, tempered))
    drawn = {pick.token for pick in picks}
    assert drawn <= set(kept.tolist())
    assert len(drawn) > 1 or len(kept) == 1


def test_faults_are_told_by_row(fused: Sampler) -> None:
    rows = [row_of(SamplingParams(temperature=temperature)) for temperature in (0.0, 1.0) for _ in range(3)]
    logits = logits_of(6)
    logits[::3, 5] = torch.nan
    logits[1::3, 0] = torch.inf
    faults = [pick.fault for pick in sample(fused, logits, rows)]
    assert faults == [pick.fault for pick in sample(Sampler(VOCAB), logits, rows)]
    assert [fault is None for fault in faults] == [False, False, True] * 2


def test_a_row_does_not_depend_on_its_company(fused: Sampler) -> None:
    cases: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"presence_penalty": 1.0}, {}]
    rows = [row_of(SamplingParams(temperature=1.0, **options), index / 6) for index, options in enumerate(cases)]
    logits = logits_of(6, seed=8)
    together = sample(fused, logits, rows)
    for index in range(6):
        assert sample(fused, logits[index : index + 1], rows[index : index + 1]) == [together[index]]
