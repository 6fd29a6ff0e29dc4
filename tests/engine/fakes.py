"""A runner and a matcher small enough to read: what the engine does with them is then the engine's doing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from structgen.engine.scheduler import PlanRow
from structgen.engine.sequence import Mask
from structgen.engine.step import StepSlot

EOS, OPEN, CLOSE = 0, 1, 2
LETTERS = range(3, 40)
VOCAB = 40


def prefer_letters(tokens: list[int]) -> np.ndarray:
    """Logits that depend on every token of the text, and like closing least."""
    rng = np.random.default_rng(tokens)
    logits = rng.normal(size=VOCAB).astype(np.float32)
    logits[[EOS, CLOSE]] -= 50
    return logits


class FakeRunner:
    """Keeps (position, token) in the places of a cache and computes a row's logits from what it reads back there.

    A page that is shared, freed or padded wrongly gives a text with a hole, and the test fails.
    """

    vocab_size, max_context, page_size = VOCAB, 512, 4

    def __init__(self, pages: int = 1024, logits: Callable[[list[int]], np.ndarray] = prefer_letters) -> None:
        self.pages = pages
        self.logits = logits
        self.places: dict[int, tuple[int, int]] = {}
        self.steps = 0
        self.tokens = 0
        self.cleared: list[int] = []

    def launch(self, slot: StepSlot) -> None:
        self.steps += 1
        self.tokens += len(slot.input.ids)

    def wait(self, slot: StepSlot) -> None:
        step = slot.input
        for token, position, place in zip(
            step.ids.tolist(), step.positions.tolist(), step.places.tolist(), strict=True
        ):
            self.places[place] = (position, token)
        texts = [self.read(slot, index, row) for index, row in enumerate(slot.plan.rows)]
        sampling = [text for text, row in zip(texts, slot.plan.rows, strict=True) if row.samples]
        for index, text in enumerate(sampling):
            slot.logits[index] = slot.logits.new_tensor(self.logits(text))

    def read(self, slot: StepSlot, index: int, row: PlanRow) -> list[int]:
        decode = slot.input.decode_table
        if index < decode.rows:
            table = decode.pages.view(decode.rows, -1)[index].tolist()
            assert slot.input.decode_lengths[index] == row.start + 1
        else:
            table = slot.input.chunks[index - decode.rows].table.pages.tolist()
        text = []
        for position in range(row.start + row.count):
            place = table[position // self.page_size] * self.page_size + position % self.page_size
            stored, token = self.places[place]
            assert stored == position, "another sequence wrote here"
            text.append(token)
        return text

    def clear(self, pages: Iterable[int]) -> None:
        self.cleared.extend(pages)


class Quoted:
    """The language OPEN LETTER* CLOSE, then EOS. It may be told to misbehave after a number of tokens."""

    def __init__(self, *, fault: str = "", after: int = 3) -> None:
        self.state = 0  # 0 nothing yet, 1 open, 2 closed, 3 ended
        self.mask_was_narrowed = False
        self.fault, self.after, self.count = fault, after, 0

    @property
    def is_complete(self) -> bool:
        return self.state == 2

    @property
    def is_terminated(self) -> bool:
        return self.state == 3

    @property
    def min_tokens_to_complete(self) -> int:
        return 3 - self.state

    def allowed(self) -> dict[int, int]:
        """Token -> the state it leads to."""
        inside = {**dict.fromkeys(LETTERS, 1), CLOSE: 2}
        return ({OPEN: 1}, inside, {EOS: 3}, {})[self.state]

    def fill_mask(self, row: Mask, budget: int | None = None) -> None:
        if self.fault == "fill" and self.count == self.after:
            raise RuntimeError("cannot fill")
        every = self.allowed()
        fitting = [token for token, state in every.items() if budget is None or 3 - state <= budget - 1]
        self.mask_was_narrowed = len(fitting) < len(every)
        words = row.view(np.uint32)
        words[:] = 0
        if self.fault == "empty" and self.count == self.after:
            return
        for token in fitting:
            words[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_id: int) -> bool:
        assert self.state < 3, "advanced after it had terminated"
        if self.fault == "accept" and self.count == self.after:
            raise RuntimeError("cannot accept")
        if self.fault == "refuse" and self.count == self.after:
            return False
        state = self.allowed().get(token_id)
        if state is None:
            return False
        self.state, self.count = state, self.count + 1
        return True


def is_quoted(tokens: list[int]) -> bool:
    return tokens[:1] == [OPEN] and tokens[-1:] == [CLOSE] and all(token in LETTERS for token in tokens[1:-1])
