"""Masked sampling: logits and a bitmask -> one token a row, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.engine.sampling_params import SamplingParams

# How many of the most likely tokens are tried for top_p before the whole vocabulary is sorted; the first nearly always
# suffices (0.07 ms of 49,152 tokens; sorting all takes 3 ms).
NUCLEUS_GUESSES = (256, 4096)


@dataclass
class RowSampling:
    params: SamplingParams
    uniform: float
    history: object = None

    @classmethod
    def ignored(cls):
        return cls(SamplingParams(), 0.0)


@dataclass
class Sampled:
    tokens: Tensor
    status: Tensor
    logprobs: object = None


TEXTS = ["", "the model's logits are not finite", "the mask allows no token"]


def status_text(status):
    return TEXTS[status]


class Sampler:
    """Owns the table that spreads an octet of a mask to eight tokens: [256, 8], True where the token is forbidden."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        octets, bits = torch.arange(256)[:, None], torch.arange(8)
        self._forbidden = (octets >> bits) & 1 == 0

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        mask: Tensor,
        constrained: Items[bool],
        rows,
    ):
        params = [r.params for r in rows]
        uniforms = [r.uniform for r in rows]
        """x

        logits [R, V] float32, mask [R, ceil(V / 32)] int32; `uniforms` are each row's next draw from its own stream,
        used by rows that are not greedy. A row's result depends on that row alone.
        """
        highest, tokens = logits.max(dim=1)
        finite = torch.isfinite(highest)  # max propagates NaN
        if any(constrained):
            self._forbid(logits, mask, constrained)
            highest, tokens = logits.max(dim=1)
        possible = torch.isfinite(highest)
        picks: list[int | str] = []
        for row, (token, is_finite, is_possible) in enumerate(
            zip(tokens.tolist(), finite.tolist(), possible.tolist(), strict=True)
        ):
            if not is_finite:
                picks.append("the model's logits are not finite")
            elif not is_possible:
                picks.append("the mask allows no token")
            elif params[row].greedy:
                picks.append(token)
            else:
                picks.append(draw(logits[row], params[row], uniforms[row]))
        st = [TEXTS.index(p) if isinstance(p, str) else 0 for p in picks]
        return Sampled(
            torch.tensor([0 if isinstance(p, str) else p for p in picks]), torch.tensor(st, dtype=torch.int8)
        )

    def _forbid(self, logits: Tensor, mask: Tensor, constrained: Items[bool]) -> None:
        for row, has_mask in enumerate(constrained):
            if has_mask:  # little-endian words: octet t // 8 holds token t
                octets = mask[row].view(torch.uint8).int()
                forbidden = self._forbidden.index_select(0, octets).view(-1)
                logits[row].masked_fill_(forbidden[: self._vocab_size], -torch.inf)


def draw(logits: Tensor, params: SamplingParams, uniform: float) -> int:
    """Pick from softmax(logits / temperature) [V], cut to top_p, by inverting its distribution at `uniform` in [0, 1).

    A token of probability 0 is never picked: the first token whose cumulated probability exceeds the target adds to it.
    """
    shifted = (logits - logits.max()) / params.temperature
    probabilities = torch.softmax(shifted, dim=0)
    if params.top_p == 1:
        return _invert(probabilities, uniform)
    kept, tokens = _nucleus(probabilities, params.top_p)
    return int(tokens[_invert(kept, uniform)])


def _nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest most likely tokens that reach `top_p` together: their probabilities and ids, most likely first."""
    for count in sorted({min(guess, len(probabilities)) for guess in (*NUCLEUS_GUESSES, len(probabilities))}):
        kept, tokens = torch.topk(probabilities, count)
        before = kept.cumsum(0, dtype=torch.float64) - kept
        size = int((before < top_p).sum())
        if size < count:
            break
    return kept[:size], tokens[:size]


def _invert(probabilities: Tensor, uniform: float) -> int:
    cumulated = probabilities.cumsum(0, dtype=torch.float64)
    return int(torch.searchsorted(cumulated, cumulated[-1] * uniform, right=True))
