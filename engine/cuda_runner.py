"""CudaRunner: LlamaModel on a GPU, each step one captured graph.

Two streams. The compute stream runs forward and sampling in order; the copy stream brings masks in and tokens out, so
that neither waits for a copy it does not need:

    compute   [inputs of N+1, forward N+1] ......... wait(mask N+1) [sample N+1] record(sampled)
    copy                  [mask N+1] record(mask)                    wait(sampled) [tokens N+1 -> host] record(arrived)

Ownership: device buffers belong to the compute stream and exist once, since steps follow each other there. Pinned
buffers belong to the slot, which is free again only when its step is committed, hence after every copy from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import torch

from structgen.engine.cuda_buffers import Bucket, DeviceSlot
from structgen.engine.cuda_events import DeviceClock, make_stream
from structgen.engine.cuda_graphs import captured
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput, LaneTables, packed_size, unpack
from structgen.engine.errors import StepTimeoutError
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import AdapterTable
from structgen.engine.lora_files import AdapterWeights, read_adapter
from structgen.engine.paged_rows import PagedRows
from structgen.engine.runner import DEFAULT_CONTEXT, MAX_ADAPTERS, MAX_LORA_RANK, PAGE_SIZE
from structgen.engine.sampler import Sampler
from structgen.engine.step import StepSlot
from structgen.kernels.paged_attention import MAX_SPLITS, AttentionWorkspace, is_supported

KV_SHARE = 0.5  # of the free memory, at most, for the KV cache
FEW_ROWS = 16
GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # a step is padded to the next of these


class CudaRunner:
    """Owns the KV cache, the last sampled tokens and the page tables on the device.

    pages   of the KV cache; enough for `max_batch` texts of `max_context` tokens if they fit, when left out
    graphs  False runs each step operation by operation: the slow twin
    fused   False uses PyTorch alone, for attention and sampling too: the twin of our kernels. They need Triton
    """

    pinned = True
    default_depth = 2

    def __init__(
        self,
        model: LlamaModel,
        *,
        max_batch: int,
        max_context: int | None = None,
        pages: int | None = None,
        graphs: bool = True,
        fused: bool = True,
        max_adapters: int = MAX_ADAPTERS,
        max_lora_rank: int = MAX_LORA_RANK,
    ) -> None:
        self.model = model
        self.device = model.device
        self.vocab_size = model.config.vocab_size
        self.max_batch = max_batch
        self.max_context = max_context or min(model.config.context, DEFAULT_CONTEXT)
        self.page_size = PAGE_SIZE
        self.table_pages = -(-self.max_context // PAGE_SIZE)
        self.pages = pages or self._pages_that_fit()
        model.reserve(self.max_context)
        self.cache = KVCache(model.config, self.pages + 1, PAGE_SIZE, model.dtype, self.device)  # the last is scratch
        self.last_tokens = torch.zeros(max_batch + 1, dtype=torch.int64, device=self.device)  # by lane
        self.tables = torch.full((max_batch + 1, self.table_pages), self.pages, dtype=torch.int32, device=self.device)
        self._lane_tables = LaneTables(max_batch, self.table_pages, scratch=self.pages)
        self._fused = fused and find_spec("triton") is not None
        self._sampler = self._make_sampler()
        self._graphs = graphs
        self._buckets: dict[tuple[int, bool], Bucket] = {}
        self.max_adapters, self.max_lora_rank = max_adapters, max_lora_rank
        self._adapters: AdapterTable | None = None  # made when the first adapter comes; captured graphs read it
        self._slots: dict[int, DeviceSlot] = {}
        self._compute, self._copy = make_stream(self.device), make_stream(self.device)
        self._clock = DeviceClock(self._compute)

    # -- ModelRunner --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, slot: StepSlot) -> None:
        device = self._slot(slot)
        rows = _padded(slot.plan.tokens)
        bucket = self._bucket(rows, any(row.sequence.adapter is not None for row in slot.plan.rows))
        self._lane_tables.update(slot.plan)
        packed = device.staged.stage(slot.plan, slot.lanes, rows, len(bucket.rows.targets))
        with torch.cuda.stream(self._compute):
            bucket.inputs.copy_(packed, non_blocking=True)
            if self._lane_tables.dirty:
                self.tables.copy_(self._lane_tables.copy_to(device.staged.tables), non_blocking=True)
            device.events.forward_begin.record(self._compute)
            self._forward(bucket)
            device.events.forward_end.record(self._compute)
        device.events.samples = False
        slot.input = bucket

    @torch.inference_mode()
    def sample(self, slot: StepSlot) -> None:
        device, bucket, count = self._slot(slot), slot.input, len(slot.rows)
        if not count:
            device.arrived = device.copied
            device.arrived.record(self._compute)
            return
        sampling = device.sampling
        if any(slot.constrained[:count]):
            with torch.cuda.stream(self._copy):
                sampling.mask[:count].copy_(slot.mask[:count], non_blocking=True)
            device.mask_there.record(self._copy)
            self._compute.wait_event(device.mask_there)
        with torch.cuda.stream(self._compute):
            device.events.sample_begin.record(self._compute)
            logprobs = sampling.sample(slot, bucket.logits, bucket.rows.targets)
            device.events.sampled.record(self._compute)
        device.events.samples = True
        self._copy.wait_event(device.events.sampled)
        with torch.cuda.stream(self._copy):
            sampling.arriving[:count].copy_(sampling.result[:count], non_blocking=True)
            slot.logprobs = None if logprobs is None else logprobs.to_host()
        device.arrived = device.copied
        device.arrived.record(self._copy)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        self._wait_for(slot, seconds)
        self._slot(slot).sampling.arrive(slot)

    def _wait_for(self, slot: StepSlot, seconds: float) -> None:
        """Polls, since an event cannot be waited for with a deadline."""
        device = self._slot(slot)
        deadline = time.perf_counter() + seconds
        while not device.arrived.query():  # type: ignore[no-untyped-call]
            if time.perf_counter() > deadline:
                raise StepTimeoutError(seconds)
            time.sleep(0)

    def clear(self, pages: Iterable[int]) -> None:
        with torch.cuda.stream(self._compute):
            self.cache.clear(pages)

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        return self._clock.spans(self._slot(slot).events)

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        self._buckets.clear()

    def read_adapter(self, folder: str | Path) -> AdapterWeights:
        """Any thread may call this: it only reads files. ModelError when the adapter cannot be used."""
        return read_adapter(folder, self.model.config)

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Written on the compute stream: after the steps that are in flight, before those that may name the slot."""
        with torch.cuda.stream(self._compute):
            if self._adapters is None:
                self._adapters = AdapterTable(
                    self.model.config,
                    slots=self.max_adapters,
                    max_rank=self.max_lora_rank,
                    dtype=self.model.dtype,
                    device=self.device,
                )
            self._adapters.load(slot, weights)

    def warm_up(self, rows: Iterable[int] = GRAPH_ROWS[:-1]) -> None:
        """Compile the kernels and capture the graphs for so many rows now, instead of when they are first wanted."""
        if self._fused:
            with torch.cuda.stream(self._compute):
                self._sampler.warm_up()
        for count in rows:
            self._bucket(count)

    # -- the forward pass ---------------------------------------------------------------------------------------------

    def _forward(self, bucket: Bucket) -> None:
        if bucket.graph is None:
            self._compute_logits(bucket)
        else:
            bucket.graph.replay()

    def _compute_logits(self, bucket: Bucket) -> None:
        rows = bucket.rows
        ids = rows.ids.long()
        ids = torch.where(ids < 0, self.last_tokens[(-1 - ids).clamp_min(0)], ids)
        step = PagedRows.of(
            ids,
            rows.positions,
            rows.lanes,
            self.tables,
            PAGE_SIZE,
            adapters=rows.adapters.long() if bucket.adapted else None,
            workspace=bucket.workspace,
        )
        hidden = self.model.hidden_rows(step, self.cache, self._adapters)
        bucket.logits.copy_(self.model.head(hidden[rows.sampled_at.long()]))

    def _bucket(self, rows: int, adapted: bool = False) -> Bucket:
        made = self._buckets.get((rows, adapted))
        if made is None:
            sampled = min(rows, self.max_batch)
            inputs = torch.zeros(packed_size(rows, sampled), dtype=torch.int32, device=self.device)
            views = unpack(inputs, rows, sampled)
            views.lanes.fill_(self.max_batch)  # harmless until a step is copied in: all rows write to the scratch page
            views.targets.fill_(self.max_batch)
            logits = torch.zeros(sampled, self.vocab_size, dtype=torch.float32, device=self.device)
            bucket = made = Bucket(inputs, views, logits, self._workspace(rows), adapted)
            self._buckets[rows, adapted] = made
            if self._graphs:
                made.graph = self._captured(lambda: self._compute_logits(bucket))
        return made

    @torch.inference_mode()
    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        return captured(work, self._compute)

    # -- buffers ------------------------------------------------------------------------------------------------------

    def _make_sampler(self) -> Sampler:
        if not self._fused:
            return Sampler(self.vocab_size, self.device)
        from structgen.engine.fused_sampler import FusedSampler

        return FusedSampler(self.vocab_size, self.device, max_batch=self.max_batch)

    def _slot(self, slot: StepSlot) -> DeviceSlot:
        made = self._slots.get(slot.index)
        if made is None:
            staged = DeviceInput(
                most_rows=GRAPH_ROWS[-1], max_batch=self.max_batch, table_pages=self.table_pages, pinned=True
            )
            sampling = CudaSampling(
                self._sampler,
                self.last_tokens,
                max_batch=self.max_batch,
                words=slot.mask.shape[1],
                graphs=self._graphs,
            )
            torch.cuda.synchronize(self.device)
            made = self._slots[slot.index] = DeviceSlot(staged, sampling)
        return made

    def _workspace(self, rows: int) -> AttentionWorkspace | None:
        """For the attention kernel, where it can be used. Many rows keep the GPU busy without being cut up."""
        config = self.model.config
        if not self._fused or not is_supported(config.heads, config.kv_heads, config.head_dim):
            return None
        return AttentionWorkspace(
            max_rows=rows,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            device=self.device,
            splits=MAX_SPLITS if rows <= FEW_ROWS else 4,
        )

    def _pages_that_fit(self) -> int:
        config = self.model.config
        free, _ = torch.cuda.mem_get_info(self.device)
        page = PAGE_SIZE * 2 * config.kv_heads * config.head_dim * self.model.dtype.itemsize * config.layers
        return max(self.table_pages, min(self.max_batch * self.table_pages, int(free * KV_SHARE) // page))


def _padded(tokens: int) -> int:
    for rows in GRAPH_ROWS:
        if tokens <= rows:
            return rows
    raise ValueError(f"a step of {tokens} tokens is more than the {GRAPH_ROWS[-1]} that one may have")
