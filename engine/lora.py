"""AdapterTable: the tensors of all loaded LoRA adapters, and the product that adds each token's own to a step.

S slots, N tokens. A step's input names a slot for each token; slot 0 is the model as it is.
The matrices that `Layer` fuses (q, k, v and gate, up) have one pair here as well: the parts' A matrices below one
another, and B with each part's rows where that part's outputs are, zero elsewhere. So a fused matrix takes two products
however many of its parts an adapter changes.

    a [S + 1, R, in]    b [S + 1, R, out], transposed, so that [S * R, out] is one matrix too

R is as large as the adapters loaded so far needed, the ranks of a matrix's parts added up; rows beyond an adapter's are
zero. While no matrix grows its sizes are fixed, and slots are device data, so a captured graph serves every mix of
adapters, loaded or not when it was captured. Growing moves tensors: graphs are then captured anew (`moves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from structgen.engine.errors import AdapterError, ModelError
from structgen.engine.lora_files import AdapterWeights, LowRank, target_sizes
from structgen.engine.model_config import ModelConfig

FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
# Up to so many tokens float32 products cost the CPU less than bfloat16 ones; from so many rows on it costs less to take
# each part's block of b by itself than to read the zeros between them (README, LoRA).
FLOAT32_TOKENS = 16
SPLIT_ROWS = 96
ROW_UNIT = 8  # R is a multiple of this, which matrix units like
# (layer, fused matrix, its input [N, in], its output [N, out]): adds each token's low-rank product to the output.
AddDelta = Callable[[int, str, Tensor, Tensor], None]


class Block(NamedTuple):
    """A part of a slot's b: which of the inner product's columns it takes, and which of the output's it adds to."""

    inner: slice
    out: slice
    b: Tensor


class View(NamedTuple):
    """What a slot holds of a stack: the rows of `a` in use, and `b` in one block or in one for each part."""

    a: Tensor
    blocks: tuple[Block, ...]

    def of(self, a: Tensor, b: Tensor) -> View:
        """The same view of a slot's tensors that have moved."""
        moved = (Block(block.inner, block.out, b[block.inner, block.out]) for block in self.blocks)
        return View(a[: len(self.a)], tuple(moved))


class Stack:
    """One fused matrix of one layer, all slots; `views` has the slots whose adapter changes it."""

    def __init__(self, slots: int, inner: int, out: int, dtype: torch.dtype, device: torch.device) -> None:
        self.a = torch.zeros(slots + 1, 0, inner, dtype=dtype, device=device)  # [S + 1, R, in]
        self.b = torch.zeros(slots + 1, 0, out, dtype=dtype, device=device)  # [S + 1, R, out]
        self.views: dict[int, View] = {}

    @property
    def rows(self) -> int:
        """R."""
        return self.a.shape[1]

    def grow(self, rows: int) -> None:
        """Room for so many rows a slot, in new tensors. A step that runs goes on with the old ones."""
        a, b = (_grown(tensor, rows, self.views) for tensor in (self.a, self.b))
        self.a, self.b = a, b
        self.views = {slot: view.of(a[slot], b[slot]) for slot, view in self.views.items()}

    def clear(self, slot: int) -> None:
        if slot in self.views:
            used = len(self.views.pop(slot).a)
            self.a[slot, :used] = 0
            self.b[slot, :used] = 0

    def load(self, slot: int, parts: Sequence[tuple[int, LowRank | None]]) -> None:
        """Write each part's pair, given with the part's output width, into a slot that is clear."""
        used = needed_rows(parts)
        if not used:
            return
        a, b = self.a[slot], self.b[slot]
        whole = Block(slice(0, used), slice(None), b[:used])
        self.views[slot] = View(a[:used], (whole,))  # first: `clear` undoes a broken load too
        blocks, row, column = [], 0, 0
        for out, pair in parts:
            if pair is not None:
                rows, columns = slice(row, row + len(pair.a)), slice(column, column + out)
                a[rows] = pair.a.to(a)
                b[rows, columns] = pair.b.T.to(b)
                blocks.append(Block(rows, columns, b[rows, columns]))
                row = rows.stop
            column += out
        if used >= SPLIT_ROWS:
            self.views[slot] = View(a[:used], tuple(blocks))


def needed_rows(parts: Sequence[tuple[int, LowRank | None]]) -> int:
    return sum(len(pair.a) for _, pair in parts if pair is not None)


