"""StepSampling: how the rows of one step are sampled, in columns. What a sequence asks for is the same all its life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from structgen.engine.drawing import LEAST_TEMPERATURE, MOST_TEMPERATURE
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream
from structgen.engine.sampler import IGNORED, RowSampling
from structgen.engine.sampling_params import SamplingParams

LEAST_SHARE = 1e-30  # a top_p that keeps the most likely token alone


def in_float32(params: SamplingParams) -> tuple[float, float, float]:
    """temperature, top_p and min_p: extreme values stay numbers, and mean the same, when they are rounded."""
    temperature = params.temperature and min(max(params.temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE)
    return temperature, max(params.top_p, LEAST_SHARE), params.min_p


MOST_TOP_K = 2**31 - 1
# One row's parameters; `start` is its random stream's, `draws` 0 for greedy rows.
SOURCE = np.dtype(
    [("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4"), ("start", "u8"), ("draws", "u8")]
)


class SamplingSource:
    """One sequence's share of a RowSampling: all of it but the position.

    wants_more  logprobs or edits, besides a token
    cuts        top_k, top_p or min_p
    packed      what the sampler's kernel reads, as octets of a SOURCE
    """

    __slots__ = ("cuts", "greedy", "history", "packed", "params", "random", "wants_more")

    def __init__(self, params: SamplingParams, random: RandomStream, history: TokenHistory | None) -> None:
        self.params, self.random, self.history = params, random, history
        self.greedy = params.greedy
        self.wants_more = history is not None or bool(params.logprobs)
        self.cuts = bool(params.top_k or params.top_p < 1 or params.min_p)
        numbers = *in_float32(params), min(params.top_k, MOST_TOP_K), random.start, not self.greedy
        self.packed = np.array([numbers], dtype=SOURCE).tobytes()

    def at(self, position: int) -> RowSampling:
        """How the output's token at `position` is sampled."""
        return RowSampling(self.params, 0.0 if self.greedy else self.random.at(position), self.history)


NOBODY = SamplingSource(IGNORED.params, RandomStream(0), None)  # for a row whose token nobody waits for


class StepSampling(Sequence[RowSampling]):
    """The rows' sources, and each row's position in its output. As a sequence: the RowSamplings, made when asked for.

    Most steps have the rows of the one before, so what depends on the sources alone is kept as long as they are the
    same ones: compare `sources`, whose members are equal only if they are the same.
    """

    def __init__(self, sources: list[SamplingSource], positions: list[int]) -> None:
        self.sources, self.positions = sources, positions

    @cached_property
    def _rows(self) -> list[RowSampling]:
        return [source.at(position) for source, position in zip(self.sources, self.positions, strict=True)]

    def columns(self) -> npt.NDArray[np.void]:
        """The rows' parameters, an array of SOURCE."""
        return np.frombuffer(b"".join([source.packed for source in self.sources]), dtype=SOURCE)

    def __len__(self) -> int:
        return len(self.sources)

    @overload
    def __getitem__(self, index: int) -> RowSampling: ...

    @overload
    def __getitem__(self, index: slice) -> list[RowSampling]: ...

    def __getitem__(self, index: int | slice) -> RowSampling | list[RowSampling]:
        return self._rows[index]

    def __iter__(self) -> Iterator[RowSampling]:
        return iter(self._rows)
