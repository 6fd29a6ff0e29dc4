"""Masked sampling: each parameter against its slow twin, rows that do not depend on the batch, faults told by row."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgen.engine import SamplingParams
from structgen.engine.penalties import TokenHistory
from structgen.engine.sampled import Pick
from structgen.engine.sampler import RowSampling, Sampler
from tests.engine import sampling_twin as twin

VOCAB = 70  # not a multiple of 32, nor of 8
BATCHED = pytest.mark.parametrize("batched", [False, True], ids=["row by row", "batched"])


def mask_of(allowed: Iterable[int], size: int = VOCAB) -> Tensor:
    words = np.zeros(-(-size // 32), dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(words.view(np.int32))


def row_of(
    params: SamplingParams, uniform: float = 0.5, prompt: Iterable[int] = (), output: Iterable[int] = ()
) -> RowSampling:
    history = TokenHistory(params, prompt) if params.edits_logits else None
    for token in output:
        assert history is not None
        history.append(token)
    return RowSampling(params, uniform, history)


def pick_one(
    logits: Tensor, allowed: Iterable[int] | None, row: RowSampling | None = None, *, batched: bool = False
) -> Pick:
    size = len(logits)
    sampler = Sampler(size, batched=batched)
    mask = mask_of(allowed or (), size)[None]
    (pick,) = sampler.sample(
        logits[None].clone(), mask, [allowed is not None], [row or row_of(SamplingParams())]
    ).read()
    return pick


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


# -- the mask ----------------------------------------------------


@BATCHED
@pytest.mark.parametrize("token", range(VOCAB))
def test_every_bit_of_the_mask_means_its_token(token: int, batched: bool) -> None:
    for params in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5)):
        assert pick_one(torch.zeros(VOCAB), [token], row_of(params), batched=batched) == (token, None, None)


def test_greedy_takes_the_best_allowed_token() -> None:
    logits = torch.linspace(0, 1, VOCAB)
    assert pick_one(logits, None).token == VOCAB - 1
    assert pick_one(logits, [3, 40, 64]).token == 64


def test_sampling_obeys_the_mask_at_any_temperature_and_uniform() -> None:
    logits, allowed = randn(VOCAB), {0, 31, 32, 33, 69}
    for temperature in (5e-324, 1e-30, 0.1, 1.0, 100.0, 1e300):
        for uniform in (0.0, 0.3, 0.999, 1 - 2**-53):
            for options in ({}, {"top_p": 0.9}, {"top_p": 1e-9}, {"top_k": 50}, {"min_p": 0.5}, {"min_p": 1.0}):
                row = row_of(SamplingParams(temperature=temperature, **options), uniform)
                assert pick_one(logits, allowed, row).token in allowed


# -- each parameter against the twin ----------------------------------------------------

CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 4.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 12, "top_p": 0.7, "min_p": 0.05},
    {"temperature": 3.0, "top_p": 0.8, "min_p": 0.3},
    {"temperature": 3.0, "top_k": 30, "min_p": 0.2},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7, "temperature": 1.0},
    {"presence_penalty": 1.5, "temperature": 1.0},
    {"frequency_penalty": -1.5},
    {"frequency_penalty": 0.8, "presence_penalty": -0.4, "repetition_penalty": 1.2, "temperature": 0.8, "top_p": 0.9},
    {"logit_bias": {0: 8.0, 7: -100.0, 69: 5.5}},
    {"logit_bias": {3: 4.0, 4: 4.0, 5: -9.0}, "repetition_penalty": 1.5, "temperature": 1.0, "top_k": 20},
]


@BATCHED
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("with_mask", [False, True], ids=["free", "masked"])
def test_each_parameter_equals_the_twin(options: dict[str, Any], with_mask: bool, batched: bool) -> None:
    """The same token for the same uniform number, for many of them, and every logprob."""
    rng = random.Random(str(options))
    for seed in range(6):
        logits = randn(VOCAB, seed=seed)
        allowed = rng.sample(range(VOCAB), 30) if with_mask else None
        prompt, output = rng.choices(range(VOCAB), k=12), rng.choices(range(VOCAB), k=15)
        params = SamplingParams(**options, logprobs=True, top_logprobs=4)
        if not params.edits_logits:
            prompt, output = [], []
        left = twin.masked(twin.edited(logits.numpy(), params, prompt, output), allowed)
        expected = twin.logprobs(left)
        for uniform in [rng.random() for _ in range(20)]:
            pick = pick_one(logits, allowed, row_of(params, uniform, prompt, output), batched=batched)
            assert pick.fault is None
            assert pick.token == twin.drawn(left, params, uniform)
            assert pick.logprob is not None
            assert pick.logprob.token_id == pick.token
            assert pick.logprob.logprob == pytest.approx(expected[pick.token], abs=2e-5)
            best = sorted(range(VOCAB), key=lambda token: -left[token])[:4]
            assert [token for token, _ in pick.logprob.top] == best
            assert [value for _, value in pick.logprob.top] == pytest.approx(expected[best].tolist(), abs=2e-5)


@pytest.mark.parametrize("options", [case for case in CASES if case.get("temperature")], ids=str)
def test_a_token_is_as_frequent_as_it_is_likely(options: dict[str, Any]) -> None:
    logits, count = randn(12, seed=3) / 2, 2000
    params = SamplingParams(**{**options, "logit_bias": {}})
    row = row_of(params, 0.0, [1, 2], [2, 3, 3] if params.edits_logits else [])
    rows = [row._replace(uniform=(index + 0.5) / count) for index in range(count)]
    sampler = Sampler(12, batched=True)
    picks = sampler.sample(logits.repeat(count, 1), torch.zeros(count, 1).int(), [False] * count, rows).tokens
    found = np.bincount(picks.numpy(), minlength=12) / count
    left = twin.edited(logits.numpy(), params, [1, 2], [2, 3, 3] if params.edits_logits else [])
    expected = np.eye(12)[np.argmax(left)] if params.greedy else twin.truncated(left, params)
    assert found == pytest.approx(expected, abs=1.5 / count)


def test_a_wide_nucleus_is_found_past_the_first_guess() -> None:
    for size, top_p in ((5000, 0.5), (5000, 0.99), (300, 0.95)):
        logits = randn(size, seed=5) / 10
        params = SamplingParams(temperature=1.0, top_p=top_p)
        for uniform in np.linspace(0, 0.9999, 40):
            row = row_of(params, float(uniform))
            pick = pick_one(logits, None, row)
            assert pick == pick_one(logits, None, row, batched=True)
            probabilities = np.sort(twin.softmax(logits.numpy().astype(np.float64)))[::-1]
            size_of_nucleus = int(((probabilities.cumsum() - probabilities) < top_p).sum())
            rank = int((logits > logits[pick.token]).sum())
            assert abs(rank - size_of_nucleus * uniform) < size_of_nucleus * 0.2 + 2
            assert rank < size_of_nucleus + 1


@BATCHED
def test_of_equal_tokens_the_lower_ids_are_kept(batched: bool) -> None:
    logits = torch.zeros(VOCAB)
    logits[60] = 1
    for options, kept in (({"top_k": 4}, {60, 0, 1, 2}), ({"top_k": 1}, {60}), ({"top_p": 0.05}, {60, 0})):
        params = SamplingParams(temperature=1.0, **options)
        rows = [row_of(params, uniform) for uniform in np.linspace(0, 0.9999, 100)]
        sampler = Sampler(VOCAB, batched=batched)
        picks = sampler.sample(logits.repeat(100, 1), mask_of([]).repeat(100, 1), [False] * 100, rows).read()
        assert {pick.token for pick in picks} == kept


def test_raw_logprobs_are_the_models_own() -> None:
    logits = randn(VOCAB)
    params = SamplingParams(
        temperature=0.5, logit_bias={3: 50.0}, presence_penalty=1.0, logprobs="raw", top_logprobs=20
    )
    pick = pick_one(logits, [3, 4, 5], row_of(params, 0.5, [], [4]))
    expected = torch.log_softmax(logits.double(), 0)
    assert pick.token == 3
    assert pick.logprob is not None
    assert pick.logprob.logprob == pytest.approx(float(expected[3]), abs=2e-5)
    assert [token for token, _ in pick.logprob.top] == expected.argsort(descending=True)[:20].tolist()


def test_tokens_that_the_mask_forbids_are_not_among_the_likeliest() -> None:
    params = SamplingParams(logprobs="masked", top_logprobs=5)
    pick = pick_one(randn(VOCAB), [3, 4], row_of(params))
    assert pick.logprob is not None
    assert {token for token, _ in pick.logprob.top} == {3, 4}
    assert sum(np.exp(value) for _, value in pick.logprob.top) == pytest.approx(1)
    alone = pick_one(randn(VOCAB), [3], row_of(params)).logprob
    assert alone is not None
    assert alone == alone.certain(3, top=5)


# -- batches ----------------------------------------------------


@pytest.mark.parametrize("size", [VOCAB, 4099], ids=["small", "large"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_the_rest_of_the_batch(size: int, threads: int) -> None:
    """Tokens and the bits of logprobs: alone, in batches of any company, row by row and batched."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rng = random.Random(7)
    rows, masks = [], []
    for index in range(24):
        kind: Any = rng.choice([None, "masked", "raw"])
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.5]),
            top_k=rng.choice([0, 0, 9]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.02]),
            frequency_penalty=rng.choice([0.0, 0.7]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            logprobs=kind,
            top_logprobs=rng.randrange(6) if kind else 0,
        )
        output = rng.choices(range(size), k=9) if params.edits_logits else []
        rows.append(row_of(params, rng.random(), rng.choices(range(size), k=9), output))
        masks.append(mask_of(range(index, size, 3), size))
    logits, mask = randn(24, size, seed=2), torch.stack(masks)
    constrained = [index % 3 != 0 for index in range(24)]

    def sample(some: list[int], *, batched: bool) -> dict[int, Pick]:
        sampler = Sampler(size, batched=batched)
        held = [constrained[row] for row in some]
        picks = sampler.sample(logits[some].clone(), mask[some], held, [rows[row] for row in some]).read()
        return dict(zip(some, picks, strict=True))

    try:
        alone = {row: sample([row], batched=False)[row] for row in range(24)}
        for _ in range(6):
            some = rng.sample(range(24), rng.randrange(1, 25))
            for batched in (False, True):
                assert sample(some, batched=batched) == {row: alone[row] for row in some}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("with_mask", [False, True])
