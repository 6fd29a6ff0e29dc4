"""CudaSampling: the sampling of one slot's steps on the GPU, as a captured graph where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from torch import Tensor

from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.fused_sampler import FusedSampler, has_cuts, wants_more
from structgen.engine.logprobs import Logprobs
from structgen.engine.sampler import Sampler
from structgen.engine.step import StepSlot
from structgen.engine.upload import upload
from structgen.kernels.masked_sampling import STATUS_SHIFT, HandOver, Picks


class CudaSampling:
    """Owns a slot's parameters and result; shares the sampler, the masks and the lanes' last tokens with other slots.

    A row's result is one number: its status above its token. `arriving` is where the host reads it, in pinned memory.

    Rows that ask for nothing but a token (no logprobs, no edits) are sampled by a graph of one kernel, which also hands
    the token to its lane, and writes the result to the host's memory (`is_direct`). Without Triton or graphs, and for
    other rows, the same happens step by step, and `result` is to be copied.
    """

    def __init__(
        self,
        sampler: Sampler,
        masks: DeviceMasks,
        last_tokens: Tensor,
        *,
        max_batch: int,
        graphs: GraphMaker | None,
    ) -> None:
        device = last_tokens.device
        self._sampler, self._masks, self._last_tokens = sampler, masks, last_tokens
        self._mask_rows: list[int] | None = None  # of the step: where its masks are; None without any
        self.result = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self.arriving = torch.zeros(max_batch, dtype=torch.int64, pin_memory=True)
        self._arrived = self.arriving.numpy()
        self._make, self._graphs = graphs, dict[tuple[int, bool, bool], torch.cuda.CUDAGraph]()
        self.is_direct = False  # of the step: its rows want nothing but tokens, and a graph samples them
        self._fused = sampler if isinstance(sampler, FusedSampler) and graphs is not None else None
        if self._fused is not None:
            self._staged = self._fused.stage()
            self._picks = Picks.empty(max_batch, device)

    def send(self, slot: StepSlot) -> None:
        """Bring what the sampling needs to the device, on the current stream: masks that are not there, and each row's
        parameters.
        """
        constrained = slot.constrained[: len(slot.rows)]
        self._mask_rows = self._masks.bring(slot) if True in constrained else None
        self.is_direct = self._fused is not None and not wants_more(slot.sampling)
        if self._fused is not None and self.is_direct:
            self._fused.fill(self._staged, constrained, slot.sampling, self._mask_rows)

    def sample(self, slot: StepSlot, logits: Tensor, targets: Tensor) -> Logprobs | None:
        """Put each row's token in its lane and its result in `arriving` or `result`, on the current stream.

        logits [R, V] and targets int32 [R] are the bucket's: they lie where they lay at its last step.
        """
        if self.is_direct:
            self._graph(logits, targets, self._mask_rows is not None, has_cuts(slot.sampling)).replay()
            return None
        count = len(slot.rows)
        sampled = self._sampler.sample(logits[:count], self._gathered(), slot.constrained[:count], slot.sampling)
        self._hand_over(sampled.tokens, sampled.status, targets[:count])
        return sampled.logprobs

    def _gathered(self) -> Tensor:
        """The step's masks one below the other."""
        if self._mask_rows is None:
            return self._masks.table[:0]
        rows = upload(np.array(self._mask_rows, dtype=np.int64).clip(min=0), self._masks.table.device)
        return self._masks.table.index_select(0, rows)

    def arrive(self, slot: StepSlot) -> None:
        """Read the results into the slot: the step is through."""
        self._masks.release(slot)
        packed = self._arrived[: len(slot.rows)]
        slot.host_tokens[: len(packed)] = packed & ((1 << STATUS_SHIFT) - 1)
        slot.host_status[: len(packed)] = packed >> STATUS_SHIFT

    def prepare(self, logits: Tensor, targets: Tensor) -> None:
        """Capture now what `sample` may replay for this bucket. The device is at rest, and `targets` are spare.

        A capture runs its work, which writes to `arriving`: there may be the tokens of a step that is through on the
        device, but that the host has not read yet.
        """
        if self._fused is not None:
            kept = self._arrived.copy()
            try:
                for masked, cuts in product((False, True), (False, True)):
                    self._graph(logits, targets, masked, cuts)
            finally:
                self._arrived[:] = kept

    def _graph(self, logits: Tensor, targets: Tensor, masked: bool, cuts: bool) -> torch.cuda.CUDAGraph:
        key = (targets.data_ptr(), masked, cuts)
        if key not in self._graphs:
            assert self._make is not None
            self._graphs[key] = self._make.capture(self._work(logits, targets, masked, cuts))
        return self._graphs[key]

    def _work(self, logits: Tensor, targets: Tensor, masked: bool, cuts: bool) -> Callable[[], None]:
        fused, table = self._fused, self._masks.table if masked else None
        assert fused is not None
        hand_over = HandOver(lanes=targets, last_tokens=self._last_tokens, packed=self.arriving)

        def work() -> None:
            fused.launch(logits, table, self._staged, self._picks, cuts=cuts, table=masked, hand_over=hand_over)

        return work

    def _hand_over(self, tokens: Tensor, status: Tensor, targets: Tensor) -> None:
        """What the kernel does by itself, in PyTorch."""
        self._last_tokens.index_copy_(0, targets.long(), tokens)
        self.result[: len(tokens)] = tokens + (status.long() << STATUS_SHIFT)


def make_sampler(vocab_size: int, device: torch.device, *, max_batch: int, fused: bool) -> Sampler:
    """`fused`: mask, temperature, cuts and choice in our kernel; else in PyTorch."""
    return FusedSampler(vocab_size, device, max_batch=max_batch) if fused else Sampler(vocab_size, device)
