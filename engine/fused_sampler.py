"""FusedSampler: `Sampler` with mask, temperature, cuts and choice in one launch of our kernel, for a GPU with Triton.

It draws by Gumbel noise and not by inverting the distribution, so its tokens differ from the CPU's under one seed; they
are as bound to (seed, stream, position), and as independent of the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import cycle, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structgen.engine.drawing import LEAST_TEMPERATURE, MOST_TEMPERATURE
from structgen.engine.penalties import apply_edits, gather_edits
from structgen.engine.sampled import Sampled
from structgen.engine.sampler import RowSampling, Sampler
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.upload import upload
from structgen.kernels.masked_sampling import Picks, RowParams, SamplingWorkspace, masked_sampling

IN_FLIGHT = 4  # calls of `sample` whose parameters may still be on their way to the device
LEAST_SHARE = 1e-30  # a top_p that keeps the most likely token alone
SEED_RANGE = 2.0**53  # a row's uniform number in [0, 1) has so many steps
ROW_OCTETS = 25  # of a row's parameters


class StagedRows(NamedTuple):
    """Row parameters: one pinned buffer, its twin on the device, and the device's views of it.

    `params` is what stands in the buffer: rows that ask for the same as at the last step are not written again.
    """

    host: Tensor
    device: Tensor
    rows: RowParams
    constrained: Tensor
    params: list[SamplingParams]


class FusedSampler(Sampler):
    """A row's token and status depend on that row alone. Not for several threads or streams at once."""

    def __init__(self, vocab_size: int, device: torch.device | str, *, max_batch: int) -> None:
        super().__init__(vocab_size, device, batched=True)
        self._max_batch = max_batch
        self._workspace = SamplingWorkspace(max_batch=max_batch, vocab_size=vocab_size, device=device)
        self._staged = cycle([self.stage() for _ in range(IN_FLIGHT)])

    @torch.inference_mode()
    def sample(self, logits: Tensor, mask: Tensor, constrained: Items[bool], rows: Items[RowSampling]) -> Sampled:
        """See `Sampler.sample`; logits are overwritten only where there are edits or logprobs."""
        raw = [row for row, each in enumerate(rows) if each.params.logprobs == "raw"]
        before = self._take(logits, raw).clone() if raw else None
        edits = gather_edits([row.history for row in rows], self.vocab_size)
        if edits is not None:
            apply_edits(logits, upload(edits, self.device))
        picks, staged = Picks.empty(len(rows), self.device), next(self._staged)
        self.fill(staged, constrained, rows)
        self.launch(logits, mask if any(constrained) else None, staged, picks, cuts=has_cuts(rows))
        if any(each.params.logprobs for each in rows) and any(constrained):
            self._masks.forbid(logits, mask, constrained)
        return Sampled(picks.tokens, picks.status, self._logprobs(logits, before, raw, picks.tokens, rows))

    def launch(self, logits: Tensor, mask: Tensor | None, staged: StagedRows, picks: Picks, *, cuts: bool) -> None:
        """The kernel alone, for as many rows as `logits` has; a graph may capture it."""
        masked_sampling(
            logits,
            staged.rows,
            picks,
            self._workspace,
            mask=mask,
            constrained=None if mask is None else staged.constrained,
            cuts=cuts,
        )

    def warm_up(self) -> None:
        """Compile the kernel's variants now: each takes seconds, which no request should have to wait for."""
        logits = torch.zeros(1, self.vocab_size, device=self.device)
        mask = torch.full((1, -(-self.vocab_size // 32)), -1, dtype=torch.int32, device=self.device)
        for constrained, top_k in product((False, True), (0, 2)):
            params = SamplingParams(temperature=1.0, top_k=top_k)
            self.sample(logits, mask, [constrained], [RowSampling(params, 0.5)])

    def stage(self) -> StagedRows:
        """Buffers for the parameters of one call, which belong to its owner until the device has read them."""
        most = self._max_batch
        host = torch.zeros(most * ROW_OCTETS, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        device = torch.zeros(most * ROW_OCTETS, dtype=torch.uint8, device=self.device)
        ends = np.cumsum([8 * most, 4 * most, 4 * most, 4 * most, 4 * most, most]).tolist()
        seed, temperature, top_p, min_p, top_k, constrained = (
            device[begin:end] for begin, end in zip([0, *ends], ends, strict=False)
        )
        params = RowParams(
            temperature=temperature.view(torch.float32),
            top_k=top_k.view(torch.int32),
            top_p=top_p.view(torch.float32),
            min_p=min_p.view(torch.float32),
            seed=seed.view(torch.int64),
            offset=torch.zeros(most, dtype=torch.int64, device=self.device),
        )
        return StagedRows(host, device, params, constrained, [])

    def fill(self, staged: StagedRows, constrained: Items[bool], rows: Items[RowSampling]) -> None:
        """Write the rows' parameters to the buffers, and send them off."""
        most, count = self._max_batch, len(rows)
        octets = staged.host.numpy()
        octets[: 8 * most].view(np.int64)[:count] = [int(row.uniform * SEED_RANGE) for row in rows]
        params = [row.params for row in rows]
        if params != staged.params:
            staged.params[:] = params
            numbers = octets[8 * most : 20 * most].view(np.float32).reshape(3, most)
            numbers[:, :count] = np.array([_in_float32(each) for each in params]).T
            octets[20 * most : 24 * most].view(np.int32)[:count] = [min(each.top_k, self.vocab_size) for each in params]
        octets[24 * most :][:count] = constrained
        octets[24 * most :][count:] = 0
        staged.device.copy_(staged.host, non_blocking=True)


def has_cuts(rows: Items[RowSampling]) -> bool:
    return any(row.params.top_k or row.params.top_p < 1 or row.params.min_p for row in rows)


def _in_float32(params: SamplingParams) -> tuple[float, float, float]:
    """temperature, top_p and min_p: extreme values stay numbers, and mean the same, when they are rounded."""
    temperature = params.temperature and min(max(params.temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE)
    return temperature, max(params.top_p, LEAST_SHARE), params.min_p
