"""CudaRunner: LlamaModel on a GPU, each step one captured graph.

Three streams. The compute stream runs forward and sampling in order, and nothing else; copies run beside it, those to
the device and those from it apart, so that none waits for one it does not need:

    compute           wait(inputs N+1) [forward N+1] ......... wait(mask N+1) [sample N+1] record(sampled)
    up       [inputs N+1] record(inputs)     [mask N+1] record(mask)
    down                                                             wait(sampled) [tokens N+1 -> host] record(arrived)

Where the sampling kernel writes the tokens to the host's memory itself, nothing goes down, and `sampled` tells of them.

Ownership: logits and the last tokens exist once, since steps follow each other on the compute stream. What a copy
writes or reads belongs to the slot (inputs, page tables, masks, results), which is free again only when its step is
committed: then every copy and all work on them is through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from structgen.engine.cuda_buckets import Bucket, Buckets, padded, rows_up_to
from structgen.engine.cuda_buffers import DeviceSlots
from structgen.engine.cuda_events import DeviceClock, EventWaiter, comes_to_rest, make_stream
from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.cuda_sampling import make_sampler
from structgen.engine.cuda_streams import OnStream
from structgen.engine.cuda_warm_up import LOAD_SECONDS, prepare
from structgen.engine.device_input import LaneTables
from structgen.engine.errors import StepTimeoutError
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import AdapterTable
from structgen.engine.lora_files import AdapterWeights, read_adapter
from structgen.engine.paged_rows import PagedRows
from structgen.engine.runner import (
    DEFAULT_CONTEXT,
    MAX_ADAPTERS,
    MAX_LORA_RANK,
    MOST_SLOTS,
    PAGE_SIZE,
    PREFILL_TOKENS,
)
from structgen.engine.step import StepSlot

log = logging.getLogger("structgen.engine")
KV_SHARE = 0.5  # of the free memory, at most, for the KV cache
REST_SECONDS = 20.0  # steps in flight take milliseconds; a device that is not through by then hangs


class CudaRunner:
    """Owns the KV cache, the last sampled tokens and the page tables on the device.

    pages   of the KV cache; enough for `max_batch` texts of `max_context` tokens if they fit, when left out
    graphs  False runs each step operation by operation: the slow twin
    fused   False uses PyTorch alone, for attention and sampling too: the twin of our kernels. They need Triton
    """

    pinned = shares_masks = True
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
        self._lane_tables = LaneTables(max_batch, self.table_pages, scratch=self.pages)
        self._fused = fused and find_spec("triton") is not None
        self._sampler = make_sampler(self.vocab_size, self.device, max_batch=max_batch, fused=self._fused)
        self.max_adapters, self.max_lora_rank = max_adapters, max_lora_rank
        self._adapters: AdapterTable | None = None  # made when the first adapter comes; captured graphs read it
        self._compute, self._up, self._down = (make_stream(self.device) for _ in range(3))
        self._on_compute, self._on_up, self._on_down = map(OnStream, (self._compute, self._up, self._down))
        self._clock, self._waiter = DeviceClock(self._compute), EventWaiter()
        self._graphs = GraphMaker(self._compute) if graphs else None
        self._buckets = Buckets(
            model.config,
            max_batch=max_batch,
            device=self.device,
            graphs=self._graphs,
            attention_kernel=self._fused,
        )
        self._slots = DeviceSlots(
            self._sampler,
            self.last_tokens,
            max_batch=max_batch,
            table_pages=self.table_pages,
            scratch=self.pages,
            graphs=self._graphs,
        )
        self._warm_rows: tuple[int, ...] = ()  # what `warm_up` was asked for
        self._closed = False
        torch.cuda.synchronize(self.device)  # what was made above was made on the caller's stream

    # -- ModelRunner --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, slot: StepSlot) -> None:
        device = self._slots[slot.index]
        rows = padded(slot.plan.tokens)
        bucket = self._bucket(slot.index, rows, self._adapters is not None and slot.plan.has_adapter)
        self._lane_tables.update(slot.plan)
        packed = device.staged.stage(slot.plan, slot.lanes, rows, bucket.sampled)
        with self._on_up:
            bucket.inputs.copy_(packed, non_blocking=True)
            if device.tables_version != self._lane_tables.version:
                device.tables.copy_(self._lane_tables.copy_to(device.staged.tables), non_blocking=True)
                device.tables_version = self._lane_tables.version
            device.inputs_there.record(self._up)
        self._compute.wait_event(device.inputs_there)
        with self._on_compute:
            device.events.forward_begin.record(self._compute)
            self._forward(bucket)
            device.events.forward_end.record(self._compute)
        device.events.samples, device.through = False, device.arrived
        slot.input = bucket

    @torch.inference_mode()
    def sample(self, slot: StepSlot) -> None:
        device, bucket, count = self._slots[slot.index], slot.input, len(slot.rows)
        if not count:
            device.arrived.record(self._compute)
            return
        sampling = device.sampling
        with self._on_up:
            sampling.send(slot)
        device.mask_there.record(self._up)
        self._compute.wait_event(device.mask_there)
        with self._on_compute:
            device.events.sample_begin.record(self._compute)
            logprobs = sampling.sample(slot, bucket.logits, bucket.rows.targets)
            device.events.sampled.record(self._compute)
        device.events.samples = True
        device.logprobs = logprobs
        if sampling.is_direct:
            device.through = device.events.sampled
            return
        self._down.wait_event(device.events.sampled)
        with self._on_down:
            sampling.arriving[:count].copy_(sampling.result[:count], non_blocking=True)
            slot.logprobs = None if logprobs is None else logprobs.to_host()
        device.arrived.record(self._down)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        self._wait_for(slot, seconds)
        self._read(slot)

    def _wait_for(self, slot: StepSlot, seconds: float) -> None:
        device = self._slots[slot.index]
        if not self._waiter.happens(device.through, seconds):
            raise StepTimeoutError(seconds)
        device.logprobs = None

    def _read(self, slot: StepSlot) -> None:
        """Take the tokens over that have arrived."""
        self._slots[slot.index].sampling.arrive(slot)

    def clear(self, pages: Iterable[int]) -> None:
        with self._on_compute:
            self.cache.clear(pages)

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        return self._clock.spans(self._slots[slot.index].events)

    def close(self) -> None:
        """Waits for what is in flight, but not for ever: a device that hangs keeps its memory, and is told of."""
        if self._closed:
            return
        self._closed = True
        try:
            rests = self._comes_to_rest()
        except RuntimeError as problem:  # the device is lost
            log.warning("runner: the device failed before it was given back: %s", problem)
            return
        if rests:
            self._forget()
        else:
            log.warning("runner: the device hangs; it was not through after %g s and is given up", REST_SECONDS)

    def _comes_to_rest(self) -> bool:
        return comes_to_rest((self._up, self._compute, self._down), REST_SECONDS)

    def _forget(self) -> None:
        """Let graphs and slots go; nothing runs any more that reads them."""
        self._buckets.clear()
        self._slots.clear()

    def read_adapter(self, folder: str | Path) -> AdapterWeights:
        """Any thread may call this: it only reads files. ModelError when the adapter cannot be used."""
        return read_adapter(folder, self.model.config)

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Waits for the steps in flight. Where the table has to grow, the graphs that read it are captured anew."""
        if not self._comes_to_rest():
            raise StepTimeoutError(REST_SECONDS)
        with self._on_compute:
            if self._adapters is None:
                self._adapters = AdapterTable(
                    self.model.config,
                    slots=self.max_adapters,
                    max_rank=self.max_lora_rank,
                    dtype=self.model.dtype,
                    device=self.device,
                )
            before = self._adapters.moves
            try:
                self._adapters.load(slot, weights)
            finally:
                moved = self._adapters.moves > before
                if moved:
                    self._buckets.forget_adapted()
        if moved and self._warm_rows:
            pieces = self._preparations(self._warm_rows, adapted=True)
            prepare(pieces, self.device, "steps with adapters", seconds=LOAD_SECONDS)

    def warm_up(self, step_tokens: int | None = None) -> None:
        """Compile the kernels and capture the graphs of all steps of up to `step_tokens` tokens (those of an engine's
        default, when left out) now, instead of when they are first wanted. Bounded in time and memory; logs.

        Adapted steps follow when the first adapter is loaded.
        """
        self._warm_rows = rows_up_to(step_tokens or PREFILL_TOKENS + self.max_batch)
        prepare(self._preparations(self._warm_rows, adapted=False), self.device, "steps")

    def _preparations(self, rows: Iterable[int], *, adapted: bool) -> Iterator[Callable[[], None]]:
        """What a warm-up has to do, piece by piece, the most wanted first. The device is at rest."""
        if self._fused:
            yield self._warm_up_sampler
        for count in rows:
            for index in range(MOST_SLOTS):
                yield partial(self._prepare_slot, index, count, adapted)

    def _warm_up_sampler(self) -> None:
        with self._on_compute:
            self._sampler.warm_up()

    @torch.inference_mode()
    def _prepare_slot(self, index: int, rows: int, adapted: bool) -> None:
        bucket = self._bucket(index, rows, adapted)
        with self._trying(bucket):
            self._slots[index].sampling.prepare(bucket.logits, bucket.rows.targets)

    @contextmanager
    def _trying(self, bucket: Bucket) -> Iterator[None]:
        """On the compute stream, with a blank bucket; copies to it come after."""
        try:
            with self._on_compute, self._buckets.blank(bucket):
                yield
        finally:
            self._up.wait_stream(self._compute)

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
            bucket.tables,
            PAGE_SIZE,
            adapters=rows.adapters.long() if bucket.adapted else None,
            workspace=bucket.workspace,
        )
        hidden = self.model.hidden_rows(step, self.cache, self._adapters)
        bucket.logits.copy_(self.model.head(hidden[rows.sampled_at.long()]))

    def _bucket(self, slot: int, rows: int, adapted: bool) -> Bucket:
        ready = self._buckets.ready(slot, rows, adapted)
        if ready is not None:
            return ready
        tables = self._slots[slot].tables
        try:
            with self._on_compute:
                return self._buckets.get(slot, rows, adapted, tables, self._compute_logits)
        finally:  # it was filled on the compute stream: a step's inputs must not be there before
            self._up.wait_stream(self._compute)

    def _pages_that_fit(self) -> int:
        config = self.model.config
        free, _ = torch.cuda.mem_get_info(self.device)
        page = PAGE_SIZE * 2 * config.kv_heads * config.head_dim * self.model.dtype.itemsize * config.layers
        return max(self.table_pages, min(self.max_batch * self.table_pages, int(free * KV_SHARE) // page))
