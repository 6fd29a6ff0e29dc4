"""PortableStep: a decode step in plain Triton, one launch a phase; for GPUs without TMA and for Triton's interpreter.

It runs the schedule of the persistent kernel over the same packed weights and buffers: a phase of all programs is one
launch, and the launch's end is the barrier. Picking a token from the logits is masked_sampling's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.kernels.instructions import packed_fields
from structgen.kernels.packing import ModelWeights
from structgen.kernels.portable_sizes import PortableSizes
from structgen.kernels.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class PortableInput:
    """What a step reads, on the device. Rows may follow each other in one sequence."""

    ids: Tensor  # int32 [batch]; -1 - lane means last_tokens[lane]
    last_tokens: Tensor  # int64 [lanes]
    positions: Tensor  # int32 [batch]
    table_of: Tensor  # int32 [batch]: the row's page table
    tables: Tensor  # int32 [tables, max_pages]
    cos: Tensor  # float32 [context, head_dim]
    sin: Tensor  # float32 [context, head_dim], the first half negated


class PortableStep:
    """Owns the buffers of one batch size. `residual` and `middle` alternate with the running number of layers."""

    def __init__(self, schedule: Schedule, packed: Tensor, weights: ModelWeights, cache: Sequence[Tensor]) -> None:
        """packed: of packing.py; cache: a layer [pages, 16, 2 * kv_heads, head_dim]."""
        shape, batch, device = schedule.shape, schedule.batch, packed.device
        self.schedule, self.packed, self.weights, self.cache = schedule, packed, weights, cache
        self.sizes = PortableSizes(schedule, upcast=not packed.is_cuda)
        rows = schedule.packed()
        assert all(len(row) == len(packed_fields()) for row in rows)
        self.table = torch.tensor(rows, dtype=torch.int32, device=device)
        self.residual = torch.zeros(2, batch, shape.hidden, device=device)
        self.middle = torch.zeros(2, batch, shape.hidden, device=device)
        self.qkv = torch.zeros(batch, shape.kv_heads, shape.group_rows, device=device)
        self.neurons = torch.zeros(batch, shape.intermediate, device=device)
        items = (shape.kv_heads, schedule.parts, schedule.batch_slots, shape.group)
        self.partial = torch.zeros(*items, shape.head_dim, device=device)
        self.highest, self.sums = torch.zeros(items, device=device), torch.zeros(items, device=device)
        self.logits = torch.zeros(batch, shape.vocab_size, device=device)
        self.layers_done = 0

    @property
    def hidden(self) -> Tensor:
        """[batch, hidden] after the last layer that was run."""
        return self.residual[(self.layers_done - 1) % 2]

    def run(self, step: PortableInput) -> Tensor:
        """Logits [batch, vocab_size]; enqueued, nothing is waited for."""
        for layer in range(self.schedule.shape.layers):
            for phase in (self.qkv_phase, self.attention_phase, self.output_phase, self.gate_up_phase, self.down_phase):
                phase(layer, step)
            self.layers_done += 1
        self.head_phase(step)
        return self.logits

    # One launch each; `layers_done` counts the layers before this one.

    def qkv_phase(self, layer: int, step: PortableInput) -> None:
        from structgen.kernels.device.portable_dense import qkv_phase

        norm = self.weights.layers[layer].attention_norm
        source, embedded = self._input(layer)
        self._launch(
            qkv_phase, self.packed, source, step.ids, step.last_tokens, norm, self.qkv, layer, EMBEDDED=embedded
        )

    def attention_phase(self, layer: int, step: PortableInput) -> None:
        from structgen.kernels.device.portable_attention import attention_phase

        self._launch(
            attention_phase, self.qkv, self.cache[layer], self.partial, self.highest, self.sums,
            step.positions, step.table_of, step.tables, step.tables.shape[1], step.cos, step.sin,
        )  # fmt: skip

    def output_phase(self, layer: int, step: PortableInput) -> None:
        from structgen.kernels.device.portable_attention import output_phase

        source, embedded = self._input(layer)
        self._launch(
            output_phase, self.packed, self.partial, self.highest, self.sums, source, step.ids, step.last_tokens,
            self.middle[self.layers_done % 2], layer, EMBEDDED=embedded,
        )  # fmt: skip

    def gate_up_phase(self, layer: int, step: PortableInput) -> None:
        from structgen.kernels.device.portable_dense import gate_up_phase

        parity, norm = self.layers_done % 2, self.weights.layers[layer].mlp_norm
        self._launch(
            gate_up_phase, self.packed, self.middle[parity], step.ids, step.last_tokens, norm, self.neurons,
            self.middle[1 - parity], self.residual[1 - parity], self.qkv, layer,
        )  # fmt: skip

    def down_phase(self, layer: int, step: PortableInput) -> None:
        from structgen.kernels.device.portable_dense import down_phase

        parity = self.layers_done % 2
        self._launch(
            down_phase, self.packed, self.neurons, self.middle[parity], step.ids, step.last_tokens,
            self.residual[parity], layer,
        )  # fmt: skip

    def head_phase(self, step: PortableInput) -> None:
        from structgen.kernels.device.portable_dense import head_phase

        norm = self.weights.final_norm
        self._launch(head_phase, self.packed, self.hidden, step.ids, step.last_tokens, norm, self.logits)

    def _input(self, layer: int) -> tuple[Tensor, bool]:
        """What the layer starts from, and whether that is the embedding."""
        if layer == 0:
            return self.weights.embedding, True
        return self.residual[(self.layers_done - 1) % 2], False

    def _launch(self, kernel: Callable[..., object], *arguments: object, **constants: object) -> None:
        kernel[(self.schedule.programs,)](self.table, *arguments, **constants, cfg=self.sizes, num_warps=4)  # type: ignore[index]