class AdapterTable:
    """Made for one model's sizes, type and device; on the CPU it keeps float32 whatever the type.

    Slots are filled and emptied between steps. `moves` counts how often tensors were replaced by larger ones.
    """

    def __init__(
        self, config: ModelConfig, *, slots: int, max_rank: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.slots, self.max_rank = slots, max_rank
        self.device = torch.device(device)
        self._config = config
        stored = torch.float32 if self.device.type == "cpu" else dtype
        self.moves = 0
        sizes = target_sizes(config)
        self._stacks = {
            fused: [
                Stack(slots, sizes[parts[0]][1], sum(sizes[part][0] for part in parts), stored, self.device)
                for _ in range(config.layers)
            ]
            for fused, parts in FUSED.items()
        }
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
        sizes = target_sizes(self._config)
        for fused, names in FUSED.items():
            for layer, stack in enumerate(self._stacks[fused]):
                parts = [(sizes[name][0], weights.pairs.get((layer, name))) for name in names]
                self._make_room(stack, needed_rows(parts))
                stack.load(slot, parts)

    def _make_room(self, stack: Stack, rows: int) -> None:
        if rows <= stack.rows:
            return
        try:
            stack.grow(-(-rows // ROW_UNIT) * ROW_UNIT)
        except (MemoryError, torch.OutOfMemoryError):
            raise AdapterError(
                f"there is no memory for an adapter of this rank in each of {self.slots} slots",
                hint="start with fewer max_adapters, or load adapters of a smaller rank",
            ) from None
        self.moves += 1

    def clear(self, slot: int) -> None:
        """Zero what the slot's last adapter wrote."""
        for stacks in self._stacks.values():
            for stack in stacks:
                stack.clear(slot)

    def bind(self, slots: Tensor) -> AddDelta:
        """The product for one step, whose tokens use `slots` [N] (int64, on the table's device)."""
        if self.device.type == "cpu":
            return self._grouped(slots)
        return self._gathered(slots) if len(slots) <= self.slots // 2 else self._masked(slots)

    # -- three ways to the same sums ----------------------------------------------------------------------------------

    def _grouped(self, slots: Tensor) -> AddDelta:
        """One pair of small products for each adapter that is present, over its own tokens and its own rank."""
        counts = Counter(slots.tolist())
        present, everywhere = sorted(set(counts) - {0}), len(counts) == 1
        tokens = {slot: (slots == slot).nonzero()[:, 0] for slot in present if not everywhere}

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            views = self._stacks[fused][layer].views
            for slot in present:
                if slot not in views:
                    continue
                a, blocks = views[slot]
                kind = torch.float32 if counts[slot] <= FLOAT32_TOKENS else x.dtype
                own = x if everywhere else x.index_select(0, tokens[slot])
                inner = functional.linear(own.to(kind), a.to(kind))
                for rows, columns, b in blocks:
                    delta = inner[:, rows] @ b.to(kind)
                    if everywhere:
                        out[:, columns].add_(delta)
                    else:
                        out[:, columns].index_add_(0, tokens[slot], delta.to(out.dtype))

        return add

    def _gathered(self, slots: Tensor) -> AddDelta:
        """Each token's own matrices, copied together: for fewer tokens than slots. No value is read on the host."""

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            stack = self._stacks[fused][layer]
            if not stack.rows:
                return
            a, b = stack.a.index_select(0, slots), stack.b.index_select(0, slots)
            inner = torch.bmm(a, x.to(a.dtype)[:, :, None])
            out.add_(torch.bmm(inner.transpose(1, 2), b)[:, 0])

        return add

    def _masked(self, slots: Tensor) -> AddDelta:
        """All slots' A as one matrix; what is not the token's own becomes zero; then all slots' B as one matrix.

        Nothing leaks between tokens: an overflow of another slot's product is replaced, not multiplied by zero, and
        the weights themselves are finite.
        """
        others = (slots[:, None] != self._numbers)[:, :, None]

        def add(layer: int, fused: str, x: Tensor, out: Tensor) -> None:
            stack = self._stacks[fused][layer]
            if not stack.rows:
                return
            a, b = stack.a[1:].flatten(0, 1), stack.b[1:].flatten(0, 1)
            inner = functional.linear(x.to(a.dtype), a).view(len(x), self.slots, -1).masked_fill_(others, 0)
            out.add_(inner.flatten(1) @ b)

        return add


def _grown(tensor: Tensor, rows: int, used: Iterable[int]) -> Tensor:
    """[S + 1, R, width] with R larger; slots that are not in use, and so are zero, are not touched."""
    slots, before, width = tensor.shape
    grown = _zeros((slots, rows, width), tensor.dtype, tensor.device)
    for slot in used:
        grown[slot, :before] = tensor[slot]
    return grown


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU such zeros that the system maps on first use: empty slots and unused ranks cost no memory."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    *outer, last = shape
    return torch.from_numpy(np.zeros((*outer, last * dtype.itemsize), dtype=np.uint8)).view(dtype)
