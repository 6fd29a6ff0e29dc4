"""MaskResidency and DeviceMasks: every row reads the mask that it should, and nothing in flight is written over."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from structgen.engine import SamplingParams, device_masks
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.mask_residency import MOST_ADMITTED, REMEMBERED, MaskResidency, Placed
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Sequence
from structgen.engine.step import StepSlot

BATCH, SLOTS, VOCAB = 6, 3, 70


class Bits:
    """A mask. All are equal: only identity tells them apart."""

    def __init__(self, bits: npt.NDArray[np.int32] | None = None) -> None:
        self.bits = np.zeros(3, dtype=np.int32) if bits is None else bits

    def __eq__(self, other: object) -> bool:
        raise AssertionError("masks are told apart by identity")

    __hash__ = None  # type: ignore[assignment]


class Table:
    """The device's table as a list, filled by what a residency asks for; checks what each row reads."""

    def __init__(self, capacity: int) -> None:
        self.residency, self.capacity = MaskResidency(capacity), capacity
        self.rows: list[object] = [None] * (capacity + SLOTS * BATCH)
        self.read: dict[int, set[int]] = {}  # slot -> rows that its step reads

    def step(self, slot: int, masks: list[Bits | None], has_mask: list[bool]) -> Placed:
        own = self.capacity + slot * BATCH
        self.read.pop(slot, None)
        brings = [
            mask if mask is not None else (Bits() if has else None) for mask, has in zip(masks, has_mask, strict=True)
        ]
        placed = self.residency.place(slot, masks, has_mask, own)
        for index, row in [*((index, own + index) for index in placed.own), *placed.admitted]:
            assert all(row not in rows for rows in self.read.values()), "a step in flight reads it"
            self.rows[row] = brings[index]
        for index, has in enumerate(has_mask):
            if has:
                assert self.rows[placed.rows[index]] is brings[index]
        self.read[slot] = {int(placed.rows[index]) for index, has in enumerate(has_mask) if has}
        self.residency.check_integrity()
        return placed

    def release(self, slot: int) -> None:
        self.residency.release(slot)
        self.read.pop(slot, None)


def all_of(masks: list[Bits]) -> tuple[list[Bits | None], list[bool]]:
    return [*masks], [True] * len(masks)


def test_a_mask_stays_from_the_second_time_on() -> None:
    table, masks = Table(8), [Bits() for _ in range(3)]
    assert table.step(0, *all_of(masks)).own == [0, 1, 2], "first they come with the step"
    table.release(0)
    assert [index for index, _ in table.step(1, *all_of(masks)).admitted] == [0, 1, 2]
    table.release(1)
    again = table.step(0, *all_of([*masks[::-1], masks[0]]))
    assert (again.own, again.admitted) == ([], [])
    assert max(again.rows) < 8


def test_rows_with_one_mask_share_what_is_brought() -> None:
    table, mask, other = Table(8), Bits(), Bits()
    placed = table.step(0, *all_of([mask, other, mask, mask]))
    assert placed.own == [0, 1]
    assert placed.rows[0] == placed.rows[2] == placed.rows[3]


def test_rows_without_a_mask_and_with_one_of_their_own() -> None:
    table, mask = Table(8), Bits()
    for slot in (0, 1, 2):
        placed = table.step(slot, [None, mask, None], [False, True, True])
        assert 2 in placed.own
        assert 0 not in placed.own
        table.release(slot)


def test_a_step_brings_few_masks_that_stay() -> None:
    table, masks = Table(64), [Bits() for _ in range(BATCH)]
    table.step(0, *all_of(masks))
    table.release(0)
    placed = table.step(1, *all_of(masks))
    assert len(placed.admitted) == MOST_ADMITTED
    assert placed.own == [*range(MOST_ADMITTED, BATCH)]


def test_what_was_not_used_for_longest_goes_first() -> None:
    table, masks = Table(2), [Bits() for _ in range(3)]
    for turn, mask in enumerate((masks[0], masks[0], masks[1], masks[1], masks[0], masks[2], masks[2])):
        table.step(turn % 2, [mask], [True])
        table.release(turn % 2)
    assert not table.step(0, [masks[0]], [True]).own
    table.release(0)
    assert table.step(0, [masks[1]], [True]).own


def test_without_a_row_that_may_be_written_a_mask_comes_with_the_step() -> None:
    table, masks = Table(1), [Bits() for _ in range(2)]
    for slot in (0, 1):
        table.step(slot, [masks[0]], [True])
        table.release(slot)
    table.step(0, [masks[0]], [True])  # in flight from here on
    for _ in range(3):
        assert table.step(1, [masks[1]], [True]).own == [0]
        table.residency.release(5)  # a slot without a step: nothing
    table.release(1)
    table.release(0)
    assert table.step(1, [masks[1]], [True]).admitted == [(0, 0)]


