"""A GPU that is not there: streams that do at once what they are asked, and graphs that do their work again.

It shows everything that the host decides. Each work that is captured is done twice before, as on a GPU, so that a
capture that does harm is seen. Streams and events tell `FakeGpu.order`, where there is one, what waits for what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgen.engine import cuda_runner, fused_sampler, megakernel_runner
from structgen.engine.cuda_buckets import Buckets
from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.paged_rows import PagedRows
from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS, USE_MASK, StepInput
from structgen.kernels.masked_sampling import STATUS_SHIFT, HandOver, Picks, RowParams
from structgen.kernels.masked_sampling_reference import allowed_tokens, gumbel_noise, masked_sampling_reference
from tests.engine.stream_order import Clock, StreamOrder, absorb


class FakeStream:
    def __init__(self, gpu: FakeGpu, device: object = None) -> None:
        self.gpu, self.hangs, self.device_index = gpu, False, 0

    def wait_event(self, event: FakeEvent) -> None:
        absorb(self.gpu.order.clock(self), event.clock)

    def wait_stream(self, stream: FakeStream) -> None:
        absorb(self.gpu.order.clock(self), self.gpu.order.clock(stream))

    def synchronize(self) -> None:
        self.gpu.order.host_knows(self.gpu.order.clock(self))


class FakeEvent:
    def __init__(self, gpu: FakeGpu, *, enable_timing: bool = False) -> None:
        self.gpu = gpu
        self.at, self.stream, self.clock = 0.0, FakeStream(gpu), Clock()

    def record(self, stream: FakeStream) -> None:
        self.at, self.stream, self.clock = time.perf_counter(), stream, dict(self.gpu.order.clock(stream))

    def query(self) -> bool:
        if not self.stream.hangs:
            self.gpu.order.host_knows(self.clock)
        return not self.stream.hangs

    def synchronize(self) -> None:
        self.gpu.order.host_knows(self.clock)

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.at - self.at) * 1000


class FakeGpu:
    """`current`: the streams that work goes to, the last one now; `captures`: how many graphs were made; `free`: octets
    of memory; `decoders`: all that were made; `gives_up`: how many launches of theirs from now one gives up.
    """

    def __init__(self) -> None:
        self.current: list[FakeStream] = []
        self.captures = 0
        self.free = 64 << 30
        self.decoders: list[FakeDecoder] = []
        self.gives_up = 0
        self.order = StreamOrder(lambda: self.current[-1] if self.current else None)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def set_stream(self, stream: FakeStream | None) -> None:
        """None is the caller's own."""
        self.current[-1:] = [] if stream is None else [stream]

    def capture(self, maker: GraphMaker, work: Callable[[], None]) -> Any:
        self.captures += 1
        with self.stream(maker.stream):  # type: ignore[arg-type]
            for _ in range(2):
                work()
        maker.stream.synchronize()
        return SimpleNamespace(replay=work)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name, fake in (
            ("Stream", partial(FakeStream, self)),
            ("Event", partial(FakeEvent, self)),
            ("stream", self.stream),
            ("set_stream", self.set_stream),
            ("current_stream", lambda device: self.current[-1] if self.current else None),
            ("current_device", lambda: 0),
            ("synchronize", lambda device=None: self.order.host_knows_all()),
            ("graph_pool_handle", lambda: None),
            ("mem_get_info", lambda device=None: (self.free, 64 << 30)),
            (
                "get_device_properties",
                lambda device: SimpleNamespace(major=9, minor=0, multi_processor_count=8, name=""),
            ),
        ):
            patch.setattr(torch.cuda, name, fake)
        for name in ("zeros", "empty", "full", "arange"):
            patch.setattr(torch, name, self._maker(getattr(torch, name)))
        patch.setattr(GraphMaker, "capture", lambda maker, work: self.capture(maker, work))
        patch.setattr(Buckets, "_workspace", lambda buckets, rows: None)
        patch.setattr(cuda_runner, "find_spec", lambda name: object())
        patch.setattr(fused_sampler, "masked_sampling", _masked_sampling)
        patch.setattr(megakernel_runner, "ModelShape", SimpleNamespace(of=lambda config: config))
        patch.setattr(
            megakernel_runner, "Schedule", SimpleNamespace(build=lambda shape, rows, _: SimpleNamespace(batch=rows))
        )
        patch.setattr(megakernel_runner, "prove_once", lambda schedule, folder: None)
        patch.setattr(megakernel_runner, "device_model", lambda model, cache, context, schedule: (model, cache))
        patch.setattr(megakernel_runner, "Decoder", self._decoder)

    def _maker(self, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A tensor maker that pins nothing; what is meant to be pinned, and what for the device, is noted."""

        def made(*sizes: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            self.order.for_device = not pin_memory and options.get("device") is not None
            tensor = make(*sizes, **options)
            self.order.for_device = False
            if pin_memory:
                self.order.pinned.add(tensor.untyped_storage()._cdata)
            return tensor

        return made

    def _decoder(self, schedule: Any, weights: tuple[LlamaModel, KVCache]) -> FakeDecoder:
        self.decoders.append(FakeDecoder(self, schedule.batch, *weights))
        return self.decoders[-1]


class FakeDecoder:
    """The persistent kernel's contract, in PyTorch. When a launch has given up its results mean nothing, nor do those
    of any later one, until it is reset.
    """

    def __init__(self, gpu: FakeGpu, batch: int, model: LlamaModel, cache: KVCache) -> None:
        self.gpu, self.batch, self.model, self.cache = gpu, batch, model, cache
        self.outcome = torch.zeros(batch + 1, dtype=torch.int64)
        self.tokens, self.error, self.schedule = self.outcome[:-1], self.outcome[-1:], SimpleNamespace(batch=batch)
        self.logits = torch.zeros(batch, model.config.vocab_size)
        self.hidden = torch.zeros(batch, model.config.hidden)
        self.modes: list[int] = []  # of every launch
        self.resets: list[FakeStream] = []  # on which stream

    def launch(self, step: StepInput, mode: int) -> None:
        self.modes.append(mode)
        self.gpu.gives_up -= 1
        if self.gpu.gives_up == 0:
            self.error[0] = 1
        if mode & RUN_LAYERS:
            ids = step.ids.long()
            ids = torch.where(ids < 0, step.last_tokens[(-1 - ids).clamp_min(0)], ids)
            rows = PagedRows.of(ids, step.positions, step.table_of, step.tables, self.cache.page_size)
            self.hidden = self.model.hidden_rows(rows, self.cache)
        if mode & RUN_HEAD:
            self._pick(step, mode)

    def _pick(self, step: StepInput, mode: int) -> None:
        logits = self.model.head(self.hidden).float()
        if self.error[0]:
            logits = torch.randn_like(logits)
        if mode & KEEP_LOGITS:
            self.logits.copy_(logits)
        for row, x in enumerate(logits):
            finite = bool(torch.isfinite(x.max()))
            if mode & USE_MASK and step.constrained[row]:
                x = x.masked_fill(~allowed_tokens(step.mask[row], len(x)), -torch.inf)
            if temperature := float(step.temperatures[row]):
                x = x / temperature + gumbel_noise(len(x), int(step.seeds[row]), int(step.offsets[row]))
            self.tokens[row] = x.argmax() if finite and x.max() > -torch.inf else -1
            if step.lanes[row] >= 0:
                step.last_tokens[step.lanes[row]] = self.tokens[row].clamp_min(0)

    def reset(self) -> None:
        self.resets.append(self.gpu.current[-1])
        self.error[0] = 0


def _masked_sampling(
    logits: Tensor,
    rows: RowParams,
    picks: Picks,
    workspace: object,
    *,
    mask: Tensor | None,
    mask_rows: Tensor | None,
    constrained: Tensor | None,
    hand_over: HandOver | None,
    cuts: bool,
) -> None:
    found = masked_sampling_reference(logits, rows, mask=mask, mask_rows=mask_rows, constrained=constrained)
    picks.tokens[: len(logits)], picks.status[: len(logits)] = found.tokens, found.status
    if hand_over is not None:
        hand_over.last_tokens.index_copy_(0, hand_over.lanes[: len(logits)].long(), found.tokens)
        hand_over.packed[: len(logits)] = found.tokens + (found.status.long() << STATUS_SHIFT)
