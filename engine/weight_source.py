"""WeightSource: where a model's tensors come from, under Hugging Face's names without the leading `model.`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Tensors are read one at a time, so that a model is never in memory twice. ModelError for a missing name."""

    def get(self, name: str) -> Tensor: ...

    def has(self, name: str) -> bool: ...


class DictWeights:
    """Weights that are already tensors: tests, random models."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str) -> Tensor:
        return self._tensors[name]

    def has(self, name: str) -> bool:
        return name in self._tensors
