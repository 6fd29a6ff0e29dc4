"""A tiny random model for tests of the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from structgen.engine import ModelConfig

CONFIG = ModelConfig(vocab_size=90, hidden=48, intermediate=96, layers=2, heads=6, kv_heads=2, head_dim=8, context=1024)


class RandomWeights:
    """A WeightSource that makes up each tensor when it is asked for."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(11)

    def get(self, name: str) -> Tensor:
        hidden, wide, narrow = CONFIG.hidden, CONFIG.heads * CONFIG.head_dim, CONFIG.kv_heads * CONFIG.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (CONFIG.vocab_size, hidden),
            "lm_head": (CONFIG.vocab_size, hidden),
            "q_proj": (wide, hidden),
            "k_proj": (narrow, hidden),
            "v_proj": (narrow, hidden),
            "o_proj": (hidden, wide),
            "gate_proj": (CONFIG.intermediate, hidden),
            "up_proj": (CONFIG.intermediate, hidden),
            "down_proj": (hidden, CONFIG.intermediate),
        }
        shape = shapes.get(name.split(".")[-2], (hidden,))
        return torch.randn(shape, generator=self._generator) * 0.4

    def has(self, name: str) -> bool:
        return name != "rope_factors"
