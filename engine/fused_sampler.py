"""FusedSampler: `Sampler` with mask, temperature, cuts and choice in one launch of our kernel, for a GPU with Triton.

It draws by Gumbel noise and not by inverting the distribution, so its tokens differ from the CPU's under one seed; they
are as bound to (seed, stream, position), and as independent of the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import cycle, product

import numpy as np
import torch
from torch import Tensor

from structgen.engine.penalties import apply_edits, gather_edits
from structgen.engine.random_stream import bits_at
from structgen.engine.sampled import Sampled
from structgen.engine.sampler import RowSampling, Sampler
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.step_sampling import SamplingSource, StepSampling, in_float32
from structgen.engine.upload import upload
from structgen.kernels.masked_sampling import HandOver, Picks, RowParams, SamplingWorkspace, masked_sampling

IN_FLIGHT = 4  # calls of `sample` whose parameters may still be on their way to the device
FEW_ROWS = 8  # up to which streams are read one by one in less time than together
SEED_RANGE = 2.0**53  # a row's uniform number in [0, 1) has so many steps
# Of a row's parameters: seed, temperature, top_p, min_p, top_k, row of the table of masks, whether it has a mask.
FIELD_OCTETS = (8, 4, 4, 4, 4, 4, 1)


class StagedRows:
    """Row parameters: one pinned buffer, its twin on the device, and the views of both.

    `sources` stand in the buffer, if any: the rows of a step that are those of the step before are not written again.
    `starts` and `draws` (uint64, 0 for greedy rows) then are those of their random streams.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.host = torch.zeros(most * sum(FIELD_OCTETS), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.device = torch.zeros(most * sum(FIELD_OCTETS), dtype=torch.uint8, device=device)
        ends = np.cumsum([octets * most for octets in FIELD_OCTETS]).tolist()
        fields = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        seed, temperature, top_p, min_p, top_k, mask_row, self.constrained = (self.device[field] for field in fields)
        self.mask_rows = mask_row.view(torch.int32)
        self.rows = RowParams(
            temperature=temperature.view(torch.float32),
            top_k=top_k.view(torch.int32),
            top_p=top_p.view(torch.float32),
            min_p=min_p.view(torch.float32),
            seed=seed.view(torch.int64),
            offset=torch.zeros(most, dtype=torch.int64, device=device),
        )
        octets = self.host.numpy()
        seeds, *numbers, top_ks, masks, self.flags = (octets[field] for field in fields)
        self.seeds, self.top_ks, self.masks = seeds.view(np.uint64), top_ks.view(np.int32), masks.view(np.int32)
        self.numbers = [each.view(np.float32) for each in numbers]  # as in_float32 gives them
        self.sources: list[SamplingSource] = []
        self.starts, self.draws = np.zeros(0, np.uint64), np.zeros(0, np.uint64)


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

    def launch(
        self,
        logits: Tensor,
        mask: Tensor | None,
        staged: StagedRows,
        picks: Picks,
        *,
        cuts: bool,
        table: bool = False,
        hand_over: HandOver | None = None,
    ) -> None:
        """The kernel alone, for as many rows as `logits` has; a graph may capture it.

        `table`: `mask` is a table, of which each row reads the row that was staged.
        """
        masked_sampling(
            logits,
            staged.rows,
            picks,
            self._workspace,
            mask=mask,
            mask_rows=staged.mask_rows if table else None,
            constrained=None if mask is None else staged.constrained,
            hand_over=hand_over,
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
        return StagedRows(self._max_batch, self.device)

    def fill(
        self,
        staged: StagedRows,
        constrained: Items[bool],
        rows: Items[RowSampling],
        masks: list[int] | None = None,
    ) -> None:
        """Write the rows' parameters to the buffers, and send them off. `masks`: which row of a table each reads."""
        count = len(rows)
        if isinstance(rows, StepSampling):
            self._write_columns(staged, rows)
        else:
            self._write_rows(staged, rows)
        if masks is not None:
            staged.masks[:count] = masks
        staged.flags[:count] = constrained
        staged.flags[count:] = 0
        staged.device.copy_(staged.host, non_blocking=True)

    def _write_columns(self, staged: StagedRows, rows: StepSampling) -> None:
        count = len(rows)
        if rows.sources != staged.sources:
            staged.sources = rows.sources
            columns = rows.columns()
            staged.starts, staged.draws = columns["start"], columns["draws"]
            for numbers, name in zip(staged.numbers, ("temperature", "top_p", "min_p"), strict=True):
                numbers[:count] = columns[name]
            np.minimum(columns["top_k"], self.vocab_size, out=staged.top_ks[:count])
        if count > FEW_ROWS:
            staged.seeds[:count] = bits_at(staged.starts, rows.positions) * staged.draws
        else:
            staged.seeds[:count] = [int(row.uniform * SEED_RANGE) for row in rows]

    def _write_rows(self, staged: StagedRows, rows: Items[RowSampling]) -> None:
        """The slow twin of `_write_columns`, and for rows that are no step's."""
        count, params, staged.sources = len(rows), [row.params for row in rows], []
        staged.seeds[:count] = [int(row.uniform * SEED_RANGE) for row in rows]
        for numbers, column in zip(staged.numbers, zip(*map(in_float32, params), strict=True), strict=False):
            numbers[:count] = column
        staged.top_ks[:count] = [min(each.top_k, self.vocab_size) for each in params]


def has_cuts(rows: Items[RowSampling]) -> bool:
    """Whether any row keeps only its most likely tokens."""
    if isinstance(rows, StepSampling):
        return True in [source.cuts for source in rows.sources]
    return any(row.params.top_k or row.params.top_p < 1 or row.params.min_p for row in rows)


def wants_more(rows: Items[RowSampling]) -> bool:
    """Whether any row asks for more than a token: logprobs, or edits of its logits."""
    if isinstance(rows, StepSampling):
        return True in [source.wants_more for source in rows.sources]
    return any(row.history is not None or row.params.logprobs for row in rows)
