"""The directory of a GGUF file: its scalar metadata and where each tensor lies. Values are unpacked by `gguf`.

The package's own GGUFReader builds a numpy view for every token of the vocabulary (1.7 s for SmolLM2); the engine has
no use for the vocabulary and steps over it (0.05 s).

Layout (GGUF 2 and 3, little-endian): magic, u32 version, u64 tensor count, u64 pair count, the pairs (string key, u32
type, value), the tensors (string name, u32 n, n x u64 sizes innermost first, u32 type, u64 offset), padding, data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from structgen.engine.errors import ModelError

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
DEFAULT_ALIGNMENT = 32
MOST_DIMENSIONS = 4


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """`shape` is outermost first, as PyTorch has it; `offset` counts bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int


class GGUFFile:
    """`metadata` holds scalars and strings only (arrays are stepped over); `tensors` is by name."""

    def __init__(self, file: Path) -> None:
        try:
            self._data = np.memmap(file, dtype=np.uint8, mode="r")
            header = _Header(self._data.data)
            self.metadata = header.metadata
            self.tensors = {tensor.name: tensor for tensor in header.tensors}
        except (OSError, ValueError, KeyError, OverflowError, struct.error) as problem:
            raise ModelError(
                f"{file.name} cannot be read as GGUF: {problem}", hint="fetch it again; it may be cut short"
            ) from None
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{file.name} has the alignment {alignment!r}", hint="fetch it again; it is damaged")
        self._start = -(-header.end // alignment) * alignment

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values, unpacked, in its shape. KeyError when there is none, ModelError when it is damaged."""
        tensor = self.tensors[name]
        elements = math.prod(tensor.shape)
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        if not elements or tensor.shape[-1] % block:
            raise ModelError(f"{name} [{tensor.shape}] is not made of blocks of {block} ({tensor.kind.name})")
        begin, size = self._start + tensor.offset, elements // block * block_bytes
        packed = self._data[begin : begin + size]
        if len(packed) < size:
            raise ModelError(f"the GGUF file ends inside {name}", hint="fetch it again; it is cut short")
        # The package unpacks 16 rows at a time: 16 long rows instead of thousands of short ones save most of the time.
        rows = next(count for count in (16, 8, 4, 2, 1) if elements // block % count == 0)
        try:
            with np.errstate(all="ignore"):  # a damaged scale may be NaN; whoever generates with it is told
                values = dequantize(np.asarray(packed).reshape(rows, -1), tensor.kind)
        except NotImplementedError:
            raise ModelError(
                f"{name} is quantised as {tensor.kind.name}, which cannot be unpacked",
                hint="use a file quantised as Q8_0, Q4_K_M, F16 or the like",
            ) from None
        return np.require(values, np.float32, ["W", "C"]).reshape(tensor.shape)


class _Header:
    """Reads forward through the header; ValueError or struct.error when it is not one."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.end = data, 4
        if bytes(data[:4]) != b"GGUF":
            raise ValueError("the magic bytes are missing")
        if (version := self._scalar("I")) not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = "it is big-endian, and only little-endian files are read" if swapped in (2, 3) else ""
            raise ValueError(order or f"version {version} is not known (2 and 3 are)")
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key, value = self._string(), self._value(self._scalar("I"))
            if value is not None:
                self.metadata[key] = value
        self.tensors = [self._tensor() for _ in range(tensors)]

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.end)
        self.end += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        self.end += length
        return bytes(self._data[self.end - length : self.end]).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        """A scalar or a string; None for an array, which is stepped over."""
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalar(SCALARS[kind])
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in SCALARS:
            self.end += count * struct.calcsize("<" + SCALARS[inner])
        elif inner == STRING:
            self._skip_strings(count)
        else:
            raise ValueError(f"an array of kind {inner} in the header")
        return None

    def _skip_strings(self, count: int) -> None:
        unpack: Callable[[memoryview, int], tuple[int]] = struct.Struct("<Q").unpack_from
        data, end = self._data, self.end
        for _ in range(count):
            end += 8 + unpack(data, end)[0]
        self.end = end

    def _tensor(self) -> StoredTensor:
        name = self._string()
        if (dimensions := self._scalar("I")) > MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]!r} has {dimensions} dimensions")
        sizes = [self._scalar("Q") for _ in range(dimensions)]
        kind = GGMLQuantizationType(self._scalar("I"))
        return StoredTensor(name=name, shape=tuple(reversed(sizes)), kind=kind, offset=self._scalar("Q"))
