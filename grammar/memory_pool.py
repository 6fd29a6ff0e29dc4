"""Arrays of automata that are gone, kept for the next ones.

Fresh memory costs a page fault every 4 KB, about as much as computing what goes into it; a new grammar would pay that
for every mask. Only arrays that nobody will read any more may be given back; who holds a mask for its identity alone
(engine/mask_residency.py) may hold one whose bits are here.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MAX_BYTES, MAX_ARRAY = 64 << 20, 4 << 20


class MemoryPool:
    """Uninitialised arrays by shape and type. Thread-safe; holds at most `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._free: defaultdict[tuple[tuple[int, ...], type], list[Array]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: type) -> Array:
        """An array of numpy's scalar type `dtype`, with anything in it."""
        with self._lock:
            kept = self._free[shape, dtype]
            if kept:
                array = kept.pop()
                self._bytes -= array.nbytes
                return array
        return np.empty(shape, dtype)

    def give(self, array: Array) -> None:
        """Keep an array for the next who takes one, unless it is very large or many are kept."""
        if array.nbytes > MAX_ARRAY:
            return
        with self._lock:
            if self._bytes + array.nbytes <= self._max_bytes:
                self._bytes += array.nbytes
                self._free[array.shape, array.dtype.type].append(array)


POOL = MemoryPool()
