"""MaskTable: takes forbidden tokens out of logits, given masks of one bit a token."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch
from torch import Tensor

from structgen.engine.upload import upload


class MaskTable:
    """Owns the table that spreads an octet of a mask to eight tokens: [256, 8], 0 where allowed and -inf elsewhere.

    It is added to the logits: NaN stays NaN, infinity becomes NaN, so neither can hide behind the mask. (Adding takes
    18 us a row of 49,152 on the CPU; filling through a boolean mask 43 to 145, by how its bits are strewn.)
    """

    def __init__(self, vocab_size: int, device: torch.device, *, batched: bool) -> None:
        """`batched`: all rows in one go, for devices where a launch costs more than a row that needs no mask."""
        self._vocab_size = vocab_size
        self._batched = batched
        octets, bits = torch.arange(256)[:, None], torch.arange(8)
        self._penalty = torch.where((octets >> bits) & 1 == 0, -torch.inf, 0.0).to(device)

    def forbid(self, logits: Tensor, mask: Tensor, constrained: Items[bool]) -> None:
        """Set logits [R, V] of forbidden tokens to -inf, in rows that are constrained; mask [R, ceil(V / 32)] int32."""
        if self._batched:
            return self._forbid_rows(logits, mask, constrained)
        for row, has_mask in enumerate(constrained):
            if has_mask:
                logits[row] += self._spread(mask[row])[: self._vocab_size]
        return None

    def _forbid_rows(self, logits: Tensor, mask: Tensor, constrained: Items[bool]) -> None:
        penalty = self._spread(mask).view(len(mask), -1)[:, : self._vocab_size]
        if not all(constrained):
            penalty = torch.where(upload(np.array(constrained, dtype=bool), logits.device)[:, None], penalty, 0.0)
        logits += penalty

    def _spread(self, mask: Tensor) -> Tensor:
        """0 or -inf for each token, flat; little-endian words: octet t // 8 holds token t."""
        octets = mask.contiguous().view(torch.uint8).view(-1).int()
        return self._penalty.index_select(0, octets).view(-1)
