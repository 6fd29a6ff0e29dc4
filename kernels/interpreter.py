"""Interpreter: the slow twin of the decode-step kernel. Runs the same schedule over the same packed weights in PyTorch.

It keeps the kernel's buffers, on the device of the weights, reads weights only from the program's own stream of slots,
takes the programs in any order that the waits allow, and checks every dependency. Arithmetic is float32. B rows, D
head_dim.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from structgen.kernels.dataflow import carried
from structgen.kernels.dependencies import Dependencies
from structgen.kernels.instructions import Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.model_shape import PAGE_SIZE
from structgen.kernels.packing import ModelWeights, pack_weights
from structgen.kernels.schedule import Schedule
from structgen.kernels.validator import arrivals, waits

Order = Literal["random", "greedy"]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a step reads. Rows may follow each other in one sequence."""

    ids: Tensor  # int64 [B]
    positions: Tensor  # int64 [B]
    tables: Tensor  # int64 [B, pages]: each row's page table
    cos: Tensor  # float32 [context, D]
    sin: Tensor  # float32 [context, D], the first half negated


class Interpreter:
    """Owns the buffers; `residual` and `middle` alternate with the running number of layers, as in the kernel."""

    def __init__(
        self, schedule: Schedule, weights: ModelWeights, cache: Sequence[Tensor], *, check: bool = True
    ) -> None:
        """cache: a layer [pages, 16, 2 * kv_heads, D]; its type is what keys and values are rounded to."""
        shape, batch = schedule.shape, schedule.batch
        self.schedule, self.weights, self.cache = schedule, weights, cache
        self.blocks = pack_weights(weights, schedule).view(-1, 64, 64)
        self.dependencies = Dependencies(schedule) if check else None
        device = self.blocks.device
        self.residual = torch.zeros(2, batch, shape.hidden, device=device)
        self.middle = torch.zeros(2, batch, shape.hidden, device=device)
        self.qkv = torch.zeros(batch, shape.kv_heads, shape.group_rows, device=device)
        self.partial: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}  # (group, item): top, sum, mixed values
        self.neurons = torch.zeros(batch, shape.intermediate, device=device)
        self.logits = torch.zeros(batch, shape.vocab_size, device=device)
        self.layers_done = 0
        self._taken = [0] * schedule.programs  # slots of its stream that a program has read

    @torch.inference_mode()
    def step(self, rows: Rows, *, order: Order = "random", seed: int = 0) -> Tensor:
        """Logits [B, vocab_size] of one decode step. The interleaving of the programs depends on `order` and `seed`.

        AssertionError when a dependency is broken or the programs wait for each other for ever.
        """
        clean = (self.middle[self.layers_done % 2], self.residual[self.layers_done % 2], self.qkv)
        assert not any(buffer.any() for buffer in clean), "a buffer is not clear before the step"
        self.logits.fill_(torch.nan)
        self._taken = [0] * self.schedule.programs
        if self.dependencies:
            self.dependencies.begin()
        for program, instruction in self._interleaved(order, random.Random(seed)):
            if self.dependencies:
                self.dependencies.touch(program, instruction)
            self.execute(program, instruction, rows)
        if self.dependencies:
            self.dependencies.finish()
        self.layers_done += self.schedule.shape.layers
        return self.logits

    @property
    def hidden(self) -> Tensor:
        """[B, hidden] after the last layer of the step that was run."""
        return self.residual[(self.layers_done - 1) % 2]

    def _interleaved(self, order: Order, choice: random.Random) -> Iterator[tuple[int, Instruction]]:
        """random: any program whose wait is over; greedy: the last one that can, as far as it can."""
        arrived: dict[int, int] = defaultdict(int)
        todo = {program: list(self.schedule.instructions(program))[::-1] for program in range(self.schedule.programs)}
        while todo:
            ready = [
                program
                for program, instructions in todo.items()
                if all(arrived[counter] >= count for counter, count in waits(instructions[-1]))
            ]
            assert ready, f"{len(todo)} programs wait for each other for ever"
            program = choice.choice(ready) if order == "random" else ready[-1]
            instruction = todo[program].pop()
            yield program, instruction
            for counter in arrivals(instruction):
                arrived[counter] += 1
            if not todo[program]:
                del todo[program]

    # the instructions

    def execute(self, program: int, instruction: Instruction, rows: Rows) -> None:
        match instruction:
            case Qkv():
                self._qkv(program, instruction, rows)
            case Attention():
                self._attention(instruction, rows)
            case Output():
                self._output(program, instruction, rows)
            case GateUp():
                self._gate_up(program, instruction)
            case Down():
                self._down(program, instruction)
            case Head():
                self._head(program, instruction)

    def _qkv(self, program: int, one: Qkv, rows: Rows) -> None:
        x = self._input(one.layer, rows)
        normed = self._norm(x, self.weights.layers[one.layer].attention_norm)
        for row in range(one.row_begin, one.row_end):
            product = self._product(program, one.layer, normed, one.k_begin, one.k_end)
            self.qkv[:, one.group, row * 64 : row * 64 + 64] += product

    def _attention(self, one: Attention, rows: Rows) -> None:
        shape, batch = self.schedule.shape, self.schedule.batch
        dim, kv = shape.head_dim, shape.kv_heads
        heads = self.qkv[:, one.group].view(batch, shape.group + 2, dim)
        cos, sin = rows.cos[rows.positions][:, None], rows.sin[rows.positions][:, None]
        turned = heads * cos + heads.roll(dim // 2, -1) * sin
        cache = self.cache[one.layer]
        pages = rows.tables.gather(1, (rows.positions // PAGE_SIZE)[:, None])[:, 0]
        cache[pages, rows.positions % PAGE_SIZE, one.group] = turned[:, shape.group].to(cache.dtype)
        cache[pages, rows.positions % PAGE_SIZE, kv + one.group] = heads[:, shape.group + 1].to(cache.dtype)
        for item in range(one.member, one.parts * batch, one.members):
            part, row = divmod(item, batch)
            used = int(rows.positions[row]) // PAGE_SIZE + 1
            share = -(-used // one.parts)
            begin, end = min(part * share, used), min(part * share + share, used)
            tokens = cache[rows.tables[row, begin:end]].flatten(0, 1)[
                : int(rows.positions[row]) + 1 - begin * PAGE_SIZE
            ]
            keys, values = tokens[:, one.group].float(), tokens[:, kv + one.group].float()
            scores = turned[row, : shape.group] @ keys.T * dim**-0.5
            top = scores.amax(1, keepdim=True) if len(tokens) else scores.new_full((shape.group, 1), -torch.inf)
            weights = (scores - top).exp()
            self.partial[one.group, item] = (top, weights.sum(1, keepdim=True), weights @ values)

    def _output(self, program: int, one: Output, rows: Rows) -> None:
        batch = self.schedule.batch
        mixed = torch.stack([self._merged(one.group, row).flatten() for row in range(batch)])
        for row in range(one.row_begin, one.row_end):
            place = slice(row * 64, row * 64 + 64)
            product = self._product(program, one.layer, mixed, one.k_begin, one.k_end)
            if row in carried(self.schedule, one):
                product += self._input(one.layer, rows)[:, place]
            self.middle[self._parity(one.layer)][:, place] += product

    def attended(self, row: int) -> Tensor:
        """[kv_heads, group, D]: what attention gave a row in the layer that was last run."""
        return torch.stack([self._merged(group, row) for group in range(self.schedule.shape.kv_heads)])

    def _merged(self, group: int, row: int) -> Tensor:
        """[group, D] of a row from all parts of its context."""
        batch, parts = self.schedule.batch, range(self.schedule.parts)
        tops, sums, values = zip(*(self.partial[group, part * batch + row] for part in parts), strict=True)
        top = torch.stack(tops).amax(0)
        shrink = [(one - top).exp() for one in tops]
        total = sum((a * b for a, b in zip(sums, shrink, strict=True)), torch.zeros_like(top))
        return sum((a * b for a, b in zip(values, shrink, strict=True)), torch.zeros_like(values[0])) / total

    def _gate_up(self, program: int, one: GateUp) -> None:
        columns, parity = self.schedule.shape.hidden_blocks, self._parity(one.layer)
        x = self.middle[parity]
        for buffer in (self.middle[1 - parity], self.residual[1 - parity], self.qkv):
            buffer.view(-1)[self._share(program, buffer)] = 0
        normed = self._norm(x, self.weights.layers[one.layer].mlp_norm)
        for block in range(one.neuron_begin, one.neuron_end):
            gate, up = (self._product(program, one.layer, normed, 0, columns) for _ in range(2))
            self.neurons[:, block * 64 : block * 64 + 64] = functional.silu(gate) * up

    def _down(self, program: int, one: Down) -> None:
        own = self.neurons[:, one.first_neuron * 64 :]
        for row in range(one.row_begin, one.row_end):
            place = slice(row * 64, row * 64 + 64)
            product = self._product(program, one.layer, own, one.k_begin, one.k_end)
            if row in carried(self.schedule, one):
                product += self.middle[self._parity(one.layer)][:, place]
            self.residual[self._parity(one.layer)][:, place] += product

    def _head(self, program: int, one: Head) -> None:
        shape, stream = self.schedule.shape, self.schedule.stream(program)
        normed = self._norm(self.residual[self._parity(one.layer - 1)], self.weights.final_norm)
        for index in range(one.block_count):
            block = one.block_begin + index * one.block_stride
            first = (stream["head_base"] + block * stream["head_stride"]) * self.schedule.slot_blocks
            weight = self.blocks[first : first + shape.hidden_blocks]
            found = torch.einsum("bkj,kij->bi", normed.view(len(normed), -1, 64), weight.float())
            self.logits[:, block * 64 : block * 64 + 64] = found[:, : max(shape.vocab_size - block * 64, 0)]

    # what they share

    def _product(self, program: int, layer: int, x: Tensor, k_begin: int, k_end: int) -> Tensor:
        """x [B, columns] times the next row of blocks of the program's stream, columns [k_begin, k_end) -> [B, 64]."""
        weight = self._take(program, layer, k_end - k_begin).float()
        return torch.einsum("bkj,kij->bi", x[:, k_begin * 64 : k_end * 64].reshape(len(x), -1, 64), weight)

    def _take(self, program: int, layer: int, count: int) -> Tensor:
        """The next `count` blocks of the program, [count, 64, 64]."""
        stream, size = self.schedule.stream(program), self.schedule.slot_blocks
        assert count % size == 0, "a product ends inside a slot"
        begin = self._taken[program]
        self._taken[program] += count // size
        assert begin // max(stream["layer_slots"], 1) == layer, "the program's stream is out of step with its layer"
        slots = (
            torch.arange(begin, begin + count // size, device=self.blocks.device) * stream["layer_stride"]
            + stream["layer_base"]
        )
        return self.blocks.view(-1, size, 64, 64)[slots].flatten(0, 1)

    def _input(self, layer: int, rows: Rows) -> Tensor:
        """[B, hidden] that a layer starts from."""
        return self.weights.embedding[rows.ids].float() if layer == 0 else self.residual[self._parity(layer - 1)]

    def _share(self, program: int, buffer: Tensor) -> slice:
        size = -(-buffer.numel() // self.schedule.programs)
        return slice(program * size, program * size + size)

    def _parity(self, layer: int) -> int:
        return (self.layers_done + layer) % 2

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight.float(), self.schedule.shape.norm_eps)
