"""Pipeline: the steps in flight and the sequences they hold. Plain Python; it does not know what a step computes.

    free slot --launch--> launched --sampled--> sampled --commit--> free slot
                          (its sequences: inflight_refs + 1)         (inflight_refs - 1)

At most `depth` steps are in flight, in the order of their launch, and at most one of them is launched and not yet
sampled: the next launch reads what that one samples. Depth 1 is the serial loop; at depth 2 a step is launched before
the one before it is committed.

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
    """One slot a step in flight."""

    def __init__(self, slots: Items[Slot]) -> None:
        self.depth = len(slots)
        self._free = deque(slots)
        self._flight: deque[tuple[Slot, tuple[Sequence, ...]]] = deque()
        self._sampled = 0  # how many of the oldest steps in flight are sampled

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def empty(self) -> bool:
        return not self._flight

    @property
    def to_sample(self) -> Slot | None:
        """The step that is launched and not yet sampled."""
        return self._flight[-1][0] if self._sampled < len(self._flight) else None

    @property
    def to_commit(self) -> Slot | None:
        """The oldest step, when it is sampled."""
        return self._flight[0][0] if self._sampled else None

    def reserve(self) -> Slot:
        """The slot that the next `launch` will take; its buffers may be filled."""
        return self._free[0]

    def launch(self, sequences: Iterable[Sequence]) -> None:
        assert self._sampled == len(self._flight), "a step is launched only when the one before it is sampled"
        held = tuple(sequences)
        for sequence in held:
            sequence.inflight_refs += 1
        self._flight.append((self._free.popleft(), held))

    def sampled(self) -> None:
        assert self._sampled == len(self._flight) - 1
        self._sampled += 1

    def commit(self) -> list[Sequence]:
        """The oldest step is through: free its slot. Returns its sequences that no other step holds."""
        assert self._sampled, "a step is committed only when it is sampled"
        self._sampled -= 1
        return self._free_slot(*self._flight.popleft())

    def discard(self) -> list[Sequence]:
        """Forget the newest step: its results are worthless. Returns its sequences that no other step holds.

        The caller sees to it that nothing runs any more that reads the slot's buffers when it is launched again.
        """
        self._sampled = min(self._sampled, len(self._flight) - 1)
        return self._free_slot(*self._flight.pop())

    @property
    def newest(self) -> Slot:
        return self._flight[-1][0]

    def __len__(self) -> int:
        return len(self._flight)

    def _free_slot(self, slot: Slot, held: tuple[Sequence, ...]) -> list[Sequence]:
        for sequence in held:
            sequence.inflight_refs -= 1
        self._free.append(slot)
        return [sequence for sequence in held if sequence.inflight_refs == 0]

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every slot is free or in flight once, and refs are the rows in flight."""
        assert len(self._free) + len(self._flight) == self.depth, "a slot is lost"
        assert self._sampled <= len(self._flight) <= self._sampled + 1, "two steps wait to be sampled"
        held = [sequence for _, step in self._flight for sequence in step]
        for sequence in {*sequences, *held}:
            assert sequence.inflight_refs == held.count(sequence), f"{sequence} has wrong references"
