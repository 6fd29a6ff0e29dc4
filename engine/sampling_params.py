"""SamplingParams: how one request picks its tokens and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Checked on construction; a bad value raises ValueError that starts with the field's name.

    max_tokens      tokens that may be generated, EOS included
    temperature     0 is greedy; the masked logits are divided by it otherwise
    top_p           keep the smallest set of most likely allowed tokens whose probability reaches it
    seed            the request's own random stream; the same seed gives the same stream whatever else is in the batch
    stop_token_ids  generation ends before these (besides EOS); they are not part of the output
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = field(default=frozenset())

    def __post_init__(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            raise ValueError(f"max_tokens must be an integer of at least 1, not {self.max_tokens!r}")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature must be a finite number of at least 0, not {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if self.seed is not None and not _is_int(self.seed):
            raise ValueError(f"seed must be an integer or None, not {self.seed!r}")
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        if not all(_is_int(token) for token in self.stop_token_ids):
            raise ValueError("stop_token_ids must be integers")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
