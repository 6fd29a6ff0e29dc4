"""TokenHistory: which logits of a request are edited, and by how much; apply_edits: the edits on the device.

The edit of one logit, in this order: add its bias; then repetition (divide it when positive, multiply it otherwise);
then take off frequency * (times in the output) and presence (when it is in the output at all).
Only tokens that occurred or have a bias are touched: the work grows with the text, not with the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from structgen.engine.sampling_params import SamplingParams

Edits = npt.NDArray[np.float64]  # [4, N]: place (token, or row * V + token), bias, repetition, what is taken off
PLACE, BIAS, REPETITION, TAKEN_OFF = range(4)
FIRST_CAPACITY = 64


class TokenHistory:
    """The tokens of one request that its penalties or its bias touch, counted as they come.

    Prompt tokens matter to the repetition penalty alone. Memory: one column a distinct token.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Iterable[int]) -> None:
        self._params = params
        self._counts: Counter[int] = Counter()  # of the output
        self._column: dict[int, int] = {}
        self._edits: Edits = np.empty((4, FIRST_CAPACITY))
        for token, bias in params.logit_bias.items():
            self._set(token, BIAS, bias)
        if params.repetition_penalty != 1:
            for token in prompt_ids:
                self._set(token, REPETITION, params.repetition_penalty)

    def append(self, token: int) -> None:
        """The output has grown by `token`."""
        params = self._params
        self._counts[token] += 1
        self._set(token, REPETITION, params.repetition_penalty)
        self._set(token, TAKEN_OFF, params.frequency_penalty * self._counts[token] + params.presence_penalty)

    def edits(self) -> Edits:
        """[4, N], one column a distinct token. Read it before the next `append`."""
        return self._edits[:, : len(self._column)]

    def _set(self, token: int, what: int, value: float) -> None:
        """Write into the token's column; a new one edits nothing yet."""
        if token not in self._column:
            at = self._column[token] = len(self._column)
            if at == self._edits.shape[1]:
                self._edits = np.concatenate([self._edits, np.empty_like(self._edits)], axis=1)
            self._edits[:, at] = (token, 0, 1, 0)
        self._edits[what, self._column[token]] = value


def gather_edits(histories: Items[TokenHistory | None], vocab_size: int) -> Edits | None:
    """All rows' edits [4, N] with places in the flattened logits; None when there are none."""
    found = [(row, history.edits()) for row, history in enumerate(histories) if history is not None]
    if not any(edits.size for _, edits in found):
        return None
    together = np.concatenate([edits for _, edits in found], axis=1)
    together[PLACE] += np.repeat([row * vocab_size for row, _ in found], [edits.shape[1] for _, edits in found])
    return together


def apply_edits(logits: Tensor, edits: Tensor) -> None:
    """Edit logits [R, V] (contiguous, float32) in place by edits [4, N] (float64, same device). No synchronisation."""
    flat = logits.view(-1)
    places = edits[PLACE].long()
    bias, repetition, taken_off = edits[1:].float()
    values = flat.index_select(0, places) + bias
    values = torch.where(values > 0, values / repetition, values * repetition) - taken_off
    flat.index_copy_(0, places, values)
