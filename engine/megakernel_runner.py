"""MegakernelRunner: decode steps of up to eight rows in two launches of one persistent kernel; the rest as CudaRunner.

A step's layers are launched before its mask exists, its head when the mask is there: the head then reads only the rows
of the matrix that some mask allows, where these are few, and picks the tokens itself. Steps with more rows (prefill,
large batches) and rows with adapters are PyTorch's, on the same pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from structgen.engine.cuda_buckets import Bucket
from structgen.engine.cuda_buffers import DeviceSlot
from structgen.engine.cuda_runner import CudaRunner
from structgen.engine.fused_sampler import SEED_RANGE, has_cuts, wants_more
from structgen.engine.llama import LlamaModel
from structgen.engine.megakernel_weights import device_model
from structgen.engine.sampled import NOT_FINITE, NOTHING_ALLOWED, OK
from structgen.engine.step import StepSlot
from structgen.grammar.numba_cache import cache_folder
from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS, USE_MASK, Decoder, KernelTimeout, StepInput
from structgen.kernels.model_shape import ModelShape, UnsupportedShape
from structgen.kernels.proofs import prove_once
from structgen.kernels.schedule import MAX_BATCH, Schedule

HOPPER = (9, 0)
KERNEL_ROWS = (1, 2, 4, 8)  # a step is padded to the next of these
# What a head is launched for: to pick a token, under masks or not, or for the logits alone.
PICK, PICK_MASKED, LOGITS = RUN_HEAD, RUN_HEAD | USE_MASK, RUN_HEAD | KEEP_LOGITS
PARAMETERS = 16 * MAX_BATCH  # octets in front of the masks: seeds, temperatures, constrained, and padding


class KernelRows(NamedTuple):
    """One slot's row parameters and masks for the kernel, as views of one pinned buffer and of its twin on the device.

    `arrived` int64 [MAX_BATCH + 1] is pinned: the tokens of a step's rows, then the kernel's error. `arriving` has the
    part of it for each number of rows.
    """

    host: Tensor
    device: Tensor
    seeds: Tensor
    temperatures: Tensor
    constrained: Tensor
    mask: Tensor
    written: HostRows
    arrived: npt.NDArray[np.int64]
    arriving: dict[int, Tensor]


class HostRows(NamedTuple):
    """The pinned buffer as the host writes it."""

    seeds: npt.NDArray[np.int64]
    temperatures: npt.NDArray[np.float32]
    constrained: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.int32]


class Launched(NamedTuple):
    """Which decoder ran a slot's step, and the rows whose tokens it picked; None when they are picked otherwise."""

    decoder: Decoder
    picked: list[int] | None


