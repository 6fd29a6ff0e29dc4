"""The best allowed token of each row on the CPU, in one pass that masks, finds NaN, and looks for the highest logit.

Floats are compared as integers: the bits of one that is not negative order as they are, those of a negative one when
all but the sign are flipped. NaN then stands above infinity or below minus infinity, and comparing takes no notice.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgen.engine.fused_jit import jit
from structgen.engine.sampled import NOT_FINITE, NOTHING_ALLOWED

_WORD = 32
_INFINITY = np.int32(0x7F800000)
_MINUS_INFINITY_BITS = np.int32(-0x800000)
_MINUS_INFINITY = np.int32(-0x7F800001)  # ordered


def best_allowed(logits: Tensor, mask: Tensor, constrained: Items[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """(highest float32, its token int64, status int8), [R] each; of equal logits the first.

    logits float32 [R, V]: those of forbidden tokens become -inf. mask int32 [R, ceil(V / 32)], read where constrained.
    """
    rows = len(logits)
    tokens, status = np.zeros(rows, np.int64), np.zeros(rows, np.int8)
    _best(logits.numpy().view(np.int32), mask.numpy().view(np.uint32), np.array(constrained, np.bool_), tokens, status)
    found = torch.from_numpy(tokens)
    return logits.gather(1, found[:, None])[:, 0], found, torch.from_numpy(status)


@jit
def _ordered(bits: Any) -> Any:
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@jit
def _best(logits: Any, mask: Any, constrained: Any, tokens: Any, status: Any) -> None:
    for row in range(logits.shape[0]):
        lowest, highest = _range(logits[row])
        is_finite = lowest >= _MINUS_INFINITY and _MINUS_INFINITY < highest < _INFINITY
        if constrained[row]:
            highest = _forbid(logits[row], mask[row])
        if not is_finite:
            status[row] = NOT_FINITE
        elif highest <= _MINUS_INFINITY:
            status[row] = NOTHING_ALLOWED
        tokens[row] = _first(logits[row], highest)


@jit
def _range(values: Any) -> Any:
    lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(len(values)):
        key = _ordered(values[i])
        lowest, highest = min(lowest, key), max(highest, key)
    return lowest, highest


@jit
def _forbid(values: Any, mask: Any) -> Any:
    """Write -inf where the mask has no bit; the highest that is left."""
    highest, size = np.int32(-0x80000000), len(values)
    for word in range(size // _WORD):
        bits = mask[word]
        part = values[_WORD * word : _WORD * (word + 1)]
        for i in range(_WORD):
            allowed = np.uint32(bits >> np.uint32(i)) & np.uint32(1)
            part[i] = part[i] if allowed else _MINUS_INFINITY_BITS
            highest = max(highest, _ordered(part[i]))
    for i in range(size // _WORD * _WORD, size):
        if not (mask[i // _WORD] >> np.uint32(i % _WORD)) & np.uint32(1):
            values[i] = _MINUS_INFINITY_BITS
        highest = max(highest, _ordered(values[i]))
    return highest


@jit
def _first(values: Any, highest: Any) -> int:
    for i in range(len(values)):
        if _ordered(values[i]) == highest:
            return i
    return 0
