"""Compile the fused step ahead, into the disk cache, so that no request waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from structgen.engine.engine import Engine
from structgen.engine.llama import LlamaModel
from structgen.engine.model_config import ModelConfig
from structgen.engine.sampling_params import SamplingParams

TINY = ModelConfig(
    vocab_size=64, hidden=32, intermediate=64, layers=1, heads=2, kv_heads=1, head_dim=16, context=64, tied_head=True
)


class _Ones:
    """A WeightSource for any Llama shape."""

    def get(self, name: str) -> Tensor:
        wide, narrow = TINY.heads * TINY.head_dim, TINY.kv_heads * TINY.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (TINY.vocab_size, TINY.hidden),
            "q_proj": (wide, TINY.hidden),
            "k_proj": (narrow, TINY.hidden),
            "v_proj": (narrow, TINY.hidden),
            "o_proj": (TINY.hidden, wide),
            "gate_proj": (TINY.intermediate, TINY.hidden),
            "up_proj": (TINY.intermediate, TINY.hidden),
            "down_proj": (TINY.hidden, TINY.intermediate),
        }
        return torch.ones(shapes.get(name.split(".")[-2], (TINY.hidden,)))

    def has(self, name: str) -> bool:
        return name != "rope_factors"


def warm_up() -> None:
    """Takes some 5 seconds the first time after an installation; nothing where the compiled step is not used."""
    engine = Engine(LlamaModel(TINY, _Ones(), "int8"), max_batch=1)
    engine.submit([1], SamplingParams(max_tokens=2))
    while engine.has_work:
        engine.step()
