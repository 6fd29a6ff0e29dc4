"""Mailbox: the memory through which the host and the resident loop speak, and the host's side of its rules.

Steps have numbers that only grow, over all loops of a decoder, in 32 bits. For step n of a loop:

    device  runs the layers, then waits until `word` says that n + 1 steps are granted, or stop
    host    writes `mask` and `seeds`, and then `word`, with `rows`: from there on they are the device's
    device  copies them, runs the head, chooses, writes one word a row to `outbox`: n + 1 and the token; goes on
    host    has the tokens: what it wrote has been read, and is its own again

A word that has not been written yet has another number. The order of the host's stores matters (the masks, then the
word), and x86-64 keeps it. A row's word in the outbox is written in one piece, so it needs no order.
"""

from __future__ import annotations

import platform
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

FREE, MASKED, ENDED = 0, 1, 2  # rows: no constraint; its mask counts; no text goes on here, until the loop is left
NOTHING_CHOSEN = -1  # a row's token when its mask allows none, when no logit is finite, or when it has ended
STOP = 1 << 63
_NUMBERS = 1 << 32
_ORDERED_STORES: Final = ("x86_64", "AMD64")

Rows = npt.NDArray[np.int32]


class MailboxError(ValueError):
    """The host broke the rules: a grant beyond what the loop has, or tokens that no grant asks for."""


def word_of(granted: int, rows: Rows) -> int:
    """32 bits of steps granted, then two bits a row; the highest bit is `STOP`. Written in one piece."""
    word = granted % _NUMBERS
    for row, kind in enumerate(rows.tolist()):
        if not FREE <= kind <= ENDED:
            raise MailboxError(f"rows are {FREE}, {MASKED} or {ENDED}, not {rows.tolist()}")
        word |= kind << (32 + 2 * row)
    return word


class Mailbox:
    """Buffers for `batch` rows of `words` mask words, and for the tokens of at most `slots` steps of one loop."""

    def __init__(self, *, batch: int, words: int, slots: int, pinned: bool) -> None:
        if platform.machine() not in _ORDERED_STORES:
            raise MailboxError(f"the resident loop relies on the order of stores of x86-64, not {platform.machine()}")

        def zeros(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*size, dtype=dtype, pin_memory=pinned)

        self.batch, self.slots = batch, slots
        self.buffers = {  # as the kernel takes them
            "word": zeros(2),
            "inbox_mask": zeros(batch, words),
            "inbox_seeds": zeros(batch, dtype=torch.int64),
            "outbox": zeros(slots, batch, dtype=torch.int64),
        }
        self._word = self.buffers["word"].numpy().view(np.uint64)
        self.mask: Rows = self.buffers["inbox_mask"].numpy()
        self.rows: Rows = np.zeros(batch, np.int32)
        self.seeds: npt.NDArray[np.int64] = self.buffers["inbox_seeds"].numpy()
        self._outbox = self.buffers["outbox"].numpy().view(np.uint64)
        self.first = self.granted = self.taken = 0  # numbers; the host's own
        self._stopped = False

    def begin(self, number: int) -> None:
        """Before a loop is launched whose first step has this number."""
        self.first = self.granted = self.taken = number
        self._stopped = False
        self._word[0] = number % _NUMBERS
        self._outbox[:] = (number % _NUMBERS) << 32

    @property
    def owned(self) -> bool:
        """Whether `mask`, `rows` and `seeds` are the host's to write."""
        return self.granted == self.taken

    def grant(self, steps: int = 1) -> None:
        """What is in `mask`, `rows` and `seeds` holds for the next `steps` steps."""
        if not self.owned or steps < 1:
            raise MailboxError(f"{self.granted - self.taken} steps are granted whose tokens have not been taken")
        if self.granted + steps - self.first > self.slots:
            raise MailboxError(f"the loop has {self.slots} steps in all")
        word = word_of(self.granted + steps, self.rows)
        self.granted += steps
        self._word[0] = word | STOP * self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._word[0] |= np.uint64(STOP)

    def poll(self) -> Rows | None:
        """The tokens [batch] of the next step that has been granted, once they are all there."""
        if self.owned:
            raise MailboxError("no step is granted whose tokens could come")
        words = self._outbox[self.taken - self.first]
        if ((words >> np.uint64(32)) != (self.taken + 1) % _NUMBERS).any():
            return None
        self.taken += 1
        tokens: Rows = (words & np.uint64(_NUMBERS - 1)).astype(np.uint32).view(np.int32)
        return tokens
