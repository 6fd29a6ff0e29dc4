"""StepSlot: what engine and runner share about one step in flight. Made once; a step allocates no large buffer."""

from __future__ import annotations

from collections.abc import Sequence as Items
from operator import gt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from structgen.engine.mask_residency import SharedMask
from structgen.engine.sampler import RowSampling
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Sequence
from structgen.engine.step_sampling import NOBODY, StepSampling


class StepSlot:
    """Sizes: B = `max_batch`, V = `vocab_size`. One row of each buffer a sampling row of the plan.

    Written by the engine, read by the runner between `sample` and `wait`:
        mask         int32 [B, ceil(V / 32)] on the host (pinned for a GPU), bit 1 = allowed
        shared       instead of a row of `mask`, where the runner takes them: a mask that other steps have as well
        constrained  which rows have a mask
        sampling     how each row picks its token
    Written by the runner, read by the engine after `wait`:
        tokens       int64 [B], status int8 [B] (0: `tokens` counts; otherwise why there is none); `host_tokens` and
                     `host_status` are numpy's views of them
        logprobs     what was asked for beside the tokens, or None
    `logits` [B, V] float32 is there for runners that compute on the host.
    """

    def __init__(self, index: int, *, max_batch: int, vocab_size: int, pinned: bool = False) -> None:
        self.index = index
        words = -(-vocab_size // 32)
        self.mask = torch.zeros(max_batch, words, dtype=torch.int32, pin_memory=pinned)
        self.mask_rows = tuple(self.mask.numpy())  # views, to be filled and not replaced
        self.tokens = torch.zeros(max_batch, dtype=torch.int64, pin_memory=pinned)
        self.status = torch.zeros(max_batch, dtype=torch.int8, pin_memory=pinned)
        self.host_tokens: npt.NDArray[np.int64] = self.tokens.numpy()
        self.host_status: npt.NDArray[np.int8] = self.status.numpy()
        self.logits = torch.zeros(0 if pinned else max_batch, vocab_size, dtype=torch.float32)
        self.shared: list[SharedMask | None] = [None] * max_batch
        self.constrained = [False] * max_batch
        self.sampling: Items[RowSampling] = ()
        self.logprobs: Any = None
        self.fault: Exception | None = None  # from launching or sampling; told when the tokens are wanted
        self.waited = False  # for all tokens before it, and for nothing else: the engine chose to
        self.input: Any = None  # how the runner laid the tokens out
        self.number = 0  # of the step, counting from 1
        self.plan = StepPlan((), ())
        self.rows: tuple[PlanRow, ...] = ()
        self.sequences: list[Sequence] = []  # of the sampling rows
        self.lanes: list[int] = []  # where each sampling row's token goes

    def stage(self, plan: StepPlan, number: int) -> None:
        self.plan, self.rows, self.number = plan, plan.sampling_rows, number
        self.sequences = [row.sequence for row in self.rows]
        self.lanes = [sequence.lane for sequence in self.sequences]
        self.fault, self.logprobs, self.sampling = None, None, ()
        count = len(self.rows)
        self.constrained[:count], self.shared[:count] = [False] * count, [None] * count

    def gather_sampling(self) -> StepSampling:
        """How each row picks its token. All tokens before it have been appended, and its mask is there."""
        sequences = self.sequences
        sources = [sequence.sampling for sequence in sequences]
        needs_mask = [sequence.matcher is not None for sequence in sequences]
        if [row.epoch for row in self.rows] != [sequence.epoch for sequence in sequences]:
            for index, row in enumerate(self.rows):
                if row.void:
                    sources[index], needs_mask[index] = NOBODY, False
        assert not any(map(gt, needs_mask, self.constrained)), "a constrained row lost its mask"
        return StepSampling(sources, [len(sequence.output_ids) for sequence in sequences])

    def mask_of(self, row: int) -> npt.NDArray[np.int32]:
        """A constrained row's mask, to be read."""
        shared = self.shared[row]
        return self.mask_rows[row] if shared is None else shared.bits


def row_tokens(row: PlanRow) -> list[int]:
    """The row's tokens; one that is not known here yet is -1 - lane, for the runner to look up where it sampled it."""
    tokens = row.sequence.tokens(row.start, row.count)
    return tokens if len(tokens) == row.count else [*tokens, -1 - row.sequence.lane]
