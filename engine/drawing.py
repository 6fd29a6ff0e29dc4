"""Drawing: a token from each row's distribution, by inverting it at the row's uniform number.

Sums of floating-point numbers depend on the order of the additions, and that order on the kernel, the device and the
shape of the batch. So likelihoods are integers here: exp((logit - highest) / temperature) in units of 2^-42. Sums of
integers are exact in every order, and all else is element by element: a row's token is the same bits whatever else is
in the batch. What is less than 2^-42 times as likely as the most likely token counts as impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNIT_BITS = 42
INDEX_BITS = 20  # of a token id inside a key; UNIT_BITS + INDEX_BITS < 63, so that no sum overflows
VANISHING = -40.0  # its exponential is no unit; far smaller ones take the processor's slow path
# How many of the most likely tokens are tried for top_p before the whole vocabulary is sorted; the first nearly always
# suffices (0.05 ms of 49,152 tokens; sorting all takes 2.2 ms).
NUCLEUS_GUESSES = (256, 4096)
# Beyond these a distribution in float32 is the greedy one or the flat one already.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-30, 1e30


@dataclass(frozen=True)
class Settings:
    """Columns [R, 1], one entry a row: float64 `uniform` and `top_p`, float32 `temperature` and `min_p`, int64 `top_k`.

    `has_min_p`: whether any row has one. `largest_k`: no row's top_k is larger; 0 when some row has none.
    """

    uniform: Tensor
    temperature: Tensor
    min_p: Tensor
    top_p: Tensor
    top_k: Tensor
    has_min_p: bool
    largest_k: int


def likelihoods(distance: Tensor, settings: Settings) -> Tensor:
    """int64 [R, N] in units of 2^-42 of the most likely token's, from how far [R, N] logits lie below the highest."""
    relative = torch.exp((distance / -settings.temperature).clamp_(min=VANISHING))
    if settings.has_min_p:
        relative = torch.where(relative >= settings.min_p, relative, 0.0)
    return (relative * 2.0**UNIT_BITS).long()


def draw_from_all(distance: Tensor, settings: Settings) -> Tensor:
    """Tokens int64 [R]; distance [R, V]. For rows without top_k and top_p."""
    cumulated = likelihoods(distance, settings).cumsum(1)
    return _invert(cumulated, cumulated[:, -1:], settings.uniform).squeeze(1)


def draw_from_likeliest(distance: Tensor, settings: Settings, *, may_wait: bool) -> Tensor:
    """Tokens int64 [R]; distance [R, V]. min_p cuts first, then top_k, then top_p of what these have left.

    `may_wait`: a few of the most likely tokens are tried first, and looked at whether they suffice.
    """
    size = distance.shape[1]
    if settings.largest_k:
        counts = [min(settings.largest_k, size)]
    else:
        counts = sorted({min(guess, size) for guess in NUCLEUS_GUESSES} | {size}) if may_wait else [size]
    total = None if settings.largest_k or len(counts) == 1 else likelihoods(distance, settings).sum(1, keepdim=True)
    for count in counts:
        ids, near = likeliest(distance, count)
        amounts = likelihoods(near, settings)
        amounts = torch.where(torch.arange(count, device=near.device) < settings.top_k, amounts, 0)
        cumulated = amounts.cumsum(1)
        wanted = (cumulated[:, -1:] if total is None else total).double() * settings.top_p
        if count == counts[-1] or bool((cumulated[:, -1:] >= wanted).all()):
            break
    inside = ((cumulated - amounts).double() < wanted) | (settings.top_p >= 1)
    kept = torch.where(inside, cumulated, 0).amax(1, keepdim=True)
    return ids.gather(1, _invert(cumulated, kept, settings.uniform)).squeeze(1)


def likeliest(distance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and distances [R, count] of the most likely tokens, most likely first; of equal ones the lower id first.

    A key holds distance and id, so no two are equal and every kernel finds the same order: floats that are not
    negative sort as their bits do.
    """
    size = distance.shape[1]
    index = torch.arange(size, device=distance.device)
    keys = (distance.contiguous().view(torch.int32).long() << INDEX_BITS) | index
    if count > size // 4:
        keys = keys.sort(dim=1).values[:, :count]
    else:
        keys = keys.topk(count, dim=1, largest=False).values
    return keys & ((1 << INDEX_BITS) - 1), (keys >> INDEX_BITS).int().view(torch.float32)


def _invert(cumulated: Tensor, total: Tensor, uniform: Tensor) -> Tensor:
    """int64 [R, 1]: the first place whose cumulated likelihood exceeds uniform * total; never one of likelihood 0."""
    target = torch.minimum((total.double() * uniform).long(), total - 1)
    place = torch.searchsorted(cumulated, target, right=True)
    return place.clamp_(max=cumulated.shape[1] - 1)  # a row of NaN has no place; its status says so
