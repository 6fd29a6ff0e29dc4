"""SimulatedDevice: a thread that keeps to the resident loop's rules in the kernel's place, without a GPU.

Its model is a checksum: the token of a step is drawn from the allowed ones by what came before, so that a wrong mask,
seed or order shows in all later tokens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from structgen.kernels.mailbox import ENDED, FREE, NOTHING_CHOSEN, STOP, Mailbox
from structgen.kernels.resident import Verdict, let_others_run

_NUMBERS = 1 << 32


@dataclass
class Faults:
    """What goes wrong, and in which step of the loop."""

    hangs_at: int = -1  # from this step on the device does nothing at all, until it is released
    breaks_at: int = -1  # a program gives up on another one
    released: threading.Event = field(default_factory=threading.Event)


class SimulatedDevice:
    """A LoopDevice. `history[row]` are the tokens of a row so far."""

    def __init__(self, *, batch: int, vocab_size: int, slots: int) -> None:
        self.mailbox = Mailbox(batch=batch, words=-(-vocab_size // 32), slots=slots, pinned=False)
        self.vocab_size = vocab_size
        self.faults = Faults()
        self.history: list[list[int]] = [[] for _ in range(batch)]
        self._number = 0
        self._kinds = 0
        self._verdict = Verdict.DONE
        self._thread = threading.Thread()
        self._buffers = {name: buffer.numpy() for name, buffer in self.mailbox.buffers.items()}

    def number(self) -> int:
        return self._number

    def launch(self, steps: int, watchdog: float) -> None:
        self._verdict = Verdict.DONE
        self._thread = threading.Thread(target=self._run, args=(steps, watchdog), daemon=True)
        self._thread.start()

    def finished(self) -> bool:
        return not self._thread.is_alive()

    def verdict(self) -> Verdict:
        return self._verdict

    def _run(self, steps: int, watchdog: float) -> None:
        for step in range(steps):
            if step == self.faults.hangs_at:
                self.faults.released.wait()
                self._verdict = Verdict.STOPPED
                return
            self._verdict = Verdict.BROKEN if step == self.faults.breaks_at else self._word(watchdog)
            self._number = (self._number + 1) % _NUMBERS
            if self._verdict is not Verdict.DONE:
                return
            for row in range(self.mailbox.batch):
                token = self._choose(row)
                self.history[row].append(token)
                word = self._number << 32 | token % _NUMBERS
                self._buffers["outbox"].view(np.uint64)[step, row] = word

    def _word(self, watchdog: float) -> Verdict:
        """What the host says of this step; the answer to its silence is to leave."""
        deadline = time.perf_counter() + watchdog
        while time.perf_counter() < deadline:
            word = int(self._buffers["word"].view(np.uint64)[0])
            if word & STOP:
                return Verdict.STOPPED
            if 0 < (word - self._number) % _NUMBERS < _NUMBERS // 2:
                self._kinds = word >> 32
                return Verdict.DONE
            let_others_run()
        return Verdict.HOST_LATE

    def _choose(self, row: int) -> int:
        kind = self._kinds >> 2 * row & 3
        mask, seed = self._buffers["inbox_mask"][row], int(self._buffers["inbox_seeds"][row])
        return choose(self.history[row], kind, mask, seed, self.vocab_size)


def choose(history: Sequence[int], kind: int, mask: np.ndarray, seed: int, vocab_size: int) -> int:
    """One of the tokens that the row's mask allows: which one depends on its tokens so far, all of them."""
    if kind == ENDED:
        return NOTHING_CHOSEN
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size]
    allowed = np.arange(vocab_size) if kind == FREE else np.flatnonzero(bits)
    if not len(allowed):
        return NOTHING_CHOSEN
    checksum = seed + 1
    for token in history:
        checksum = (checksum * 31 + token + 2) % 1_000_003
    return int(allowed[checksum % len(allowed)])
