"""Sampler: logits and a bitmask -> one token a row, or the reason why there is none.

edit (bias, penalties) -> mask -> greedy: the best
                               -> else: temperature -> min_p -> top_k -> top_p -> draw at the row's uniform number
logprobs: "raw" of the logits as they come, "masked" of what the mask has left, before the temperature
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structgen.engine.drawing import (
    INDEX_BITS,
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Settings,
    draw_from_all,
    draw_from_likeliest,
)
from structgen.engine.fused_best import best_allowed
from structgen.engine.logprobs import Logprobs, logprobs_of
from structgen.engine.mask_table import MaskTable
from structgen.engine.penalties import Edits, TokenHistory, apply_edits, gather_edits
from structgen.engine.sampled import NOT_FINITE, NOTHING_ALLOWED, OK, Sampled
from structgen.engine.sampling_params import MAX_TOP_LOGPROBS, SamplingParams
from structgen.engine.upload import upload


class RowSampling(NamedTuple):
    """How one row is sampled: `uniform` in [0, 1) is for this token alone; `history` where the params edit logits."""

    params: SamplingParams
    uniform: float = 0.0
    history: TokenHistory | None = None


IGNORED = RowSampling(SamplingParams())  # for a row whose token nobody waits for


class Sampler:
    """Works on one device and never waits for it: whatever depends on values stays a tensor there.

    On the CPU, where there is nothing to wait for, rows go one by one through the cache and may be looked at; on a
    device all rows go together. Both give the same bits, and a row's result depends on that row alone.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", *, batched: bool | None = None) -> None:
        """`batched`: rows together, as on a device; by default wherever that is not the CPU."""
        assert vocab_size <= 1 << INDEX_BITS
        self.device = torch.device(device)
        self.vocab_size = vocab_size
        self._batched = self.device.type != "cpu" if batched is None else batched
        self._masks = MaskTable(vocab_size, self.device, batched=self._batched)

    def warm_up(self) -> None:
        """Prepare what would make the first calls slow: nothing here."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, mask: Tensor, constrained: Items[bool], rows: Items[RowSampling]) -> Sampled:
        """logits [R, V] float32 (overwritten), mask [R, ceil(V / 32)] int32, both on the sampler's device.

        `constrained`: which rows have a mask.
        """
        raw = [row for row, each in enumerate(rows) if each.params.logprobs == "raw"]
        before = self._take(logits, raw).clone() if raw else None
        edits = gather_edits([row.history for row in rows], self.vocab_size)
        if edits is None and not self._batched:
            highest, tokens, status = best_allowed(logits, mask, constrained)
        else:
            highest, tokens, status = self._best(logits, mask, constrained, edits)
        self._draw(logits, highest, tokens, rows)
        return Sampled(tokens, status, self._logprobs(logits, before, raw, tokens, rows))

    def _best(
        self, logits: Tensor, mask: Tensor, constrained: Items[bool], edits: Edits | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Edit and mask, whatever the device: highest logit, its token, status."""
        highest, tokens = logits.max(dim=1)
        status = NOT_FINITE * (~torch.isfinite(highest)).to(torch.int8)  # max propagates NaN
        if edits is not None:
            apply_edits(logits, upload(edits, self.device))
        if any(constrained):
            self._masks.forbid(logits, mask, constrained)
        if edits is not None or any(constrained):
            highest, tokens = logits.max(dim=1)
            status = torch.where(status == OK, NOTHING_ALLOWED * (~torch.isfinite(highest)).to(torch.int8), status)
        return highest, tokens, status

    def _draw(self, logits: Tensor, highest: Tensor, tokens: Tensor, rows: Items[RowSampling]) -> None:
        """Overwrite the best token by a drawn one, in rows that are not greedy."""
        drawn = [row for row, each in enumerate(rows) if not each.params.greedy]
        cut = [row for row in drawn if rows[row].params.top_k or rows[row].params.top_p < 1]
        for some in self._portions([row for row in drawn if row not in cut]):
            distance, settings = self._distance(logits, highest, some), self._settings(rows, some)
            self._put(tokens, some, draw_from_all(distance, settings))
        for some in self._portions(cut):
            distance, settings = self._distance(logits, highest, some), self._settings(rows, some)
            self._put(tokens, some, draw_from_likeliest(distance, settings, may_wait=not self._batched))

    def _logprobs(
        self, logits: Tensor, before: Tensor | None, raw: list[int], tokens: Tensor, rows: Items[RowSampling]
    ) -> Logprobs | None:
        """`before`: copies of the rows `raw`, which want the model's own distribution."""
        wanted = [row for row, each in enumerate(rows) if each.params.logprobs]
        if not wanted:
            return None
        tops = tuple(rows[row].params.top_logprobs for row in wanted)
        count = MAX_TOP_LOGPROBS if any(tops) else 0  # not the largest that is asked for: a row's work is its own
        parts = []
        for some in self._portions(wanted):
            source = self._take(logits, some)
            if before is not None and (own := [row for row in some if row in raw]):
                theirs = self._take(before, [raw.index(row) for row in own])
                source = source.index_copy(0, self._index([some.index(row) for row in own]), theirs)
            parts.append(logprobs_of(source, self._take(tokens, some), count))
        chosen, ids, values = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Logprobs(tuple(wanted), tops, chosen, ids, values)

    def _settings(self, rows: Items[RowSampling], some: list[int]) -> Settings:
        size = self.vocab_size
        params = [rows[row].params for row in some]
        table = [
            (
                rows[row].uniform,
                min(max(each.temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE),
                each.min_p,
                each.top_p,
                min(each.top_k or size, size),
            )
            for row, each in zip(some, params, strict=True)
        ]
        uniform, temperature, min_p, top_p, top_k = upload(np.array(table).T.copy(), self.device)[:, :, None]
        return Settings(
            uniform=uniform,
            temperature=temperature.float(),
            min_p=min_p.float(),
            top_p=top_p,
            top_k=top_k.long(),
            has_min_p=any(each.min_p for each in params),
            largest_k=max(each.top_k for each in params) if all(each.top_k for each in params) else 0,
        )

    def _portions(self, rows: list[int]) -> list[list[int]]:
        """What is drawn in one go: all rows on a device, one after the other through the CPU's cache."""
        return ([rows] if rows else []) if self._batched else [[row] for row in rows]

    def _distance(self, logits: Tensor, highest: Tensor, rows: list[int]) -> Tensor:
        """How far each logit lies below its row's highest, float32 [len(rows), V]."""
        return self._take(highest, rows)[:, None] - self._take(logits, rows)

    def _take(self, tensor: Tensor, rows: list[int]) -> Tensor:
        """Some rows; a view where that is possible."""
        if len(rows) == len(tensor):
            return tensor
        return tensor[rows[0] : rows[0] + 1] if len(rows) == 1 else tensor.index_select(0, self._index(rows))

    def _put(self, tensor: Tensor, rows: list[int], values: Tensor) -> None:
        tensor.index_copy_(0, self._index(rows), values)

    def _index(self, rows: list[int]) -> Tensor:
        return upload(np.array(rows, dtype=np.int64), self.device)
