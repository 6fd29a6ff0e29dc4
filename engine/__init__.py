"""The engine: token ids in, token ids out. It knows no text, no tokenizer and no HTTP."""

from __future__ import annotations

from structgen.engine.engine import Engine, StepOutput
from structgen.engine.errors import BudgetError, ContextLengthError, EngineError, ModelError, ParameterError
from structgen.engine.llama import LlamaModel
from structgen.engine.logprobs import TokenLogprob
from structgen.engine.model_config import ModelConfig
from structgen.engine.runner import ModelRunner, TorchRunner
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.sequence import Sequence
from structgen.engine.weights import load_model

__all__ = [
    "BudgetError",
    "ContextLengthError",
    "Engine",
    "EngineError",
    "LlamaModel",
    "ModelConfig",
    "ModelError",
    "ModelRunner",
    "ParameterError",
    "SamplingParams",
    "Sequence",
    "StepOutput",
    "TokenLogprob",
    "TorchRunner",
    "load_model",
]
