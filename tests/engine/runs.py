"""A grammar of forced runs and free choices, and a device that fails: for tests of the engine's loop."""

from __future__ import annotations

import random
import time
from typing import ClassVar

import numpy as np

from structgen.engine.sequence import Mask
from structgen.engine.step import StepSlot
from tests.engine.fakes import CLOSE, EOS, LETTERS, OPEN, VOCAB, FakeRunner, Lent, prefer_letters

LONGEST = 24  # tokens between OPEN and CLOSE


class Runs:
    """OPEN, then items, then CLOSE, then EOS: an item is one certain letter, or any of some letters, or the end.

    Which it is depends on the seed and the position, so that forced runs of all lengths occur in the middle of a text.
    Some masks take a while.
    """

    def __init__(self, seed: int, *, slow: float = 0.0) -> None:
        rng = random.Random(seed)
        forced = rng.choice([0.2, 0.5, 0.8])
        self.items = [
            [rng.choice(LETTERS)] if rng.random() < forced else [*rng.sample(LETTERS, rng.randrange(2, 20)), CLOSE]
            for _ in range(rng.randrange(LONGEST))
        ]
        self.known = [rng.random() < 0.5 for _ in range(LONGEST + 4)]
        self.late = [slow * (rng.random() < 0.2) for _ in range(LONGEST + 4)]
        self.tokens: list[int] = []
        self.mask_was_narrowed = False

    def allowed(self, tokens: list[int]) -> list[int]:
        if not tokens:
            return [OPEN]
        if tokens[-1] == EOS:
            return []
        if tokens[-1] == CLOSE:
            return [EOS]
        return self.items[len(tokens) - 1] if len(tokens) <= len(self.items) else [CLOSE]

    def least(self, tokens: list[int]) -> int:
        """Tokens to the end, EOS included."""
        so_far = list(tokens)
        while allowed := self.allowed(so_far):
            so_far.append(CLOSE if CLOSE in allowed else allowed[0])
        return len(so_far) - len(tokens)

    @property
    def state(self) -> int:
        return len(self.tokens) % 5

    @property
    def is_complete(self) -> bool:
        return self.tokens[-1:] == [CLOSE]

    @property
    def is_terminated(self) -> bool:
        return self.tokens[-1:] == [EOS]

    @property
    def min_tokens_to_complete(self) -> int:
        return self.least(self.tokens)

    def fill_mask(self, row: Mask, budget: int | None = None) -> None:
        here = list(self.tokens)
        if self.late[len(here)]:
            time.sleep(self.late[len(here)])
        every = self.allowed(here)
        fits = [token for token in every if budget is None or self.least([*here, token]) < budget]
        assert here == self.tokens, "advanced while its mask was computed"
        self.mask_was_narrowed = len(fits) < len(every)
        words = row.view(np.uint32)
        words[:] = 0
        for token in fits:
            words[token // 32] |= np.uint32(1 << token % 32)

    def fill_known_mask(self, row: Mask, budget: int | None = None) -> bool:
        known = self.known[len(self.tokens)] and not self.late[len(self.tokens)]
        if known:
            self.fill_mask(row, budget)
            known = not self.mask_was_narrowed
        return known

    def forced_tokens(self) -> list[int]:
        so_far = list(self.tokens)
        while len(allowed := self.allowed(so_far)) == 1 and allowed != [EOS]:
            so_far += allowed
        return so_far[len(self.tokens) :]

    def accept(self, token_id: int) -> bool:
        if token_id not in self.allowed(self.tokens):
            return False
        self.tokens.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]


class LendingRuns(Runs):
    """Lends its known masks: those with the same tokens are the same object, whatever grammar they are of."""

    masks: ClassVar[dict[bytes, Lent]] = {}

    def known_mask(self, budget: int | None = None) -> Lent | None:
        bits: Mask = np.zeros(-(-VOCAB // 32), dtype=np.int32)
        if not self.fill_known_mask(bits, budget):
            return None
        return self.masks.setdefault(bits.tobytes(), Lent(bits))


class Unreliable(FakeRunner):
    """Steps of it fail, where `fails` says so, and leave rubbish where they should have written.

    A row alone, after a failed step, always runs. Asserts what a device relies on: each row has a lane, and so a page
    table; a slot's buffers are not written while a forward pass may still read them; only what ran is asked for times.
    """

    def __init__(self, pages: int, *, depth: int, threaded: bool = False) -> None:
        self.as_thread = threaded
        super().__init__(pages, close_late)
        self.spare = depth
        self.reading: set[int] = set()
        self.failing: dict[int, str] = {}

    def fails(self, slot: StepSlot) -> str:
        """Where the step fails: launch, forward (nothing was written), late (all was), sample, or "" for not at all."""
        return ""

    def lay_out(self, slot: StepSlot) -> None:
        assert all(row.sequence.lane >= 0 for row in slot.plan.rows), "a row without a lane"
        assert slot.index not in self.reading, "written while it is read"
        self.failing[slot.index] = "" if slot.index == self.spare else self.fails(slot)
        if self.failing[slot.index] == "launch":
            raise MemoryError("launch")
        super().lay_out(slot)
        self.reading.add(slot.index)

    def forward(self, slot: StepSlot) -> None:
        failing = self.failing[slot.index]
        try:
            if failing != "forward":
                super().forward(slot)
        finally:
            self.reading.discard(slot.index)
        if failing in ("forward", "late"):
            for place in slot.input.forward.places.tolist():
                self.places[place] = (-1, -1)
            raise MemoryError(failing)

    def sample(self, slot: StepSlot) -> None:
        if self.failing[slot.index] == "sample":
            raise MemoryError("sample")
        super().sample(slot)

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        assert not self.failing[slot.index], "events of a step that failed"
        return super().spans(slot)


def close_late(tokens: list[int]) -> np.ndarray:
    logits = prefer_letters(tokens)
    logits[[EOS, CLOSE]] += 50
    return logits
