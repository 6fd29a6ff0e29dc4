"""The slow, obvious twin of the sampler: one row at a time, in numpy, in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from structgen.engine import SamplingParams

Floats = npt.NDArray[np.float64]


def edited(logits: Floats, params: SamplingParams, prompt: Iterable[int], output: Iterable[int]) -> Floats:
    """Logits after bias and penalties."""
    logits = logits.astype(np.float64).copy()
    counts = Counter(output)
    seen = {*prompt, *counts}
    for token in range(len(logits)):
        logits[token] += params.logit_bias.get(token, 0.0)
        if token in seen:
            if logits[token] > 0:
                logits[token] /= params.repetition_penalty
            else:
                logits[token] *= params.repetition_penalty
        logits[token] -= params.frequency_penalty * counts[token]
        if counts[token] > 0:
            logits[token] -= params.presence_penalty
    return logits


def masked(logits: Floats, allowed: Iterable[int] | None) -> Floats:
    if allowed is None:
        return logits
    kept = np.full(len(logits), -np.inf)
    for token in allowed:
        kept[token] = logits[token]
    return kept


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def truncated(logits: Floats, params: SamplingParams) -> Floats:
    """Probabilities that a token is drawn with: temperature, then min_p, top_k and top_p, then made to sum to 1."""
    probabilities = softmax(logits / params.temperature)
    probabilities[probabilities < params.min_p * probabilities.max()] = 0
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    for token in order[params.top_k or len(order) :]:
        probabilities[token] = 0
    probabilities /= probabilities.sum()
    reached = 0.0
    for token in order:
        if params.top_p < 1 and reached >= params.top_p:
            probabilities[token] = 0
        reached += probabilities[token]
    return np.asarray(probabilities / probabilities.sum())


def drawn(logits: Floats, params: SamplingParams, uniform: float) -> int:
    """The token of a uniform number: in the order of ids, or of likelihood where top_k or top_p put them in order."""
    if params.greedy:
        return int(np.argmax(logits))
    probabilities = truncated(logits, params)
    order = list(range(len(logits)))
    if params.top_k or params.top_p < 1:
        order.sort(key=lambda token: (-logits[token], token))
    reached = 0.0
    for token in order:
        reached += probabilities[token]
        if reached > uniform:
            return token
    return max(order, key=lambda token: probabilities[token] > 0)


def logprobs(logits: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(softmax(logits)))
