"""Sampled: what a step's sampling gives, on the device; Arrived: the same on the host; Pick: one row of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from structgen.engine.logprobs import Logprobs, TokenLogprob

OK, NOT_FINITE, NOTHING_ALLOWED = range(3)
FAULTS = {NOT_FINITE: "the model's logits are not finite", NOTHING_ALLOWED: "the mask allows no token"}


class Pick(NamedTuple):
    """A row's token, or why there is none (`fault`, a sentence); `logprob` where the row asked for it."""

    token: int
    fault: str | None
    logprob: TokenLogprob | None


class Arrived(NamedTuple):
    """What a step sampled, on the host: a token a row; for few rows, if any, why there is none, and logprobs."""

    tokens: list[int]
    faults: dict[int, str]
    logprobs: dict[int, TokenLogprob]


@dataclass(frozen=True)
class Sampled:
    """tokens int64 [R], status int8 [R] (see FAULTS; a token is only one where it is OK), and logprobs if any row
    wants them."""

    tokens: Tensor
    status: Tensor
    logprobs: Logprobs | None = None

    def read(self) -> list[Pick]:
        """One Pick a row. Waits for the device where the tensors are there."""
        tokens, faults = self.tokens.tolist(), [fault_of(status) for status in self.status.tolist()]
        told = {} if self.logprobs is None else self.logprobs.read(tokens)
        return [
            Pick(token, fault, None if fault else told.get(row))
            for row, (token, fault) in enumerate(zip(tokens, faults, strict=True))
        ]


def fault_of(status: int) -> str | None:
    """Why a row has no token; None when it has one."""
    return FAULTS.get(status)