def test_steps_that_are_through_are_through_with_all_before_them() -> None:
    """One that failed is never released by itself, and must not hold its rows for ever."""
    table, masks = Table(1), [Bits() for _ in range(2)]
    for slot in (0, 1):
        table.step(slot, [masks[0]], [True])
        table.release(slot)
    table.step(2, [masks[0]], [True])
    table.read.clear()
    for slot in (0, 1):
        table.step(slot, [masks[1]], [True])
        table.release(slot)
    assert table.step(0, [masks[1]], [True]).own == []


def test_what_was_not_brought_is_forgotten() -> None:
    table, mask = Table(4), Bits()
    table.step(0, [mask], [True])
    table.release(0)
    placed = table.residency.place(1, [mask], [True], 4)
    assert placed.admitted
    table.residency.forget(placed)
    table.residency.check_integrity()
    table.residency.release(1)
    assert table.step(0, [mask], [True]).own == [0]


@pytest.mark.parametrize("capacity", [1, 3, 10, 200])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_each_row_reads_its_mask(seed: int, capacity: int) -> None:
    """Two steps in flight, masks that recur and masks that go for ever: their ids come back as others'."""
    rng, table = random.Random(seed), Table(capacity)
    masks = [Bits() for _ in range(12)]
    in_flight: list[int] = []
    for _ in range(400):
        free = [slot for slot in range(SLOTS) if slot not in in_flight]
        slot = rng.choice(free)
        count = rng.randrange(1, BATCH + 1)
        masks[rng.randrange(12)] = Bits()
        wanted = [rng.choice((rng.choice(masks), rng.choice(masks[:4]), Bits(), None)) for _ in range(count)]
        table.step(slot, wanted, [mask is not None or rng.random() < 0.5 for mask in wanted])
        in_flight.append(slot)
        while len(in_flight) > rng.randrange(3):
            table.release(in_flight.pop(0))


def test_what_is_remembered_is_bounded() -> None:
    residency = MaskResidency(2)
    held = [Bits() for _ in range(REMEMBERED + 50)]
    for first in range(0, len(held), 4):
        some = held[first : first + 4]
        residency.place(0, some, [True] * len(some), 2)
        residency.release(0)
        residency.check_integrity()


# -- the table on a device --------------------------------------------------------------------------------------------


@pytest.fixture
def staged() -> Callable[[int, int], StepSlot]:
    slots = [StepSlot(index, max_batch=BATCH, vocab_size=VOCAB) for index in range(SLOTS)]

    def stage(index: int, count: int) -> StepSlot:
        sequences = [Sequence(row, [1], SamplingParams(), None, frozenset()) for row in range(count)]
        slots[index].stage(StepPlan(tuple(PlanRow(each, 0, 1, True) for each in sequences), ()), 1)
        return slots[index]

    return stage


@pytest.mark.parametrize("octets", [1, 40, 12_000])
def test_the_table_has_the_bits(
    octets: int, staged: Callable[[int, int], StepSlot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its masks are lent or written into the slot, a row finds them where it is told."""
    monkeypatch.setattr(device_masks, "RESIDENT_OCTETS", octets)
    rng, numbers = random.Random(1), np.random.default_rng(1)
    masks = DeviceMasks(VOCAB, slots=SLOTS, max_batch=BATCH, device=torch.device("cpu"))
    lent = [Bits(numbers.integers(-(2**31), 2**31, 3, dtype=np.int32)) for _ in range(9)]
    for step in range(200):
        slot = staged(step % 2, rng.randrange(1, BATCH + 1))
        for row in range(len(slot.rows)):
            slot.constrained[row] = rng.random() < 0.8
            if slot.constrained[row] and rng.random() < 0.7:
                slot.shared[row] = rng.choice(lent)
            else:
                slot.mask_rows[row][:] = numbers.integers(-(2**31), 2**31, 3, dtype=np.int32)
        wanted = [slot.mask_of(row).copy() for row in range(len(slot.rows))]
        rows = masks.bring(slot)
        for row, bits in enumerate(wanted):
            assert not slot.constrained[row] or masks.table[int(rows[row])].tolist() == bits.tolist()
        masks.release(slot)


def test_a_copy_that_fails_leaves_no_mask_behind(
    staged: Callable[[int, int], StepSlot], monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = DeviceMasks(VOCAB, slots=SLOTS, max_batch=BATCH, device=torch.device("cpu"))
    mask = Bits(np.full(3, 5, dtype=np.int32))

    def bring() -> list[int]:
        slot = staged(0, 1)
        slot.constrained[0], slot.shared[0] = True, mask
        try:
            return list(masks.table[int(masks.bring(slot)[0])].tolist())
        finally:
            masks.release(slot)

    assert bring() == [5] * 3
    with monkeypatch.context() as patch:
        patch.setattr(DeviceMasks, "_copy", lambda *_: (_ for _ in ()).throw(RuntimeError("lost")))
        with pytest.raises(RuntimeError, match="lost"):
            bring()
    assert bring() == bring() == [5] * 3
