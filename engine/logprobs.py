"""Logprobs: the logarithms of the chosen and the most likely tokens' probabilities, for rows that want them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from structgen.engine.drawing import UNIT_BITS, VANISHING, likeliest


class TokenLogprob(NamedTuple):
    """One token of an output: its natural logarithm of probability, and the most likely tokens, most likely first.

    `top` has fewer entries than asked for where the mask allows fewer.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def certain(cls, token_id: int, *, top: int) -> TokenLogprob:
        """A token that the grammar forced: under its mask nothing else was possible."""
        return cls(token_id, 0.0, ((token_id, 0.0),) if top else ())


@dataclass(frozen=True)
class Logprobs:
    """Tensors of the L rows that want them: chosen float32 [L]; ids int64 and values float32 [L, K], K may be 0.

    `rows` and `tops` (how many of the K each row asked for) are on the host.
    """

    rows: tuple[int, ...]
    tops: tuple[int, ...]
    chosen: Tensor
    top_ids: Tensor
    top_values: Tensor

    def to_host(self) -> Logprobs:
        """Copies into pinned memory that may still be under way; the CPU's own tensors are handed on."""
        return Logprobs(self.rows, self.tops, *map(to_host, (self.chosen, self.top_ids, self.top_values)))

    def read(self, tokens: list[int]) -> dict[int, TokenLogprob]:
        """Row -> what it asked for; `tokens` are all rows' tokens. Waits for the device where tensors are there."""
        found = {}
        chosen, ids, values = self.chosen.tolist(), self.top_ids.tolist(), self.top_values.tolist()
        for at, (row, top) in enumerate(zip(self.rows, self.tops, strict=True)):
            pairs = zip(ids[at][:top], values[at][:top], strict=True)
            likely = tuple((token, value) for token, value in pairs if value > -math.inf)
            found[row] = TokenLogprob(tokens[row], chosen[at], likely)
        return found


def logprobs_of(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`chosen`, `top_ids` and `top_values` of Logprobs, for logits [L, V] at temperature 1 and the tokens [L] chosen.

    The normaliser is summed in integers, as in `drawing`: the same bits whatever else is in the batch.
    """
    distance = logits.amax(1, keepdim=True) - logits
    total = (torch.exp((-distance).clamp_(min=VANISHING)) * 2.0**UNIT_BITS).long().sum(1, keepdim=True)
    log_total = torch.log(total.double()) - UNIT_BITS * math.log(2)
    chosen = -distance.gather(1, tokens[:, None]).double() - log_total
    ids, near = distance[:, :0].long(), distance[:, :0]
    if count:
        ids, near = likeliest(distance, min(count, distance.shape[1]))
    return chosen.float().squeeze(1), ids, (-near.double() - log_total).float()


def to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
