"""Pipeline: the steps in flight and the sequences they hold. Plain Python; it does not know what a step computes.

    free slot --launch--> in flight (its sequences: inflight_refs + 1) --commit--> free slot (inflight_refs - 1)

A sequence that finishes while a step in flight still holds it is a zombie: final for the user, its rows ignored, its
pages kept. `commit` hands it back for release when the last such step is through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Generic, TypeVar

from structgen.engine.sequence import Sequence

Slot = TypeVar("Slot")


class Pipeline(Generic[Slot]):
    """One slot a step in flight: depth 1 is the serial loop, depth 2 launches a step before the last is committed."""

    def __init__(self, slots: Items[Slot]) -> None:
        self.depth = len(slots)
        self._free = deque(slots)
        self._flight: deque[tuple[Slot, tuple[Sequence, ...]]] = deque()

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def empty(self) -> bool:
        return not self._flight

    @property
    def oldest(self) -> Slot:
        return self._flight[0][0]

    def reserve(self) -> Slot:
        """The slot that the next `launch` will take; its buffers may be filled."""
        return self._free[0]

    def launch(self, sequences: Iterable[Sequence]) -> None:
        held = tuple(sequences)
        for sequence in held:
            sequence.inflight_refs += 1
        self._flight.append((self._free.popleft(), held))

    def commit(self) -> list[Sequence]:
        """The oldest step is through: free its slot. Returns its finished sequences that no other step holds."""
        slot, held = self._flight.popleft()
        for sequence in held:
            sequence.inflight_refs -= 1
        self._free.append(slot)
        return [sequence for sequence in held if sequence.finished and sequence.inflight_refs == 0]

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every slot is free or in flight once, and refs are the rows in flight."""
        assert len(self._free) + len(self._flight) == self.depth, "a slot is lost"
        held = [sequence for _, step in self._flight for sequence in step]
        for sequence in {*sequences, *held}:
            assert sequence.inflight_refs == held.count(sequence), f"{sequence} has wrong references"
