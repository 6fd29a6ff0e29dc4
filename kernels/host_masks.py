"""What a host adds to each step in benchmarks of the whole round trip: masks that depend on the tokens before."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from structgen.kernels.mailbox import Rows


class HostMasks:
    """One of a pool of masks for each row and step, by the row's last token, after `seconds` of pretended work."""

    def __init__(self, vocab_size: int, allowed: int, *, seconds: float = 0.0, pool: int = 16) -> None:
        """Each mask allows about `allowed` tokens."""
        words = -(-vocab_size // 32)
        random = np.random.default_rng(allowed)
        bits = np.zeros((pool, words * 32), np.uint8)
        for row in bits:
            row[random.choice(vocab_size, allowed, replace=False)] = 1
        self._pool: Rows = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
        self.seconds = seconds

    def fill(self, step: int, tokens: Sequence[int] | Rows | None, mask: Rows) -> None:
        """mask [batch, words] of a step; `tokens` are those of the step before."""
        if self.seconds:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                pass
        for row in range(len(mask)):
            last = 0 if tokens is None else int(tokens[row])
            mask[row] = self._pool[(last * 7 + step + row) % len(self._pool)]
