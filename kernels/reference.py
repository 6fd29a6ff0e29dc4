"""The decode step in plain PyTorch and float32: what the kernel is compared with. Slow on purpose."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from structgen.kernels.model_shape import PAGE_SIZE, ModelShape
from structgen.kernels.packing import ModelWeights


class ReferenceStep:
    """Runs rows one layer at a time over the same paged cache, whose keys and values are bfloat16 here too."""

    def __init__(self, shape: ModelShape, weights: ModelWeights, cos: Tensor, sin: Tensor) -> None:
        self.shape, self.weights, self.cos, self.sin = shape, weights, cos, sin

    @torch.inference_mode()
    def hidden(self, ids: Tensor, positions: Tensor, tables: Tensor, cache: list[Tensor]) -> list[Tensor]:
        """ids, positions int64 [rows], tables [rows, pages] -> the residual [rows, hidden] after each layer.

        Writes the rows' keys and values to the cache.
        """
        x = self.weights.embedding[ids].float()
        residuals = []
        for index in range(self.shape.layers):
            x = self._layer(index, x, positions, tables, cache[index])
            residuals.append(x)
        return residuals

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        x = self._norm(hidden, self.weights.final_norm)
        return torch.cat([x @ part.float().T for part in torch.split(self.weights.head, 16384)], dim=1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight.float(), self.shape.norm_eps)

    def _layer(self, index: int, x: Tensor, positions: Tensor, tables: Tensor, cache: Tensor) -> Tensor:
        layer, shape, rows = self.weights.layers[index], self.shape, len(x)
        qkv = self._norm(x, layer.attention_norm) @ layer.qkv.float().T
        heads = qkv.view(rows, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        queries, keys, values = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        queries, keys = self._rotate(queries, positions), self._rotate(keys, positions)
        pages = tables.gather(1, (positions // PAGE_SIZE)[:, None])[:, 0]
        cache[pages, positions % PAGE_SIZE] = torch.cat([keys, values], dim=1).to(cache.dtype)
        mixed = [
            self._attend(queries[row], int(positions[row]) + 1, tables[row], cache).flatten() for row in range(rows)
        ]
        x = x + torch.stack(mixed) @ layer.output.float().T
        gate, up = (self._norm(x, layer.mlp_norm) @ layer.gate_up.float().T).chunk(2, dim=1)
        return x + (functional.silu(gate) * up) @ layer.down.float().T

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        return x * cos + x.roll(self.shape.head_dim // 2, -1) * sin

    def _attend(self, query: Tensor, length: int, table: Tensor, cache: Tensor) -> Tensor:
        """query [heads, head_dim] -> [heads, head_dim]."""
        kv = self.shape.kv_heads
        tokens = cache[table].view(-1, 2 * kv, self.shape.head_dim)[:length].float()
        keys, values = tokens[:, :kv], tokens[:, kv:]
        query = query.view(kv, self.shape.group, self.shape.head_dim)
        scores = torch.einsum("kgd,tkd->kgt", query, keys) * self.shape.head_dim**-0.5
        return torch.einsum("kgt,tkd->kgd", scores.softmax(-1), values).reshape(self.shape.heads, -1)
