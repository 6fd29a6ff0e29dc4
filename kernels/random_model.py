"""Models with random weights and a random context: for checks and benchmarks that need sizes, not sense."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.kernels.decoder import DeviceModel, StepInput
from structgen.kernels.model_shape import PAGE_SIZE, ModelShape
from structgen.kernels.packing import LayerWeights, ModelWeights, pack_weights
from structgen.kernels.schedule import Schedule


def random_weights(shape: ModelShape, device: str, scale: float = 0.02) -> ModelWeights:
    """Normal weights, norms around one, a tied head."""
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        for part in torch.split(values, 16384):
            part.copy_(torch.randn(part.shape, generator=generator, device=device) * scale)
        return values

    def norm() -> Tensor:
        return (1 + 0.1 * torch.randn(shape.hidden, generator=generator, device=device)).to(torch.bfloat16)

    layers = tuple(
        LayerWeights(
            qkv=matrix(shape.kv_heads * shape.group_rows, shape.hidden),
            output=matrix(shape.hidden, shape.heads * shape.head_dim),
            gate_up=matrix(2 * shape.intermediate, shape.hidden),
            down=matrix(shape.hidden, shape.intermediate),
            attention_norm=norm(),
            mlp_norm=norm(),
        )
        for _ in range(shape.layers)
    )
    embedding = matrix(shape.vocab_size, shape.hidden)
    return ModelWeights(layers=layers, embedding=embedding, head=embedding, final_norm=norm())


def rotary_tables(shape: ModelShape, context: int, theta: float, device: str) -> tuple[Tensor, Tensor]:
    """cos, sin float32 [context, head_dim]; the first half of sin negated."""
    dim = shape.head_dim
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat([cos, cos], 1).to(device).contiguous(), torch.cat([-sin, sin], 1).to(device).contiguous()


@dataclass
class RandomBench:
    """A model on the device with room for `context` tokens in each of `rows` sequences, their pages shuffled."""

    shape: ModelShape
    model: DeviceModel
    tables: Tensor  # int32 [rows, pages]

    @classmethod
    def build(cls, schedule: Schedule, context: int, rows: int = 8, weights: ModelWeights | None = None) -> RandomBench:
        shape, device = schedule.shape, "cuda"
        weights = weights or random_weights(shape, device)
        pages = -(-context // PAGE_SIZE)
        size = (shape.layers, rows * pages + 1, PAGE_SIZE, 2 * shape.kv_heads, shape.head_dim)
        cache = list(torch.randn(size, device=device).to(torch.bfloat16))
        cos, sin = rotary_tables(shape, context + 1, 500000.0, device)
        norms = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm)]
        model = DeviceModel(
            packed=pack_weights(weights, schedule),
            norms=torch.stack([*norms, weights.final_norm]),
            weights=weights,
            cos=cos,
            sin=sin,
            cache=cache,
        )
        tables = torch.randperm(rows * pages, device=device).to(torch.int32).view(rows, pages)
        return cls(shape, model, tables)

    def step(self, ids: list[int], positions: list[int], tables_of: list[int] | None = None) -> StepInput:
        batch = len(ids)

        def ints(values: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device="cuda")

        return StepInput(
            ids=ints(ids),
            last_tokens=ints([0] * 9, torch.int64),
            lanes=ints(list(range(batch))),
            positions=ints(positions),
            table_of=ints(tables_of or list(range(batch))),
            tables=self.tables,
            mask=torch.full((batch, -(-self.shape.vocab_size // 32)), -1, dtype=torch.int32, device="cuda"),
            constrained=ints([1] * batch, torch.int8),
            temperatures=torch.zeros(batch, device="cuda"),
            seeds=ints([1] * batch, torch.int64),
            offsets=ints([0] * batch, torch.int64),
        )
