"""AdapterTable: the tensors of all loaded LoRA adapters, and the product that adds each token's own to a step.

S slots, R = the largest rank, N tokens. A step's input names a slot for each token; slot 0 is the model as it is.
The matrices that `Layer` fuses (q, k, v and gate, up) have one pair here as well: the parts' A matrices below one
another, and B with each part's rows where that part's outputs are, zero elsewhere. So a fused matrix takes two products
however many of its parts an adapter changes.

    a [S + 1, P * R, in]    b [S + 1, P * R, out], transposed, so that [S * P * R, out] is one matrix too

Rows beyond an adapter's rank are zero. All sizes are fixed and slots are device data, so a captured graph serves every
mix of adapters, loaded or not when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.lora_files import AdapterWeights, target_sizes
from structgen.engine.model_config import ModelConfig

FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
# (layer, fused matrix, its input [N, in], its output [N, out]): adds each token's low-rank product to the output.
AddDelta = Callable[[int, str, Tensor, Tensor], None]


@dataclass(frozen=True)
class Stack:
    """One fused matrix of one layer, all slots."""

    a: Tensor  # [S + 1, P * R, in]
    b: Tensor  # [S + 1, P * R, out]


class AdapterTable:
    """Made for one model's sizes, type and device. Slots are filled and emptied between steps, never reshaped."""

    def __init__(
        self, config: ModelConfig, *, slots: int, max_rank: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.slots, self.max_rank = slots, max_rank
        self.device = torch.device(device)
        self._config = config
        sizes = target_sizes(config)
        self._stacks: dict[str, list[Stack]] = {}
        self._rows: dict[str, list[int]] = {}  # of each slot: rows in use, in the layer that uses most
        for fused, parts in FUSED.items():
            shape = (slots + 1, len(parts) * max_rank)
            widths = sizes[parts[0]][1], sum(sizes[part][0] for part in parts)
            self._stacks[fused] = [
                Stack(*(_zeros((*shape, width), dtype, self.device) for width in widths)) for _ in range(config.layers)
            ]
            self._rows[fused] = [0] * (slots + 1)
        self._numbers = torch.arange(1, slots + 1, device=self.device)

    def load(self, slot: int, weights: AdapterWeights) -> None:
        """Write an adapter into a slot that no step in flight names. ModelError when its rank is above `max_rank`."""
        assert 1 <= slot <= self.slots
        if weights.rank > self.max_rank:
            raise ModelError(
                f"the adapter's rank is {weights.rank}; at most {self.max_rank} fits",
                hint=f"start with max_lora_rank={weights.rank}",
            )
        self.clear(slot)
        layers = range(self._config.layers)
        for fused, parts in FUSED.items():
            ranks = [[weights.rank_of(layer, part) for part in parts] for layer in layers]
            self._rows[fused][slot] = max(map(sum, ranks))  # first, so that `clear` undoes a load that breaks off
            for layer in layers:
                self._load(fused, layer, slot, weights)

    def clear(self, slot: int) -> None:
        """Zero what the slot's last adapter wrote."""
        for fused, stacks in self._stacks.items():
            used = self._rows[fused][slot]
            for stack in stacks:
                stack.a[slot, :used] = 0
                stack.b[slot, :used] = 0
            self._rows[fused][slot] = 0

    def bind(self, slots: Tensor) -> AddDelta:
        """The product for one step, whose tokens use `slots` [N] (int64, on the table's device)."""
        if self.device.type == "cpu":
            return self._grouped(slots)
        return self._gathered(slots) if len(slots) <= self.slots // 2 else self._masked(slots)

    def _load(self, fused: str, layer: int, slot: int, weights: AdapterWeights) -> None:
        stack, sizes = self._stacks[fused][layer], target_sizes(self._config)
        row = column = 0
        for part in FUSED[fused]:
            out = sizes[part][0]
            pair = weights.pairs.get((layer, part))
            if pair is not None:
                rank = len(pair.a)
                stack.a[slot, row : row + rank] = pair.a.to(stack.a)
                stack.b[slot, row : row + rank, column : column + out] = pair.b.T.to(stack.b)
                row += rank
            column += out

    # -- three ways to the same sums ----------------------------------------------------------------------------------

    def _grouped(self, slots: Tensor) -> AddDelta:
        """One pair of small products for each adapter that is present, over its own tokens and its own rank."""
        found = set(slots.tolist())
        present, everywhere = sorted(found - {0}), len(found) == 1
        tokens = {slot: (slots == slot).nonzero()[:, 0] for slot in present if not everywhere}

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            stack, rows = self._stacks[fused][layer], self._rows[fused]
            for slot in present:
                if not rows[slot]:
                    continue
                a, b = stack.a[slot, : rows[slot]], stack.b[slot, : rows[slot]]
                if everywhere:
                    out.addmm_(x @ a.T, b)
                else:
                    out.index_add_(0, tokens[slot], (x.index_select(0, tokens[slot]) @ a.T) @ b)

        return add

    def _gathered(self, slots: Tensor) -> AddDelta:
        """Each token's own matrices, copied together: for fewer tokens than slots. No value is read on the host."""

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            stack = self._stacks[fused][layer]
            inner = torch.bmm(stack.a.index_select(0, slots), x[:, :, None])
            out.add_(torch.bmm(inner.transpose(1, 2), stack.b.index_select(0, slots))[:, 0])

        return add

    def _masked(self, slots: Tensor) -> AddDelta:
        """All slots' A as one matrix; what is not the token's own becomes zero; then all slots' B as one matrix.

        Nothing leaks between tokens: an overflow of another slot's product is replaced, not multiplied by zero, and
        the weights themselves are finite.
        """
        others = (slots[:, None] != self._numbers)[:, :, None]

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            stack = self._stacks[fused][layer]
            a, b = stack.a[1:].flatten(0, 1), stack.b[1:].flatten(0, 1)
            inner = (x @ a.T).view(len(x), self.slots, -1).masked_fill_(others, 0)
            out.addmm_(inner.flatten(1), b)

        return add


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU such zeros that the system maps on first use: empty slots and unused ranks cost no memory."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    *outer, last = shape
    return torch.from_numpy(np.zeros((*outer, last * dtype.itemsize), dtype=np.uint8)).view(dtype)
