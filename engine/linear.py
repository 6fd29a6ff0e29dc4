"""Weight matrices as callables: x [tokens, in] -> [tokens, out], dense or with 8-bit weights."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

# Up to so many tokens the packed 8-bit product wins; above, unpacking the matrix once costs less (README, cost model).
PACKED_TOKENS = 24
# The packed product reads its inputs in pieces of so many elements; a width with a rest makes it read past their end.
PACKED_WIDTH = 16
_ROWS_AT_ONCE = 512


class Linear(Protocol):
    """`rows` is the output width."""

    rows: int

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """A plain matrix [out, in] in the model's own type."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous()
        self.rows = weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Int8Linear:
    """8-bit weights with one scale a row; activations stay bfloat16, so no token's rounding depends on another's.

    weight [out, in] int8, scale [out] bfloat16. A row's scale is rounded *up* to bfloat16 before the weights are
    divided by it: the product then has no error from the scale's own rounding, and nothing leaves -127..127.
    """

    def __init__(self, weight: Tensor, scratch: Scratch) -> None:
        self.rows = weight.shape[0]
        self.scale = torch.empty(self.rows, dtype=torch.bfloat16)
        self.weight = torch.empty(weight.shape, dtype=torch.int8)
        for first in range(0, self.rows, _ROWS_AT_ONCE):  # blocks that fit the cache: a large matrix packs 5x faster
            block = slice(first, first + _ROWS_AT_ONCE)
            rows = weight[block].float()
            scale = _bfloat16_at_least(torch.linalg.vector_norm(rows, torch.inf, dim=1).clamp_min(1e-12) / 127)
            self.scale[block] = scale
            self.weight[block] = (rows / scale.float()[:, None]).round_()
        self._packed_tokens = 0 if weight.shape[1] % PACKED_WIDTH else PACKED_TOKENS
        self._scratch = scratch
        scratch.reserve(self.weight.numel())

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= self._packed_tokens:
            return torch._weight_int8pack_mm(x, self.weight, self.scale)
        return functional.linear(x, self._scratch.unpack(self.weight)).mul_(self.scale)


class Scratch:
    """One bfloat16 buffer, as large as the largest matrix, that all Int8Linear of a model unpack into."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.bfloat16)

    def reserve(self, elements: int) -> None:
        if elements > self._buffer.numel():
            self._buffer = torch.empty(elements, dtype=torch.bfloat16)

    def unpack(self, weight: Tensor) -> Tensor:
        """[out, in] int8 as bfloat16, valid until the next call."""
        return self._buffer[: weight.numel()].view_as(weight).copy_(weight)


def _bfloat16_at_least(values: Tensor) -> Tensor:
    rounded = values.to(torch.bfloat16)
    above = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.float() < values, above, rounded)
