"""The engine: token ids in, token ids out. It knows no text, no tokenizer and no HTTP."""

from __future__ import annotations

from structgen.engine.engine import Engine
from structgen.engine.errors import (
    AdapterError,
    BudgetError,
    ContextLengthError,
    EngineError,
    ModelError,
    ParameterError,
    StepTimeoutError,
)
from structgen.engine.lifecycle import StepOutput
from structgen.engine.llama import LlamaModel
from structgen.engine.logprobs import TokenLogprob
from structgen.engine.lora_files import AdapterWeights
from structgen.engine.metrics import Metrics
from structgen.engine.model_config import ModelConfig
from structgen.engine.runner import ModelRunner
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.sequence import Sequence
from structgen.engine.torch_runner import TorchRunner
from structgen.engine.trace import Trace
from structgen.engine.weights import load_model

__all__ = [
    "AdapterError",
    "AdapterWeights",
    "BudgetError",
    "ContextLengthError",
    "Engine",
    "EngineError",
    "LlamaModel",
    "Metrics",
    "ModelConfig",
    "ModelError",
    "ModelRunner",
    "ParameterError",
    "SamplingParams",
    "Sequence",
    "StepOutput",
    "StepTimeoutError",
    "TokenLogprob",
    "TorchRunner",
    "Trace",
    "load_model",
]
