"""Random models for tests of the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from structgen.engine import ModelConfig
from structgen.engine.checked_weights import tensor_shapes
from structgen.engine.made_up_weights import MadeUpWeights

CONFIG = ModelConfig(vocab_size=90, hidden=48, intermediate=96, layers=2, heads=6, kv_heads=2, head_dim=8, context=1024)


def random_weights(seed: int = 11) -> MadeUpWeights:
    generator = torch.Generator().manual_seed(seed)
    return MadeUpWeights(CONFIG, lambda shape: torch.randn(shape, generator=generator) * 0.4)


def random_tensors(config: ModelConfig, *, seed: int, scale: float = 0.3) -> dict[str, Tensor]:
    """By name, as a checkpoint would hold them."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in tensor_shapes(config).items()}
