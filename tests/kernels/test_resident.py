"""The host's side of the resident loop, against a thread that keeps to the rules in the kernel's place."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from structgen.kernels.mailbox import ENDED, FREE, MASKED, NOTHING_CHOSEN, Mailbox, MailboxError
from structgen.kernels.resident import LoopLeft, LoopTimeout, ResidentLoop, Verdict
from structgen.kernels.resident_twin import SimulatedDevice, choose

VOCAB = 100
WAIT = 10.0


def device(batch: int = 2, slots: int = 16) -> SimulatedDevice:
    return SimulatedDevice(batch=batch, vocab_size=VOCAB, slots=slots)


def masks_of(step: int, batch: int) -> np.ndarray:
    """Another mask for every step and row."""
    return np.random.default_rng([step, batch]).integers(-(2**31), 2**31, (batch, 4), dtype=np.int64).astype(np.int32)


def run(loop: ResidentLoop, steps: int, batch: int, first: int = 0) -> list[list[int]]:
    """[steps][batch], masked, with seeds of their own."""
    found = []
    for step in range(first, first + steps):
        loop.mask[:] = masks_of(step, batch)
        loop.rows[:] = MASKED
        loop.seeds[:] = step
        loop.grant()
        found.append(loop.next_tokens(WAIT).tolist())
    return found


def expected(steps: int, batch: int) -> list[list[int]]:
    history: list[list[int]] = [[] for _ in range(batch)]
    for step in range(steps):
        for row in range(batch):
            history[row].append(choose(history[row], MASKED, masks_of(step, batch)[row], step, VOCAB))
    return [[row[step] for row in history] for step in range(steps)]


@pytest.mark.parametrize("batch", [1, 8])
def test_each_step_has_its_own_masks_and_seeds(batch: int) -> None:
    with ResidentLoop(device(batch), steps=12, watchdog=WAIT) as loop:
        assert run(loop, 12, batch) == expected(12, batch)
    assert loop.verdict is Verdict.DONE


def test_numbers_go_on_from_one_loop_to_the_next_and_stale_words_are_not_taken() -> None:
    one, found = device(), []
    for first in (0, 5, 10):
        with ResidentLoop(one, steps=8, watchdog=WAIT) as loop:  # leaves three steps unused, and a word for stop
            found += run(loop, 5, 2, first)
        assert loop.verdict is Verdict.STOPPED
    assert found == expected(15, 2)


def test_a_loop_begins_with_nothing_allowed() -> None:
    one = device()
    one.mailbox.mask[:], one.mailbox.rows[:] = -1, FREE  # as the loop before may have left them
    with ResidentLoop(one, steps=1, watchdog=WAIT) as loop:
        loop.grant()
        assert loop.next_tokens(WAIT).tolist() == [NOTHING_CHOSEN] * 2


def test_numbers_wrap_around() -> None:
    one = device()
    one._number = (1 << 32) - 3
    with ResidentLoop(one, steps=8, watchdog=WAIT) as loop:
        assert run(loop, 8, 2) == expected(8, 2)


def test_rows_may_be_free_and_may_end_alone() -> None:
    one = device()
    with ResidentLoop(one, steps=6, watchdog=WAIT) as loop:
        loop.mask[:] = 0
        loop.rows[:] = FREE, MASKED
        loop.grant()
        assert loop.next_tokens(WAIT).tolist() == [choose([], FREE, loop.mask[0], 0, VOCAB), NOTHING_CHOSEN]
        loop.mask[:] = -1
        loop.rows[:] = ENDED, MASKED
        loop.grant(3)
        tokens = [loop.next_tokens(WAIT).tolist() for _ in range(3)]
        assert [row for row, _ in tokens] == [NOTHING_CHOSEN] * 3
        assert min(other for _, other in tokens) >= 0


def test_the_host_keeps_to_the_rules() -> None:
    with ResidentLoop(device(slots=4), steps=4, watchdog=WAIT) as loop:
        with pytest.raises(MailboxError, match="no step is granted"):
            loop.next_tokens(WAIT)
        loop.grant(2)
        with pytest.raises(MailboxError, match="2 steps are granted"):
            loop.grant()
        loop.next_tokens(WAIT)
        with pytest.raises(MailboxError, match="1 steps are granted"):
            loop.grant()
        loop.next_tokens(WAIT)
        with pytest.raises(MailboxError, match="4 steps in all"):
            loop.grant(3)
        loop.rows[0] = 3
        with pytest.raises(MailboxError, match="rows are 0, 1 or 2"):
            loop.grant()
    with pytest.raises(ValueError, match="room for 1 to 4"):
        ResidentLoop(device(slots=4), steps=5)


def test_a_dead_host_does_not_keep_the_device() -> None:
    one = device()
    loop = ResidentLoop(one, steps=8, watchdog=0.5)
    run(loop, 2, 2)
    wait_until(one.finished)
    loop.grant()
    with pytest.raises(LoopLeft, match=r"before step 2: the host was silent for 0\.5 seconds"):
        loop.next_tokens(WAIT)
    assert loop.close() is Verdict.HOST_LATE
    with ResidentLoop(one, steps=2, watchdog=WAIT) as loop:  # one step was begun and left: the numbers agree again
        run(loop, 2, 2)


def test_tokens_that_came_before_the_loop_was_left_can_be_taken() -> None:
    one = device()
    with ResidentLoop(one, steps=3, watchdog=WAIT) as loop:
        loop.grant(3)
        wait_until(one.finished)
        assert all(loop.next_tokens(WAIT) is not None for _ in range(3))


def test_a_device_that_does_nothing_is_not_waited_for() -> None:
    one = device()
    one.faults.hangs_at = 1
    loop = ResidentLoop(one, steps=4, watchdog=WAIT)
    run(loop, 1, 2)
    loop.grant()
    with pytest.raises(LoopTimeout, match="no tokens of step 1 within"):
        loop.next_tokens(0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("structgen.kernels.resident.GRACE", 0.05 - WAIT)  # close() waits for both together
        with pytest.raises(LoopTimeout, match="does not leave"):
            loop.close()
    one.faults.released.set()
    assert loop.close() is Verdict.STOPPED


def test_a_loop_that_breaks_says_so() -> None:
    one = device()
    one.faults.breaks_at = 1
    with pytest.raises(LoopLeft, match="waited too long"), ResidentLoop(one, steps=4, watchdog=WAIT) as loop:
        run(loop, 2, 2)
    one.faults.breaks_at = 0
    with pytest.raises(LoopLeft, match="waited too long"), ResidentLoop(one, steps=4, watchdog=WAIT):
        wait_until(one.finished)


def test_a_host_that_fails_inside_leaves_the_loop() -> None:
    one = device()

    def fail(loop: ResidentLoop) -> None:
        with loop:
            run(loop, 1, 2)
            raise ZeroDivisionError

    loop = ResidentLoop(one, steps=4, watchdog=WAIT)
    with pytest.raises(ZeroDivisionError):
        fail(loop)
    assert one.finished()
    assert loop.verdict is Verdict.STOPPED


def test_a_stopped_loop_has_no_more_tokens() -> None:
    with ResidentLoop(device(), steps=4, watchdog=WAIT) as loop:
        run(loop, 1, 2)
        loop.stop()
        loop.grant()  # too late
        with pytest.raises(LoopLeft, match="it was stopped"):
            loop.next_tokens(WAIT)


def test_other_processors_than_x86_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MailboxError, match="order of stores"):
        Mailbox(batch=1, words=1, slots=1, pinned=False)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + WAIT
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.001)