class MegakernelRunner(CudaRunner):
    """UnsupportedShape from the constructor when the model or the card is not one that the kernel runs on."""

    def __init__(self, model: LlamaModel, *, max_batch: int, max_context: int | None = None, **options: Any) -> None:
        properties = torch.cuda.get_device_properties(model.device)
        if (properties.major, properties.minor) != HOPPER:
            raise UnsupportedShape(f"the megakernel is made for Hopper GPUs, not for {properties.name}")
        schedules = _schedules(ModelShape.of(model.config), properties.multi_processor_count)
        super().__init__(model, max_batch=max_batch, max_context=max_context, **options)
        if not self._fused:
            raise UnsupportedShape("the megakernel needs Triton")
        weights = device_model(model, self.cache, self.max_context, schedules[0])
        self._decoders = {schedule.batch: Decoder(schedule, weights) for schedule in schedules}
        self._no_offsets = torch.zeros(MAX_BATCH, dtype=torch.int64, device=self.device)
        self._kernel_rows: dict[int, KernelRows] = {}
        self._heads: dict[tuple[int, int, int], torch.cuda.CUDAGraph] = {}
        self._launched: dict[int, Launched] = {}  # by slot
        torch.cuda.synchronize(self.device)  # the weights were packed on the caller's stream

    # -- the forward pass: the layers alone ---------------------------------------------------------------------------

    def _compute_logits(self, bucket: Bucket) -> None:
        decoder = self._decoder(bucket)
        if decoder is None:
            super()._compute_logits(bucket)
        else:
            decoder.launch(self._step(bucket, self._rows_of(0)), RUN_LAYERS)

    def _decoder(self, bucket: Bucket) -> Decoder | None:
        return None if bucket.adapted else self._decoders.get(bucket.count)

    def _step(self, bucket: Bucket, rows: KernelRows) -> StepInput:
        count = bucket.count
        return StepInput(
            ids=bucket.rows.ids,
            last_tokens=self.last_tokens,
            lanes=bucket.rows.outputs,
            positions=bucket.rows.positions,
            table_of=bucket.rows.lanes,
            tables=bucket.tables,
            mask=rows.mask,
            constrained=rows.constrained[:count],
            temperatures=rows.temperatures[:count],
            seeds=rows.seeds[:count],
            offsets=self._no_offsets[:count],
        )

    # -- the head -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def sample(self, slot: StepSlot) -> None:
        bucket: Bucket = slot.input
        decoder = self._decoder(bucket)
        self._launched.pop(slot.index, None)
        if decoder is None:
            return super().sample(slot)
        if slot.rows and not wants_more(slot.sampling) and not has_cuts(slot.sampling):
            return self._pick(slot, self._slots[slot.index], bucket, decoder)
        with self._on_compute:
            if slot.rows:
                self._run_head(slot.index, bucket, decoder, LOGITS)
            self._send_outcome(slot.index, decoder)  # not beside it: most of these steps have no event to wait for
        self._launched[slot.index] = Launched(decoder, None)
        return super().sample(slot)

    def _pick(self, slot: StepSlot, device: DeviceSlot, bucket: Bucket, decoder: Decoder) -> None:
        """Mask, head and choice in one launch; tokens go to their lanes, and all rows' to the host."""
        rows, at = self._rows_of(slot.index), device.staged.sampled_at
        used = self._fill(slot, rows, at, bucket.count)
        with self._on_up:
            rows.device[:used].copy_(rows.host[:used], non_blocking=True)
        device.mask_there.record(self._up)
        self._compute.wait_event(device.mask_there)
        with self._on_compute:
            device.events.sample_begin.record(self._compute)
            self._run_head(slot.index, bucket, decoder, PICK_MASKED if used > PARAMETERS else PICK)
            device.events.sampled.record(self._compute)
        self._down.wait_event(device.events.sampled)
        with self._on_down:
            self._send_outcome(slot.index, decoder)
        device.arrived.record(self._down)
        device.events.samples = True
        self._launched[slot.index] = Launched(decoder, at)

    def _send_outcome(self, slot: int, decoder: Decoder) -> None:
        """Tokens and error to the host, after every launch: one that gave up must not pass for one that did not.

        On the current stream. The next head writes them anew: it is launched when the host has these.
        """
        self._rows_of(slot).arriving[decoder.schedule.batch].copy_(decoder.outcome, non_blocking=True)

    def _fill(self, slot: StepSlot, rows: KernelRows, at: list[int], count: int) -> int:
        """Write parameters and masks where the rows are; how many octets of the buffer the step uses.

        A row that nobody waits for gets a mask that allows nothing, so that it costs the head nothing.
        """
        seeds, temperatures, constrained, masks = rows.written
        seeds[at] = [int(row.uniform * SEED_RANGE) for row in slot.sampling]
        temperatures[at] = [row.params.temperature for row in slot.sampling]
        constrained[:] = 1
        if len(at) < count:
            masks[:count] = 0
        for index, (row, planned) in enumerate(zip(at, slot.rows, strict=True)):
            if planned.void:
                masks[row] = 0
            elif slot.constrained[index]:
                masks[row] = slot.mask_of(index)
            else:
                constrained[row] = 0
        return PARAMETERS + (count * masks.shape[1] * 4 if constrained[:count].any() else 0)

    def _run_head(self, slot: int, bucket: Bucket, decoder: Decoder, mode: int) -> None:
        if self._graphs is None:
            return self._head_work(slot, bucket, decoder, mode)()
        key = slot, bucket.count, mode
        if key not in self._heads:
            self._heads[key] = self._graphs.capture(self._head_work(slot, bucket, decoder, mode))
        return self._heads[key].replay()

    def _head_work(self, slot: int, bucket: Bucket, decoder: Decoder, mode: int) -> Callable[[], None]:
        step = self._step(bucket, self._rows_of(slot))

        def work() -> None:
            decoder.launch(step, mode)
            if mode == LOGITS:
                bucket.logits.copy_(decoder.logits[bucket.rows.sampled_at.long()])

        return work

    @torch.inference_mode()
    def _prepare_slot(self, index: int, rows: int, adapted: bool) -> None:
        super()._prepare_slot(index, rows, adapted)
        bucket = self._bucket(index, rows, adapted)
        decoder = self._decoder(bucket)
        if decoder is not None and self._graphs is not None:
            with self._trying(bucket):
                for mode in (PICK, PICK_MASKED, LOGITS):
                    self._run_head(index, bucket, decoder, mode)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        launched = self._launched.get(slot.index)
        if launched is None:
            return super().wait(slot, seconds)
        self._wait_for(slot, seconds)
        arrived, decoder = self._rows_of(slot.index).arrived, launched.decoder
        if arrived[decoder.schedule.batch]:
            with self._on_compute:  # between steps, as they follow each other there
                decoder.reset()
            raise KernelTimeout("a program of the decode step waited too long for another one")
        if launched.picked is None:
            return self._read(slot)
        tokens = arrived[launched.picked]
        slot.tokens.numpy()[: len(tokens)] = tokens
        status = slot.status.numpy()
        status[: len(tokens)] = OK
        for index in np.flatnonzero(tokens < 0).tolist():
            status[index] = _why_none(slot, index)
        return None

    def _forget(self) -> None:
        super()._forget()
        self._heads.clear()
        self._kernel_rows.clear()

    # -- buffers ------------------------------------------------------------------------------------------------------

    def _rows_of(self, slot: int) -> KernelRows:
        made = self._kernel_rows.get(slot)
        if made is None:
            words = -(-self.vocab_size // 32)
            host = torch.zeros(PARAMETERS + MAX_BATCH * words * 4, dtype=torch.uint8, pin_memory=True)
            arrived = torch.zeros(MAX_BATCH + 1, dtype=torch.int64, pin_memory=True)
            octets, device = host.numpy(), torch.zeros_like(host, device=self.device)
            made = self._kernel_rows[slot] = KernelRows(
                host=host,
                device=device,
                seeds=device[: 8 * MAX_BATCH].view(torch.int64),
                temperatures=device[8 * MAX_BATCH : 12 * MAX_BATCH].view(torch.float32),
                constrained=device[12 * MAX_BATCH : 13 * MAX_BATCH].view(torch.int8),
                mask=device[PARAMETERS:].view(torch.int32).view(MAX_BATCH, words),
                written=HostRows(
                    seeds=octets[: 8 * MAX_BATCH].view(np.int64),
                    temperatures=octets[8 * MAX_BATCH : 12 * MAX_BATCH].view(np.float32),
                    constrained=octets[12 * MAX_BATCH : 13 * MAX_BATCH],
                    masks=octets[PARAMETERS:].view(np.int32).reshape(MAX_BATCH, words),
                ),
                arrived=arrived.numpy(),
                arriving={count: arrived[: count + 1] for count in KERNEL_ROWS},
            )
            torch.cuda.synchronize(self.device)
        return made


@lru_cache(maxsize=8)
def _schedules(shape: ModelShape, programs: int) -> tuple[Schedule, ...]:
    """One for each of KERNEL_ROWS, proven free of races: UnsupportedShape where there is none.

    The first time, a proof takes seconds.
    """
    schedules = tuple(Schedule.build(shape, rows, programs) for rows in KERNEL_ROWS)
    for schedule in schedules:
        prove_once(schedule, cache_folder() / "proofs")
    return schedules


def _why_none(slot: StepSlot, index: int) -> int:
    """The kernel found no token: either the mask allows none, or what it allows is not finite."""
    nothing = slot.constrained[index] and not slot.mask_of(index).any()
    return NOTHING_ALLOWED if nothing else NOT_FINITE
