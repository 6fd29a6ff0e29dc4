"""Sampled: what a step's sampling gives, on the device; Arrived: the same on the host; Pick: one row of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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

    @classmethod
    def of(cls, tokens: npt.NDArray[np.int64], status: npt.NDArray[np.int8], logprobs: Logprobs | None) -> Arrived:
        """Of rows [R] whose tensors are on the host."""
        ids = tokens.tolist()
        faults = {row: FAULTS[int(status[row])] for row in status.nonzero()[0].tolist()} if status.any() else {}
        return cls(ids, faults, {} if logprobs is None else logprobs.read(ids))


@dataclass(frozen=True)
class Sampled:
    """tokens int64 [R], status int8 [R] (see FAULTS; a token is only one where it is OK), and logprobs if any row
    wants them."""

    tokens: Tensor
    status: Tensor
    logprobs: Logprobs | None = None

    def read(self) -> list[Pick]:
        """One Pick a row. Waits for the device where the tensors are there."""
        arrived = Arrived.of(self.tokens.cpu().numpy(), self.status.cpu().numpy(), self.logprobs)
        return [
            Pick(token, arrived.faults.get(row), None if row in arrived.faults else arrived.logprobs.get(row))
            for row, token in enumerate(arrived.tokens)
        ]
