"""MaskResidency: which masks lie in a table on the device, so that a step names them instead of copying them.

A grammar's states recur, and with them their masks: of 128,256 tokens one is 16 KB, of 64 rows a megabyte a step. The
table has room for some masks that stay, and behind them rows of each slot's own for the masks of one step. No torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

MOST_ADMITTED = 4  # masks in a step: each is a copy of its own, and a step has little time
REMEMBERED = 4096  # masks that were wanted once


class SharedMask(Protocol):
    """A mask that is the same object whenever a grammar stands where it stood, and whose bits never change."""

    @property
    def bits(self) -> npt.NDArray[np.int32]: ...


class Placed(NamedTuple):
    """Where a step finds its masks.

    rows      the table's row of each sampling row that has a mask; -1 for others
    own       sampling rows whose masks must be brought to the slot's own rows of the table
    admitted  (sampling row, table row): masks that must be brought there, and stay
    """

    rows: list[int]
    own: list[int]
    admitted: list[tuple[int, int]]


class MaskResidency:
    """Owns the rows of the masks that stay. Masks are known by identity; each is held as long as it has a row, so that
    no other one gets its id. (Their bits are not looked at: those of a grammar that is gone may be another's by then.)

    A mask gets a row when it is wanted for the second time, most of those that are wanted once being never wanted
    again, in place of the one that was not used for longest. Rows that a step in flight reads are never given away:
    `place` pins what its step uses, `release` tells that the step is through. A step that finds no row for a mask
    brings it along, as one that belongs to no grammar's state: narrowed by a budget, say.
    """

    def __init__(self, capacity: int) -> None:
        self._rows: dict[int, int] = {}  # id -> row
        self._masks: list[SharedMask | None] = [None] * capacity
        self._used = [0] * capacity  # by row: the latest step that uses it; 0 for none
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(capacity))  # rows, longest unused first
        self._wanted: dict[int, None] = {}  # ids of masks that were wanted once, or were; oldest first
        self._step = 0
        self._in_flight: dict[int, int] = {}  # slot -> its step

    def place(self, slot: int, masks: Items[SharedMask | None], has_mask: Items[bool], own: int) -> Placed:
        """For the sampling rows of a slot's step; a mask is None where a row brings one of its own, or has none.

        own: the first of the slot's own rows in the table, of which there is one for each sampling row
        """
        self._step += 1
        self._in_flight[slot] = self._step
        known = self._rows
        rows = [known.get(id(mask), -1) for mask in masks]
        found = set(rows)
        is_complete = -1 not in found
        found.discard(-1)
        used, step, to_end = self._used, self._step, self._order.move_to_end
        for row in found:
            used[row] = step
            to_end(row)
        return Placed(rows, [], []) if is_complete else self._bring(masks, rows, has_mask, own)

    def release(self, slot: int) -> None:
        """The slot's step is through, and with it all before it: they follow each other on the device."""
        done = self._in_flight.get(slot, 0)
        self._in_flight = {each: step for each, step in self._in_flight.items() if step > done}

    def forget(self, placed: Placed) -> None:
        """What should have been brought was not."""
        for _, row in placed.admitted:
            self._evict(row)

    def check_integrity(self) -> None:
        held = {id(mask): row for row, mask in enumerate(self._masks) if mask is not None}
        assert held == self._rows, "masks and rows disagree"
        assert len(self._wanted) <= REMEMBERED
        order = [self._used[row] for row in self._order]
        assert order == sorted(self._used), "rows are not in the order of their use"

    def _bring(self, masks: Items[SharedMask | None], rows: list[int], has_mask: Items[bool], own: int) -> Placed:
        """Fill in `rows` where they are missing: with a row that stays, or one of the slot's own."""
        mine: list[int] = []
        admitted: list[tuple[int, int]] = []
        here: dict[int, int] = {}  # id -> table row, of what this step brings
        for index, mask in enumerate(masks):
            if rows[index] >= 0 or not has_mask[index]:
                continue
            row = None if mask is None else here.get(id(mask))
            if row is None and mask is not None and len(admitted) < MOST_ADMITTED and self._is_wanted_again(mask):
                row = self._admit(mask)
                if row is not None:
                    admitted.append((index, row))
            if row is None:
                row = own + index
                mine.append(index)
            rows[index] = row
            if mask is not None:
                here[id(mask)] = row
        return Placed(rows, mine, admitted)

    def _is_wanted_again(self, mask: SharedMask) -> bool:
        """Whether it was wanted in an earlier step. (Another one may have had its id: then it comes in early.)"""
        if id(mask) in self._wanted:
            return True
        if len(self._wanted) == REMEMBERED:
            del self._wanted[next(iter(self._wanted))]
        self._wanted[id(mask)] = None
        return False

    def _admit(self, mask: SharedMask) -> int | None:
        """A row for it, if there is one that no step in flight reads."""
        row = next(iter(self._order))
        if self._used[row] >= min(self._in_flight.values()):
            return None
        self._evict(row)
        self._masks[row], self._rows[id(mask)], self._used[row] = mask, row, self._step
        self._order.move_to_end(row)
        del self._wanted[id(mask)]
        return row

    def _evict(self, row: int) -> None:
        before = self._masks[row]
        if before is not None:
            del self._rows[id(before)]
            self._masks[row], self._used[row] = None, 0
            self._order.move_to_end(row, last=False)
