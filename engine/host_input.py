"""HostInput: a step's tokens, positions and page tables, laid out in the host's memory for LlamaModel."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from structgen.engine.kv_cache import PageTable
from structgen.engine.llama import Chunk, ForwardInput
from structgen.engine.scheduler import StepPlan
from structgen.engine.step import row_tokens


class HostInput:
    """Sizes: N = `step_tokens`, B = `max_batch`, P = pages of the longest sequence.

    ids, positions, places  int64 [N]: token (or -1 - lane), its position, its place in the KV cache
    adapters                int64 [N]: the slot of the token's adapter, 0 for none
    tables                  int64 [B, P] flattened: page tables, decode rows padded to one length, then one a chunk
    sampled_at              int64 [B]: which token of the step each sampling row's logits come from
    """

    def __init__(self, *, step_tokens: int, max_batch: int, table_pages: int, page_size: int) -> None:
        self.page_size, self.step_tokens = page_size, step_tokens
        self._ids, self._positions, self._places, self._adapters, self._tables, self._sampled_at = (
            torch.zeros(size, dtype=torch.int64)
            for size in (step_tokens, step_tokens, step_tokens, step_tokens, max_batch * table_pages, max_batch)
        )
        self._host_adapters = self._adapters.numpy()
        self._host = tuple(buffer.numpy() for buffer in (self._ids, self._positions, self._places, self._sampled_at))
        self._host_tables = self._tables.numpy()
        self.sampling_rows = 0
        self.forward = self._stage_tables(StepPlan((), ()), 0)

    def stage(self, plan: StepPlan) -> None:
        ids, positions, places, sampled_at = self._host
        offset = sampling = 0
        for row in plan.rows:
            end = offset + row.count
            where = np.arange(row.start, row.start + row.count)
            first = row.start // self.page_size
            pages = np.asarray(row.sequence.pages[first : (row.start + row.count - 1) // self.page_size + 1])
            ids[offset:end] = row_tokens(row)
            positions[offset:end] = where
            self._host_adapters[offset:end] = row.sequence.adapter_slot
            places[offset:end] = pages[where // self.page_size - first] * self.page_size + where % self.page_size
            if row.samples:
                sampled_at[sampling] = end - 1
                sampling += 1
            offset = end
        self.sampling_rows = sampling
        self.forward = self._stage_tables(plan, offset)

    def look_up(self, last_tokens: Tensor) -> None:
        """Replace each -1 - lane by that lane's last sampled token."""
        ids = self.forward.ids
        known = ids >= 0
        if not known.all():
            ids.copy_(torch.where(known, ids, last_tokens[(-1 - ids).clamp_min(0)]))

    @property
    def sampled_at(self) -> Tensor:
        return self._sampled_at[: self.sampling_rows]

    def _stage_tables(self, plan: StepPlan, tokens: int) -> ForwardInput:
        lengths = tuple(row.start + 1 for row in plan.decode)
        width = self._pages_of(max(lengths, default=0))
        decode = self._write_table(0, [row.sequence.pages[:width] for row in plan.decode], width)
        at, offset, chunks = width * len(plan.decode), len(plan.decode), []
        for row in plan.chunks:
            pages = row.sequence.pages[: self._pages_of(row.start + row.count)]
            table = self._write_table(at, [pages], len(pages))
            chunks.append(Chunk(offset=offset, count=row.count, start=row.start, table=table))
            at, offset = at + len(pages), offset + row.count
        has_adapter = any(row.sequence.adapter for row in plan.rows)
        return self._view(tokens, decode, lengths, chunks, self._adapters[:tokens] if has_adapter else None)

    def _write_table(self, at: int, lists: list[list[int]], width: int) -> PageTable:
        """Page lists at `at` in the buffer; short ones are padded with a page of their own, which the mask hides."""
        for index, pages in enumerate(lists):
            begin = at + index * width
            self._host_tables[begin : begin + width] = pages + pages[:1] * (width - len(pages))
        view = self._tables[at : at + len(lists) * width]
        adjoin = len(lists) == 1 and all(b == a + 1 for a, b in pairwise(lists[0]))
        return PageTable(pages=view, rows=len(lists), first=lists[0][0] if adjoin else None)

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _view(
        self,
        tokens: int,
        decode: PageTable,
        lengths: tuple[int, ...],
        chunks: Iterable[Chunk],
        adapters: Tensor | None,
    ) -> ForwardInput:
        return ForwardInput(
            ids=self._ids[:tokens],
            positions=self._positions[:tokens],
            places=self._places[:tokens],
            decode_table=decode,
            decode_lengths=lengths,
            chunks=tuple(chunks),
            adapters=adapters,
        )
