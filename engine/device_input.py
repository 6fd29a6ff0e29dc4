"""DeviceInput: a step as rows of single tokens, packed so that one copy brings it to the device.

Every token of a step is a row with its own position and page table: the tokens of a chunk are rows one after the other,
and see each other because a layer writes all keys and values before any row reads them. So decoding, jumping forward
and prefill are one kind of step, and a captured graph serves each number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structgen.engine.scheduler import StepPlan
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
        self.tables = torch.zeros(max_batch + 1, table_pages, dtype=torch.int32, pin_memory=pinned)
        self._reserve(packed_size(usual_rows, max_batch))
        self.sampled_at: list[int] = []  # of the step that was staged last: the rows whose logits are wanted

    def stage(self, plan: StepPlan, lanes: list[int], rows: int, sampled: int) -> Tensor:
        """Write the plan as `rows` rows of which `sampled` are sampled, padded; the part of `packed` to copy."""
        if packed_size(rows, sampled) > len(self.packed):  # the slot is free, so nothing is copied from it any more
            self._reserve(packed_size(rows, sampled))
        # Unknown twice: the step before this one, which is in flight, samples the token.
        ids = [
            -1 - lane if row.sequence.unknown > 1 else row_tokens(row)[0]
            for row, lane in zip(plan.decode, lanes, strict=False)
        ]
        positions = [row.start for row in plan.decode]
        adapters = [row.sequence.adapter_slot for row in plan.decode] if plan.has_adapter else [0] * len(ids)
        tables, wanted = lanes[: len(ids)], list(range(len(ids)))
        for row in plan.chunks:
            sequence, count = row.sequence, row.count
            ids += row_tokens(row)
            positions += range(row.start, row.start + count)
            tables += (sequence.lane,) * count
            adapters += (sequence.adapter_slot,) * count
            if row.samples:
                wanted.append(len(ids) - 1)
        self._write(rows, sampled, (ids, positions, tables, adapters), wanted, lanes)
        self.sampled_at = wanted
        return self.packed[: packed_size(rows, sampled)]

    def _write(
        self, rows: int, sampled: int, columns: tuple[list[int], ...], wanted: list[int], lanes: list[int]
    ) -> None:
        """The columns of `Rows`, each padded with rows that are not there."""
        fields = self._host[: FIELDS * rows].reshape(FIELDS, rows)
        count, outputs = len(columns[0]), fields[FIELDS - 1]
        fields[: FIELDS - 1, :count] = columns
        fields[:, count:] = self._padding
        targets = np.array(lanes, dtype=np.int32)
        if count == len(wanted):
            outputs[:count] = targets
        else:
            outputs[:count] = -1
            outputs[wanted] = targets
        targets[targets < 0] = self.max_batch
        last = self._host[FIELDS * rows : packed_size(rows, sampled)].reshape(2, sampled)
        last[0, : len(wanted)], last[1, : len(wanted)] = wanted, targets
        last[0, len(wanted) :], last[1, len(wanted) :] = 0, self.max_batch

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
