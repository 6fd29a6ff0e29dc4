"""Decoder: the buffers of the decode-step kernel for one model and batch size, and its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from structgen.kernels.packing import ModelWeights
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes

RUN_LAYERS, RUN_HEAD, USE_MASK, KEEP_LOGITS = 1, 2, 4, 8
TRACE_POINTS = 16
COUNTER_STRIDE = 16  # int32: each counter has a cache line of its own
SPARSE_LIMIT = 2048  # allowed tokens, all rows together, up to which only their rows of the head are read


class KernelTimeout(RuntimeError):
    """A program waited too long for another one; the step's results are void and the buffers have been reset."""


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """What a step reads, on the device. Row r of the batch is one token; rows may follow each other in one sequence."""

    ids: Tensor  # int32 [batch]; -1 - lane means last_tokens[lane]
    last_tokens: Tensor  # int64 [lanes]: the token each lane sampled last; written too
    lanes: Tensor  # int32 [batch]: where in last_tokens the row's new token goes, -1 for nowhere
    positions: Tensor  # int32 [batch]
    table_of: Tensor  # int32 [batch]: the row's page table
    tables: Tensor  # int32 [tables, max_pages]
    mask: Tensor  # int32 [batch, ceil(vocab / 32)], bit 1 = allowed
    constrained: Tensor  # int8 [batch]: 0 means that the row's mask is ignored
    temperatures: Tensor  # float32 [batch]; 0 is greedy
    seeds: Tensor  # int64 [batch]
    offsets: Tensor  # int64 [batch]: which draw of the seed's stream

    @classmethod
    def free(cls, ids: Tensor, positions: Tensor, tables: Tensor, vocab_size: int) -> StepInput:
        """Greedy rows without a mask, row r with page table r, whose tokens go to no lane; on the device of `ids`."""
        batch, device = len(ids), ids.device

        def full(value: int, dtype: torch.dtype, *size: int) -> Tensor:
            return torch.full(size or (batch,), value, dtype=dtype, device=device)

        return cls(
            ids=ids.int(),
            last_tokens=full(0, torch.int64),
            lanes=full(-1, torch.int32),
            positions=positions.int(),
            table_of=torch.arange(batch, dtype=torch.int32, device=device),
            tables=tables.int(),
            mask=full(-1, torch.int32, batch, -(-vocab_size // 32)),
            constrained=full(0, torch.int8),
            temperatures=full(0, torch.float32),
            seeds=full(0, torch.int64),
            offsets=full(0, torch.int64),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceModel:
    """A model's weights as the kernel reads them; shared by the decoders of all batch sizes."""

    packed: Tensor  # see packing.py
    norms: Tensor  # bfloat16 [2 * layers + 1, hidden]: before attention and MLP of each layer, then the last one
    weights: ModelWeights
    cos: Tensor  # float32 [context, head_dim]
    sin: Tensor  # float32 [context, head_dim]; the first half negated
    cache: Sequence[Tensor]  # a layer: bfloat16 [pages, 16, 2 * kv_heads, head_dim]


class Decoder:
    """Owns the scratch memory of one batch size. One step at a time; steps follow each other in a stream."""

    def __init__(self, schedule: Schedule, model: DeviceModel, **sizes: Any) -> None:
        from structgen.kernels.device.decode_step import decode_step

        self.schedule, self.model = schedule, model
        self.sizes = StepSizes(schedule, **sizes)
        self._kernel = decode_step
        shape, own, device = schedule.shape, self.sizes, model.packed.device
        self._device = device
        self.table = torch.tensor(schedule.packed(), dtype=torch.int32, device=device)
        parts = shape.kv_heads * schedule.parts * schedule.batch_slots * shape.group
        self.state = self._zeros(3, torch.int32)  # layer passes, launches and steps of resident loops done
        self.counters = self._zeros(schedule.counters() * COUNTER_STRIDE, torch.int32)
        self.gates = self._zeros(5 * COUNTER_STRIDE, torch.int32)  # see device/mailbox.py
        size = (own.planes, own.batch_tile, shape.hidden)
        self.residuals = self._zeros(prod(size)).view(size)
        copies = own.qkv_parts * (2 if own.relayed else 1)
        self.qkv = self._zeros(copies * schedule.batch * shape.kv_heads * own.qkv_stride)
        # Flagged values are pairs of words; behind the neurons then lie the partial sums of Down.
        relays = shape.kv_heads * shape.hidden if own.relayed else 0
        width = 2 if own.relayed else 1
        self.neuron_words = self._zeros((schedule.batch * shape.intermediate + relays) * width).view(-1, width)
        self.neurons = self.neuron_words[: schedule.batch * shape.intermediate, 0]
        self.partial = self._zeros(2 * own.layer_part_values if own.polled_parts else parts * shape.head_dim)
        self.partial_max, self.partial_sum = self._zeros(parts), self._zeros(parts)
        self.best_scores = self._zeros(schedule.programs * own.batch_tile)
        self.best_tokens = self._zeros(schedule.programs * own.batch_tile, torch.int32)
        self.decisions = self._zeros(schedule.programs, torch.int32)
        # Tokens and error in one piece, so that one copy brings both to the host.
        self.outcome = self._zeros(schedule.batch + 1, torch.int64)
        self.tokens, self.error = self.outcome[:-1], self.outcome[-1:].view(torch.int32)[:1]
        self.logits = self._zeros(schedule.batch * shape.vocab_size).view(schedule.batch, shape.vocab_size)
        self.trace = self._zeros(schedule.programs * (shape.layers + 1) * TRACE_POINTS, torch.int64)
        self.slot_trace = self._zeros(schedule.programs * 4 * 2048 if own.trace else 1, torch.int64)
        base = model.cache[0].data_ptr()
        offsets = [(layer.data_ptr() - base) // 2 for layer in model.cache]
        steps = {later - earlier for earlier, later in pairwise(offsets)}
        self.cache_stride = steps.pop() if len(steps) == 1 else 0
        self.cache_offsets = torch.tensor(offsets, dtype=torch.int64, device=device)
        self.descriptor = self._weight_descriptor()

    @property
    def scratch(self) -> tuple[Tensor, ...]:
        """Buffers whose content no step relies on; those that are cleared for the next one are not among them."""
        once = () if self.sizes.polled_parts else (self.partial,)
        return (self.logits, self.neurons, self.best_scores, *once)

    def attention_parts(self, layers: int) -> tuple[Tensor, Tensor, Tensor]:
        """What the last of `layers` layers since `reset` left: output [kv_heads, parts, rows, group, head_dim], not
        normalised, maximum and sum. Of a short context of one row there are no parts."""
        schedule, dim = self.schedule, self.schedule.shape.head_dim
        parts = (schedule.shape.kv_heads, schedule.parts, schedule.batch_slots, schedule.shape.group)
        if not self.sizes.polled_parts:
            return self.partial.view(*parts, dim), self.partial_max.view(parts), self.partial_sum.view(parts)
        records = self.partial.view(2, *parts, -1)[(layers - 1) % 2]
        return records[..., :dim], records[..., dim], records[..., dim + 1]

    def _zeros(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(count, dtype=dtype, device=self._device)

    def _weight_descriptor(self) -> Any:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        rows = self.schedule.slot_blocks * 64
        return TensorDescriptor.from_tensor(self.model.packed, [rows, 64], self.sizes.weight_layout)

    def launch(self, step: StepInput, mode: int, sparse_limit: int = SPARSE_LIMIT, layers: int | None = None) -> None:
        """Enqueue a step, or only its layers, or only the head of the last layers that ran, in any order.

        `layers` below all is for tests; it must stay the same until the next `reset`.
        """
        model, weights = self.model, self.model.weights
        self._kernel[(self.schedule.programs,)](
            self.descriptor,
            model.packed,
            self.table,
            self.schedule.shape.layers if layers is None else layers,
            mode,
            self.state,
            self.residuals,
            self.qkv,
            self.neuron_words,
            self.partial,
            self.partial_max,
            self.partial_sum,
            self.counters,
            self.error,
            self.trace,
            self.slot_trace,
            model.norms,
            weights.embedding,
            weights.head,
            model.cache[0],
            self.cache_offsets,
            self.cache_stride,
            model.cos,
            model.sin,
            step.ids,
            step.last_tokens,
            step.positions,
            step.table_of,
            step.tables,
            step.tables.shape[1],
            step.mask,
            step.constrained,
            -1 if mode & KEEP_LOGITS else sparse_limit,
            step.temperatures,
            step.seeds,
            step.offsets,
            self.logits,
            self.best_scores,
            self.best_tokens,
            self.tokens,
            step.lanes,
            self.decisions,
            self.sizes,
            num_warps=4,
            launch_cooperative_grid=True,
        )

    def check(self) -> None:
        """After synchronising: raise KernelTimeout, with the buffers reset, when a step gave up."""
        if self.error.item():
            self.reset()
            raise KernelTimeout("a program of the decode step waited too long for another one")

    def reset(self) -> None:
        buffers = [self.state, self.counters, self.gates, self.error, self.residuals, self.qkv, self.neuron_words]
        for buffer in (*buffers, self.partial):
            buffer.zero_()
