"""The same model as people run it: torch.compile of each block, the whole step in one CUDA graph, a static cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from structgen.kernels.bench_timing import replay_milliseconds
from structgen.kernels.model_shape import LLAMA_1B, ModelShape
from structgen.kernels.packing import LayerWeights, ModelWeights

CONTEXT = 256


def compiled_milliseconds(weights: ModelWeights, shape: ModelShape = LLAMA_1B) -> float:
    """ms of a step of one row: embedding, all layers, head and argmax."""
    step = _Step(weights, shape)
    with torch.inference_mode():
        return replay_milliseconds(step, steps=5)


class _Step:
    def __init__(self, weights: ModelWeights, shape: ModelShape) -> None:
        self.weights = weights
        cache = (shape.layers, 2, 1, shape.kv_heads, CONTEXT, shape.head_dim)
        self.cache = torch.zeros(cache, dtype=torch.bfloat16, device="cuda")
        self.position = torch.tensor([127], device="cuda")
        self.token = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.angles = torch.randn(2, shape.head_dim, device="cuda").to(torch.bfloat16)
        self.block = torch.compile(_block_of(shape), dynamic=False, fullgraph=True)
        self.head = torch.compile(_head, dynamic=False, fullgraph=True)

    def __call__(self) -> None:
        x = functional.embedding(self.token, self.weights.embedding)
        for layer, cache in zip(self.weights.layers, self.cache, strict=True):
            x = self.block(x, cache, self.position, self.angles, *_tensors(layer))
        self.token.copy_(self.head(x, self.weights.final_norm, self.weights.head))


def _tensors(layer: LayerWeights) -> tuple[Tensor, ...]:
    return layer.attention_norm, layer.qkv, layer.output, layer.mlp_norm, layer.gate_up, layer.down


def _block_of(shape: ModelShape) -> Callable[..., Tensor]:
    queries, keys, dim = shape.heads, shape.heads + shape.kv_heads, shape.head_dim

    def block(x: Tensor, cache: Tensor, position: Tensor, angles: Tensor, *weights: Tensor) -> Tensor:
        attention_norm, qkv_weight, output, mlp_norm, gate_up, down = weights
        qkv = functional.linear(functional.rms_norm(x, attention_norm.shape, attention_norm), qkv_weight)
        heads = qkv.view(1, -1, 1, dim)
        turned = heads[:, :keys]
        turned = turned * angles[0] + turned.roll(dim // 2, -1) * angles[1]
        cache[0].index_copy_(2, position, turned[:, queries:])
        cache[1].index_copy_(2, position, heads[:, keys:])
        visible = (torch.arange(CONTEXT, device="cuda") <= position)[None, None, None, :]
        mixed = functional.scaled_dot_product_attention(
            turned[:, :queries], cache[0], cache[1], attn_mask=visible, enable_gqa=True
        )
        x = x + functional.linear(mixed.reshape(1, -1), output)
        gate, up = functional.linear(functional.rms_norm(x, mlp_norm.shape, mlp_norm), gate_up).chunk(2, dim=1)
        return x + functional.linear(functional.silu(gate) * up, down)

    return block


def _head(x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(functional.rms_norm(x, norm.shape, norm), weight).argmax(1)
