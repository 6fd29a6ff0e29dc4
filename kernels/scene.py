"""Scene: a random model and one step of it, on which kernels are compared; and what the interpreter makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.kernels.interpreter import Interpreter, Rows
from structgen.kernels.model_shape import PAGE_SIZE, ModelShape
from structgen.kernels.packing import ModelWeights, pack_weights
from structgen.kernels.random_model import random_weights, rotary_tables
from structgen.kernels.schedule import Schedule

Values = Mapping[str, Tensor]
"""What a layer leaves behind, each [batch, ...]:

appended    the rows' keys (rotated) and values, where Attention put them in the cache
attended    the output of attention, merged
middle      the input of the MLP
neurons     silu(gate) * up
residual    the layer's result
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A random model and one step of it: row r is token `positions[r]` of its own sequence."""

    schedule: Schedule
    weights: ModelWeights
    packed: Tensor
    cache: Sequence[Tensor]  # a layer [pages, 16, 2 * kv_heads, head_dim]
    ids: Tensor  # int64 [batch]
    positions: Tensor  # int64 [batch]
    tables: Tensor  # int64 [batch, pages]
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(cls, shape: ModelShape, batch: int, context: int, processors: int, device: str, seed: int) -> Scene:
        """Row r has `context` - r tokens, its own included; the cache is random."""
        random = torch.Generator().manual_seed(seed)
        schedule = Schedule.build(shape, batch, processors)
        weights = random_weights(shape, device)
        pages = -(-context // PAGE_SIZE)
        size = (batch * pages, PAGE_SIZE, 2 * shape.kv_heads, shape.head_dim)
        cache = [torch.randn(size, generator=random).bfloat16().to(device) for _ in range(shape.layers)]
        cos, sin = rotary_tables(shape, context, 500000.0, device)
        return cls(
            schedule=schedule,
            weights=weights,
            packed=pack_weights(weights, schedule),
            cache=cache,
            ids=torch.randint(0, shape.vocab_size, (batch,), generator=random).to(device),
            positions=torch.tensor([max(context - 1 - row, 0) for row in range(batch)], device=device),
            tables=torch.randperm(batch * pages, generator=random).view(batch, pages).to(device),
            cos=cos,
            sin=sin,
        )

    @property
    def layers(self) -> int:
        return self.schedule.shape.layers

    def appended(self, cache: Sequence[Tensor], layer: int) -> Tensor:
        """Keys and values of the rows' own tokens, [batch, 2 * kv_heads, head_dim]."""
        pages = self.tables.gather(1, (self.positions // PAGE_SIZE)[:, None])[:, 0]
        return cache[layer][pages, self.positions % PAGE_SIZE].float()


def interpreted(scene: Scene) -> tuple[list[Values], Tensor]:
    """What each layer leaves behind, and the logits."""
    cache = [layer.clone() for layer in scene.cache]
    interpreter = Interpreter(scene.schedule, scene.weights, cache, check=False)
    rows = Rows(ids=scene.ids, positions=scene.positions, tables=scene.tables, cos=scene.cos, sin=scene.sin)
    programs = range(scene.schedule.programs)
    left: list[Values] = []
    for layer in range(scene.layers):
        for instructions in zip(*(scene.schedule.layer_instructions(p, layer) for p in programs), strict=True):
            for program, instruction in enumerate(instructions):
                interpreter.execute(program, instruction, rows)
        attended = [interpreter.attended(row).flatten() for row in range(scene.schedule.batch)]
        left.append(
            {
                "appended": scene.appended(cache, layer),
                "attended": torch.stack(attended),
                "middle": interpreter.middle[layer % 2].clone(),
                "neurons": interpreter.neurons.clone(),
                "residual": interpreter.residual[layer % 2].clone(),
            }
        )
    for program in programs:
        *_, head = scene.schedule.instructions(program)
        interpreter.execute(program, head, rows)
    return left, interpreter.logits
