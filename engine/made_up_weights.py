"""MadeUpWeights: a model without a checkpoint, for compiling ahead, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from structgen.engine.checked_weights import tensor_shape
from structgen.engine.model_config import ModelConfig


class MadeUpWeights:
    """A WeightSource that calls `make(shape)` for each tensor, when it is asked for."""

    def __init__(self, config: ModelConfig, make: Callable[[tuple[int, ...]], Tensor]) -> None:
        self._config, self._make = config, make

    def get(self, name: str) -> Tensor:
        shape = tensor_shape(name, self._config)
        assert shape is not None, f"no Llama has {name}"
        return self._make(shape)

    def has(self, name: str) -> bool:
        return name != "rope_factors"
