"""DeviceMasks: the table of masks on the GPU, from which each sampling row reads the one that it is told."""

from __future__ import annotations

import torch

from structgen.engine.mask_residency import MaskResidency, Placed
from structgen.engine.step import StepSlot

RESIDENT_OCTETS = 32 << 20  # of masks that stay: 2,092 for 128,256 tokens ...
MOST_RESIDENT = 4096  # ... and at most so many, where they are small


class DeviceMasks:
    """Owns the table [resident + slots * B, W] int32: masks that stay, then B rows of each slot's own.

    What is brought is written on the stream that is current at `bring`; whoever reads the table waits for that. A row
    is written anew only when `release` was told that all steps that read it are through.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        slots: int,
        max_batch: int,
        device: torch.device,
    ) -> None:
        words = -(-vocab_size // 32)
        self._slots, self._max_batch = slots, max_batch
        self._resident = max(1, min(RESIDENT_OCTETS // (4 * words), MOST_RESIDENT))
        rows = self._resident + slots * max_batch
        self.table = torch.zeros(rows, words, dtype=torch.int32, device=device)
        self.residency = MaskResidency(self._resident)

    def bring(self, slot: StepSlot) -> list[int]:
        """See to it that the step's masks are in the table; which row of it each sampling row reads."""
        assert slot.index < self._slots, "made for fewer slots"
        count, own = len(slot.rows), self._resident + slot.index * self._max_batch
        placed = self.residency.place(slot.index, slot.shared[:count], slot.constrained, own)
        if placed.own or placed.admitted:
            try:
                self._copy(slot, placed, own)
            except BaseException:
                self.residency.forget(placed)
                raise
        return placed.rows

    def release(self, slot: StepSlot) -> None:
        """The slot's step is through."""
        self.residency.release(slot.index)

    def _copy(self, slot: StepSlot, placed: Placed, own: int) -> None:
        """By way of the slot's pinned rows, which are its own until it is committed."""
        for index in [*placed.own, *(index for index, _ in placed.admitted)]:
            shared = slot.shared[index]
            if shared is not None:
                slot.mask_rows[index][:] = shared.bits
        if placed.own:  # in one piece: what lies between them is of no consequence
            begin, end = placed.own[0], placed.own[-1] + 1
            self.table[own + begin : own + end].copy_(slot.mask[begin:end], non_blocking=True)
        for index, row in placed.admitted:
            self.table[row].copy_(slot.mask[index], non_blocking=True)
