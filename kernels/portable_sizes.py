"""PortableSizes: the compile-time numbers of the plain-Triton phases, from a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from structgen.kernels.instructions import packed_fields
from structgen.kernels.schedule import Schedule


@dataclass(frozen=True)
class PortableSizes:
    """Hashable, so that it can be one constexpr argument.

    `upcast`: Triton's interpreter multiplies bfloat16 by its bits; there the factors of products are float32.
    """

    schedule: Schedule
    upcast: bool

    def field(self, name: str) -> int:
        """Place of a field in a program's row of the packed schedule."""
        return self._fields[name]

    @cached_property
    def _fields(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(packed_fields())}

    @property
    def fields(self) -> int:
        return len(self._fields)

    @property
    def heads_padded(self) -> int:
        """Query heads of a key/value head, up to a power of two."""
        return 1 << (self.schedule.shape.group - 1).bit_length()