def test_nothing_looks_at_values_on_a_device(with_mask: bool) -> None:
    """The meta device has none to look at: an `item()`, a `nonzero` or a branch on a value would fail."""
    kinds: list[dict[str, Any]] = [{}, {"logprobs": "masked", "top_logprobs": 3}, {"logprobs": "raw"}]
    params = [SamplingParams(**options, **kind) for options in CASES for kind in kinds]
    rows = [row_of(each, 0.5, [1], [2] if each.edits_logits else []) for each in params]
    logits = torch.empty(len(rows), VOCAB, device="meta")
    mask = torch.empty(len(rows), 3, dtype=torch.int32, device="meta")
    sampled = Sampler(VOCAB, "meta").sample(logits, mask, [with_mask] * len(rows), rows)
    assert (sampled.tokens.shape, sampled.tokens.dtype) == ((len(rows),), torch.int64)
    assert (sampled.status.shape, sampled.status.dtype) == ((len(rows),), torch.int8)
    assert sampled.logprobs is not None
    assert sampled.logprobs.top_ids.shape == (2 * len(CASES), 20)


# -- faults ----------------------------------------------------

ROWS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.5, min_p=0.1),
    SamplingParams(temperature=1.0, top_k=3, logprobs="raw", top_logprobs=3),
    SamplingParams(presence_penalty=1.0, logprobs="masked", top_logprobs=3),
]


