"""SamplingParams refuse what makes no sense; random streams are bound to seed, stream and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from structgen.engine import SamplingParams
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", NAN),
        ("temperature", INFINITY),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", True),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", NAN),
        ("repetition_penalty", 1000.0),
        ("presence_penalty", 2.1),
        ("presence_penalty", NAN),
        ("frequency_penalty", -2.1),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: NAN}),
        ("seed", 1.5),
        ("stream", -1),
        ("logprobs", "both"),
        ("logprobs", 3),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("top_logprobs", 2),  # without logprobs
        ("stop_token_ids", frozenset(["x"])),
    ],
)
def test_bad_parameters_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
def test_what_is_no_number_is_told_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingParams(**{field: "1"})  # type: ignore[arg-type]


def test_words_for_logprobs() -> None:
    assert SamplingParams(logprobs=True, top_logprobs=20).logprobs == "masked"
    assert SamplingParams(logprobs=False).logprobs is None


def test_a_bias_that_the_caller_keeps_changing_stays_what_it_was() -> None:
    bias = {5: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 1.0
    assert dict(params.logit_bias) == {5: 1.0}
    assert params.edits_logits
    assert not SamplingParams(temperature=1.0).edits_logits


def numbers(seed: int | None, stream: int = 0, count: int = 2000) -> np.ndarray:
    source = RandomStream(seed, stream)
    return np.array([source.at(position) for position in range(count)])


def test_streams_are_bound_to_seed_stream_and_position() -> None:
    assert (numbers(7, 2) == numbers(7, 2)).all()
    assert RandomStream(7).at(1234) == numbers(7)[1234]
    ways = [numbers(seed, stream) for seed in (-1, 0, 1, 2, (1 << 64) - 2) for stream in (0, 1, 2)]
    ways += [numbers(None), numbers(None)]
    assert len({tuple(way[:4]) for way in ways}) == len(ways)


def test_streams_are_uniform_and_independent_of_their_neighbours() -> None:
    streams = np.stack([numbers(seed, stream) for seed in range(8) for stream in range(4)])
    assert streams.min() >= 0
    assert streams.max() < 1
    bins = np.bincount((streams.ravel() * 32).astype(int), minlength=32)
    expected = streams.size / 32
    assert ((bins - expected) ** 2 / expected).sum() < 70  # chi-squared with 31 degrees: 1 in 10,000
    correlations = np.corrcoef(streams)
    assert abs(correlations - np.eye(len(streams))).max() < 0.11  # 5 sigma
    assert abs(np.corrcoef(streams[:, :-1].ravel(), streams[:, 1:].ravel())[0, 1]) < 0.02


def test_a_history_grows_with_distinct_tokens_only() -> None:
    history = TokenHistory(SamplingParams(frequency_penalty=0.5, presence_penalty=0.25), [1, 2, 3])
    assert history.edits().shape == (4, 0)
    for token in [*range(200), 7, 7]:
        history.append(token)
    assert history.edits().shape == (4, 200)
    assert history.edits()[:, 7].tolist() == [7, 0, 1, 0.5 * 3 + 0.25]
    repeated = TokenHistory(SamplingParams(repetition_penalty=1.5), range(300))
    assert repeated.edits()[2].tolist() == [1.5] * 300
