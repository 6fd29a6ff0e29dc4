"""DeviceInput: a step as rows of single tokens, packed so that one copy brings it to the device.

Every token of a step is a row with its own position and page table: the tokens of a chunk are rows one after the other,
and see each other because a layer writes all keys and values before any row reads them. So decoding, jumping forward
and prefill are one kind of step, and a captured graph serves each number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.step import row_tokens

FIELDS = 5  # ids, positions, lanes, adapters, outputs


class Rows(NamedTuple):
    """Views of a packed buffer, on the host or on the device: int32, N rows of which R are sampled.

    ids         [N] token, or -1 - lane for the token that was last sampled there
    positions   [N]
    lanes       [N] which page table the row reads; padding rows have a lane of their own
    adapters    [N] the slot of the row's adapter, 0 for none
    outputs     [N] the lane that the row's sampled token goes to, -1 for a row that is not sampled
    sampled_at  [R] which rows' logits are wanted
    targets     [R] the lanes that the sampled tokens go to
    """

    ids: Tensor
    positions: Tensor
    lanes: Tensor
    adapters: Tensor
    outputs: Tensor
    sampled_at: Tensor
    targets: Tensor


def unpack(packed: Tensor, rows: int, sampled: int) -> Rows:
    fields = packed[: FIELDS * rows].view(FIELDS, rows)
    rest = packed[FIELDS * rows : FIELDS * rows + 2 * sampled].view(2, sampled)
    return Rows(*fields.unbind(), *rest.unbind())


def packed_size(rows: int, sampled: int) -> int:
    return FIELDS * rows + 2 * sampled


class DeviceInput:
    """The host's side of one slot: pinned buffers, written at launch, read by the copy that the launch starts.

    `usual_rows`: what there is room for from the start; a step of more rows makes more.
    """

    def __init__(self, *, usual_rows: int, max_batch: int, table_pages: int, pinned: bool) -> None:
        self.max_batch = max_batch
        self._pinned = pinned
        self._padding = np.array([[0], [0], [max_batch], [0], [-1]], dtype=np.int32)  # a row that is not there
        self._numbers = np.arange(max_batch, dtype=np.int32)
        self.tables = torch.zeros(max_batch + 1, table_pages, dtype=torch.int32, pin_memory=pinned)
        self._reserve(packed_size(usual_rows, max_batch))
        self.sampled_at: list[int] = []  # of the step that was staged last: the rows whose logits are wanted

    def stage(self, plan: StepPlan, lanes: list[int], rows: int, sampled: int) -> Tensor:
        """Write the plan as `rows` rows of which `sampled` are sampled, padded; the part of `packed` to copy."""
        if packed_size(rows, sampled) > len(self.packed):  # the slot is free, so nothing is copied from it any more
            self._reserve(packed_size(rows, sampled))
        if plan.chunks:
            self._stage_any(plan, lanes, rows, sampled)
        else:
            self._stage_decode(plan.decode, lanes, rows, sampled)
        return self.packed[: packed_size(rows, sampled)]

    def _stage_decode(self, decode: Items[PlanRow], lanes: list[int], rows: int, sampled: int) -> None:
        """A token a row, column by column."""
        count = len(decode)
        numbers = np.array(lanes, dtype=np.int32)
        fields = self._host[: FIELDS * rows].reshape(FIELDS, rows)
        ids, positions, tables, adapters, outputs = fields
        # Unknown twice: the step before this one, which is in flight, samples the token.
        ids[:count] = [
            -1 - lane if row.sequence.unknown > 1 else row_tokens(row)[0]
            for row, lane in zip(decode, lanes, strict=True)
        ]
        positions[:count] = [row.start for row in decode]
        tables[:count] = outputs[:count] = numbers
        adapters[:count] = [0 if row.sequence.adapter is None else row.sequence.adapter.slot for row in decode]
        fields[:, count:] = self._padding
        sampled_at, targets = self._host[FIELDS * rows : packed_size(rows, sampled)].reshape(2, sampled)
        sampled_at[:count] = self._numbers[:count]
        sampled_at[count:] = 0
        targets[:count] = numbers
        targets[count:] = self.max_batch
        self.sampled_at = list(range(count))

    def _stage_any(self, plan: StepPlan, lanes: list[int], rows: int, sampled: int) -> None:
        """The slow twin of `_stage_decode`, and for all steps."""
        ids: list[int] = []
        positions: list[int] = []
        tables: list[int] = []
        adapters: list[int] = []
        wanted: list[int] = []
        for row in plan.rows:
            sequence, count = row.sequence, row.count
            ids += row_tokens(row)
            positions += (row.start,) if count == 1 else range(row.start, row.start + count)
            tables += (sequence.lane,) * count
            adapters += (sequence.adapter_slot,) * count
            if row.samples:
                wanted.append(len(ids) - 1)
        padding, spare = rows - len(ids), self.max_batch
        outputs = [-1] * rows
        for at, lane in zip(wanted, lanes, strict=True):
            outputs[at] = lane
        zeros, unsampled = [0] * padding, sampled - len(wanted)
        targets = [lane if lane >= 0 else spare for lane in lanes]
        packed = [*ids, *zeros, *positions, *zeros, *tables, *[spare] * padding, *adapters, *zeros, *outputs]
        packed += [*wanted, *[0] * unsampled, *targets, *[spare] * unsampled]
        self._host[: len(packed)] = packed
        self.sampled_at = wanted

    def _reserve(self, size: int) -> None:
        self.packed = torch.zeros(size, dtype=torch.int32, pin_memory=self._pinned)
        self._host = self.packed.numpy()


class LaneTables:
    """The page tables of all lanes on the host. `version` rises with every change; a slot whose tables on the device
    are of another one needs them anew.

    Sequences extend their page lists in place and get a new list when they are admitted, so that a list and its length
    say whether a lane's row is up to date.
    """

    def __init__(self, lanes: int, table_pages: int, scratch: int) -> None:
        self._rows = np.full((lanes + 1, table_pages), scratch, dtype=np.int32)
        self._seen: list[tuple[list[int], int]] = [([], 0)] * lanes
        self.version = 0

    def update(self, plan: StepPlan) -> None:
        seen = self._seen
        for row in plan.rows:
            sequence = row.sequence
            pages, lane = sequence.pages, sequence.lane
            known, count = seen[lane]
            if known is not pages:
                count = 0
            if count < len(pages):
                self._rows[lane, count : len(pages)] = pages[count:]
                seen[lane] = (pages, len(pages))
                self.version += 1

    def copy_to(self, target: Tensor) -> Tensor:
        """Write all tables to a pinned buffer; the copy to the device takes it from there."""
        target.numpy()[:] = self._rows
        return target