@BATCHED
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "infinity"])
@pytest.mark.parametrize("place", [0, 5, VOCAB - 1])
def test_logits_that_are_not_finite_are_told_even_under_the_mask(bad: float, place: int, batched: bool) -> None:
    logits = torch.zeros(VOCAB)
    logits[place] = bad
    for params in ROWS:
        for allowed in (None, [7]):
            pick = pick_one(logits, allowed, row_of(params), batched=batched)
            assert "not finite" in str(pick.fault)
            assert pick.logprob is None


@BATCHED
def test_an_empty_mask_is_told(batched: bool) -> None:
    for params in ROWS:
        pick = pick_one(torch.zeros(VOCAB), [], row_of(params), batched=batched)
        assert "allows no token" in str(pick.fault)


@BATCHED
def test_a_fault_stays_in_its_row(batched: bool) -> None:
    logits = randn(3 * len(ROWS), VOCAB)
    logits[::3] = torch.nan
    rows = [row_of(params) for params in ROWS for _ in range(3)]
    mask = torch.stack([mask_of([] if row % 3 == 1 else range(40)) for row in range(len(rows))])
    picks = Sampler(VOCAB, batched=batched).sample(logits.clone(), mask, [True] * len(rows), rows).read()
    for row, pick in enumerate(picks):
        if row % 3 == 2:
            assert pick == pick_one(logits[row], range(40), rows[row])
        else:
            assert pick.fault is not None
