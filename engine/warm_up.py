"""Compile the fused step ahead, into the disk cache, so that no request waits for it."""

from __future__ import annotations

import torch

from structgen.engine.engine import Engine
from structgen.engine.llama import LlamaModel
from structgen.engine.made_up_weights import MadeUpWeights
from structgen.engine.model_config import ModelConfig
from structgen.engine.sampling_params import SamplingParams

TINY = ModelConfig(
    vocab_size=64, hidden=32, intermediate=64, layers=1, heads=2, kv_heads=1, head_dim=16, context=64, tied_head=True
)


def warm_up() -> None:
    """Takes some 5 seconds the first time after an installation; nothing where the compiled step is not used."""
    engine = Engine(LlamaModel(TINY, MadeUpWeights(TINY, torch.ones), "int8"), max_batch=1)
    engine.submit([1], SamplingParams(max_tokens=2))
    while engine.has_work:
        engine.step()
