"""RandomStream: one request's random numbers, each bound to a position of its output."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

WORD = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, made odd
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's multipliers


class RandomStream:
    """Uniform numbers in [0, 1) by position: SplitMix64 (Steele, Lea and Flood, 2014), started where the seed says.

    The number of a position does not depend on which positions were asked before, so tokens that need no draw (forced
    ones), other requests and a second attempt at a step shift nothing. Streams of one seed are independent of each
    other, and so are those of neighbouring seeds: numpy's SeedSequence spreads (seed, stream) over 64 bits.
    """

    def __init__(self, seed: int | None, stream: int = 0) -> None:
        """Without a seed the system's entropy starts the stream. Seeds count modulo 2^64."""
        entropy = None if seed is None else seed & WORD
        (start,) = np.random.SeedSequence(entropy, spawn_key=(stream,)).generate_state(1, np.uint64)
        self.start = int(start)

    def at(self, position: int) -> float:
        """The number of the output's token at `position`, with 53 random bits."""
        word = (self.start + (position + 1) * STEP) & WORD
        word = ((word ^ (word >> 30)) * FIRST) & WORD
        word = ((word ^ (word >> 27)) * SECOND) & WORD
        return ((word ^ (word >> 31)) >> 11) * 2.0**-53


def bits_at(starts: npt.NDArray[np.uint64], positions: Items[int]) -> npt.NDArray[np.uint64]:
    """The 53 random bits of `RandomStream.at`, of many streams together: uint64 [R] of their starts [R]."""
    word = np.array(positions, dtype=np.uint64)
    word += np.uint64(1)
    word *= np.uint64(STEP)
    word += starts
    word ^= word >> np.uint64(30)
    word *= np.uint64(FIRST)
    word ^= word >> np.uint64(27)
    word *= np.uint64(SECOND)
    word ^= word >> np.uint64(31)
    word >>= np.uint64(11)
    return word
