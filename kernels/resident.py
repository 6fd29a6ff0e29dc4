"""ResidentLoop: many tokens from one launch; the host has a word in each of them, by way of page-locked memory.

Opt-in, beside one launch for each step. While a loop runs, the device runs nothing else: its kernel is on all
processors until it has run its steps, is stopped, or hears nothing from the host for `watchdog` seconds. Every wait of
the host has a deadline too. A row's pages for all the steps are given when the loop starts.
"""

from __future__ import annotations

import time
from enum import IntEnum
from select import select
from types import TracebackType
from typing import Protocol

from structgen.kernels.mailbox import MASKED, Mailbox, Rows

GRACE = 5.0  # seconds, at least, that the device has for leaving once it must
BROKEN = "a program of the kernel waited too long for another one"
LOOK_EVERY = 0.002  # seconds between looks at whether the device has left, which cost more than one at the outbox


class LoopTimeout(RuntimeError):
    """The device did not do in time what it owes."""


class LoopLeft(RuntimeError):
    """The device has left the loop: no tokens will come. The message says why."""


class Verdict(IntEnum):
    """Why a loop was left, as the kernel says it (device/mailbox.py)."""

    DONE = 0
    STOPPED = 1
    HOST_LATE = 2
    BROKEN = 3


class LoopDevice(Protocol):
    """What runs the loop: the kernel (resident_kernel.py), or a thread in its place (resident_twin.py)."""

    @property
    def mailbox(self) -> Mailbox: ...

    def number(self) -> int:
        """Of the next loop's first step."""
        ...

    def launch(self, steps: int, watchdog: float) -> None:
        """Enqueue a loop of at most `steps` steps, to be left when the host says nothing for `watchdog` seconds."""
        ...

    def finished(self) -> bool:
        """Whether the loop has been left. Does not block."""
        ...

    def verdict(self) -> Verdict:
        """Why, after it is finished. From here on the device can be used again, also when the loop broke."""
        ...


class ResidentLoop:
    """One loop at a time, for one thread. As a context manager it is left on the way out, whatever happens.

    with ResidentLoop(device, steps=256) as loop:
        while ...:
            loop.mask[0], loop.rows[0] = words, MASKED
            loop.grant()
            tokens = loop.next_tokens(seconds=1.0)
    """

    def __init__(self, device: LoopDevice, *, steps: int, watchdog: float = 2.0) -> None:
        """Launches the loop: its first layers run while the masks are made. Until then nothing is allowed."""
        mailbox = device.mailbox
        if not 1 <= steps <= mailbox.slots:
            raise ValueError(f"a loop of {steps} steps; the mailbox has room for 1 to {mailbox.slots}")
        self._device, self._mailbox, self._watchdog = device, mailbox, watchdog
        self.mask, self.rows, self.seeds = mailbox.mask, mailbox.rows, mailbox.seeds
        self.verdict: Verdict | None = None  # once it is left
        self.rows[:], self.mask[:] = MASKED, 0
        mailbox.begin(device.number())
        device.launch(steps, watchdog)

    def __enter__(self) -> ResidentLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.close() is Verdict.BROKEN and error is None:
            raise LoopLeft(BROKEN)

    def grant(self, steps: int = 1) -> None:
        """The host's word: `mask`, `rows` and `seeds` as they are now hold for the next `steps` steps.

        They must not be written from here on until the tokens of all these steps have come. MailboxError otherwise.
        """
        self._mailbox.grant(steps)

    def next_tokens(self, seconds: float) -> Rows:
        """The tokens [batch] of the next step; LoopTimeout after `seconds`, LoopLeft when none will come."""
        now = time.perf_counter()
        deadline, look = now + seconds, now + LOOK_EVERY
        while (tokens := self._mailbox.poll()) is None:
            now = time.perf_counter()
            if now > deadline:
                raise LoopTimeout(f"no tokens of step {self._mailbox.taken} within {seconds} seconds")
            if now > look:
                look = now + LOOK_EVERY
                left = self._left()
                if (tokens := self._mailbox.poll()) is not None:  # the last thing it did
                    break
                if left:
                    raise LoopLeft(self._why())
            let_others_run()
        return tokens

    def stop(self) -> None:
        """Ask the device to leave at the head of the step it is in. What was chosen before can still be taken."""
        self._mailbox.stop()

    def close(self) -> Verdict:
        """Stop, and wait until the loop is left; LoopTimeout if it is not. Idempotent."""
        self.stop()
        deadline = time.perf_counter() + self._watchdog + GRACE
        while not self._left():
            if time.perf_counter() > deadline:
                raise LoopTimeout("the device does not leave the loop")
            let_others_run()
        assert self.verdict is not None
        return self.verdict

    def _left(self) -> bool:
        if self.verdict is None and self._device.finished():
            self.verdict = self._device.verdict()
        return self.verdict is not None

    def _why(self) -> str:
        reasons = {
            Verdict.DONE: "it has run all its steps",
            Verdict.STOPPED: "it was stopped",
            Verdict.HOST_LATE: f"the host was silent for {self._watchdog} seconds",
        }
        assert self.verdict is not None
        return f"the loop was left before step {self._mailbox.taken}: {reasons.get(self.verdict, BROKEN)}"


def let_others_run() -> None:
    """Give up the interpreter's lock for a moment. time.sleep(0) would take 60 microseconds, a timer's slack."""
    select((), (), (), 0)
