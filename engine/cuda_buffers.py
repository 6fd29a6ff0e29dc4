"""DeviceSlots: what CudaRunner keeps for each slot."""

from __future__ import annotations

import torch
from torch import Tensor

from structgen.engine.cuda_buckets import MOST_GRAPH_ROWS
from structgen.engine.cuda_events import StepEvents, make_event
from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.logprobs import Logprobs
from structgen.engine.runner import MOST_SLOTS
from structgen.engine.sampler import Sampler


class DeviceSlot:
    """What the device needs of one slot: inputs on the host, page tables, sampling, and events.

    Each slot has page tables of its own (int32 [lanes, pages]): a step that runs reads a lane's row as it was when it
    was launched, though the lane may be another sequence's by the next step.
    """

    def __init__(self, staged: DeviceInput, tables: Tensor, sampling: CudaSampling) -> None:
        self.staged, self.tables, self.sampling = staged, tables, sampling
        self.tables_version = 0  # of LaneTables
        self.events = StepEvents()
        self.inputs_there, self.mask_there, self.arrived = make_event(), make_event(), make_event()
        self.through = self.arrived  # the event that tells that the host has the tokens of the step
        # The compute stream's tensors, from which the download stream copies: given back to the allocator any earlier,
        # the next step could be writing to them by then.
        self.logprobs: Logprobs | None = None


class DeviceSlots:
    """Makes a slot's buffers when they are first asked for. `scratch` is the page that unused lanes write to."""

    def __init__(
        self,
        sampler: Sampler,
        last_tokens: Tensor,
        *,
        max_batch: int,
        table_pages: int,
        scratch: int,
        graphs: GraphMaker | None,
    ) -> None:
        self._sampler, self._last_tokens, self._graphs = sampler, last_tokens, graphs
        self._max_batch, self._table_pages, self._scratch = max_batch, table_pages, scratch
        self._masks = DeviceMasks(sampler.vocab_size, slots=MOST_SLOTS, max_batch=max_batch, device=last_tokens.device)
        self._made: dict[int, DeviceSlot] = {}

    def __getitem__(self, index: int) -> DeviceSlot:
        if index not in self._made:
            self._made[index] = self._make()
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        self._made.clear()

    def _make(self) -> DeviceSlot:
        most, pages, device = self._max_batch, self._table_pages, self._last_tokens.device
        staged = DeviceInput(usual_rows=MOST_GRAPH_ROWS, max_batch=most, table_pages=pages, pinned=True)
        tables = torch.full((most + 1, pages), self._scratch, dtype=torch.int32, device=device)
        sampling = CudaSampling(self._sampler, self._masks, self._last_tokens, max_batch=most, graphs=self._graphs)
        torch.cuda.synchronize(device)  # what was made here was made on the caller's stream
        return DeviceSlot(staged, tables, sampling)
