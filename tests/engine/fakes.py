"""A runner with scripted logits and a small grammar, for tests of the engine's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any, ClassVar, NamedTuple

import numpy as np

from structgen.engine import Engine, SamplingParams, StepOutput
from structgen.engine.host_input import HostInput
from structgen.engine.host_runner import HostRunner
from structgen.engine.scheduler import PlanRow
from structgen.engine.sequence import Mask
from structgen.engine.step import StepSlot

EOS, OPEN, CLOSE = 0, 1, 2
LETTERS = range(3, 40)
VOCAB = 40
ENDS = frozenset([EOS])


def prefer_letters(tokens: list[int]) -> np.ndarray:
    """Logits that depend on every token of the text, and like closing least."""
    rng = np.random.default_rng(tokens)
    logits = rng.normal(size=VOCAB).astype(np.float32)
    logits[[EOS, CLOSE]] -= 50
    return logits


class FakeRunner(HostRunner):
    """Keeps (position, token) in the places of a cache and computes a row's logits from what it reads back there.

    A page that is shared, freed or padded wrongly gives a text with a hole, and the test fails.
    """

    max_context, page_size = 512, 4
    depth, as_thread = 1, False  # what `pipeline` sets

    def __init__(
        self,
        pages: int = 1024,
        logits: Callable[[list[int]], np.ndarray] = prefer_letters,
    ) -> None:
        super().__init__(VOCAB, max_batch=64, threaded=self.as_thread)
        self.pages = pages
        self.logits = logits
        self.places: dict[int, tuple[int, int]] = {}
        self.steps = 0
        self.tokens = 0
        self.cleared: list[int] = []

    @property
    def default_depth(self) -> int:
        return self.depth

    def lay_out(self, slot: StepSlot) -> None:
        slot.input = HostInput(
            step_tokens=slot.plan.tokens, max_batch=64, table_pages=self.max_context // 4, page_size=self.page_size
        )
        slot.input.stage(slot.plan)
        self.steps += 1
        self.tokens += slot.plan.tokens

    def forward(self, slot: StepSlot) -> None:
        slot.input.look_up(self.last_tokens)
        step = slot.input.forward
        for token, position, place in zip(
            step.ids.tolist(), step.positions.tolist(), step.places.tolist(), strict=True
        ):
            self.places[place] = (position, token)
        texts = [self.read(slot, index, row) for index, row in enumerate(slot.plan.rows)]
        sampling = [text for text, row in zip(texts, slot.plan.rows, strict=True) if row.samples]
        for index, text in enumerate(sampling):
            slot.logits[index] = slot.logits.new_tensor(self.logits(text))

    def read(self, slot: StepSlot, index: int, row: PlanRow) -> list[int]:
        step = slot.input.forward
        decode = step.decode_table
        if index < decode.rows:
            table = decode.pages.view(decode.rows, -1)[index].tolist()
            assert step.decode_lengths[index] == row.start + 1
        else:
            table = step.chunks[index - decode.rows].table.pages.tolist()
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

    def fill_known_mask(self, row: Mask, budget: int | None = None) -> bool:
        return False

    def rollback(self, count: int) -> None:
        assert count == 1
        self.state, self.count = self.before, self.count - 1

    def forced_tokens(self) -> list[int]:
        return [OPEN] if self.state == 0 else []

    def accept(self, token_id: int) -> bool:
        assert self.state < 3, "advanced after it had terminated"
        if self.fault == "accept" and self.count == self.after:
            raise RuntimeError("cannot accept")
        if self.fault == "refuse" and self.count == self.after:
            return False
        state = self.allowed().get(token_id)
        if state is None:
            return False
        self.before = self.state
        self.state, self.count = state, self.count + 1
        return True


class Lent(NamedTuple):
    """A mask that is the same object for all who stand where it is from."""

    bits: Mask


class Lending(Quoted):
    """Lends the masks of its states, but where the budget narrows them; `vocab_size` is the runner's."""

    masks: ClassVar[dict[tuple[int, int], Lent]] = {}

    def __init__(self, vocab_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.words, self.lent = -(-vocab_size // 32), 0

    def known_mask(self, budget: int | None = None) -> Lent | None:
        if self.fault in ("fill", "empty") or (budget is not None and budget <= 3 - self.state):
            return None
        key = self.words, self.state
        if key not in self.masks:
            self.masks[key] = Lent(np.zeros(self.words, dtype=np.int32))
            self.fill_mask(self.masks[key].bits)
        self.mask_was_narrowed = False
        self.lent += 1
        return self.masks[key]


class Forcing(Quoted):
    """Forces runs of letters of its own, of 1 to 9 tokens."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.runs = cycle([(number + 3 * turn) % 9 + 1 for turn in range(4)])

    def forced_tokens(self) -> list[int]:
        if self.state != 1:
            return super().forced_tokens()
        return [3 + (self.count + place) % 37 for place in range(next(self.runs))]


def is_quoted(tokens: list[int]) -> bool:
    return tokens[:1] == [OPEN] and tokens[-1:] == [CLOSE] and all(token in LETTERS for token in tokens[1:-1])


def run(engine: Engine) -> list[StepOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
    return outputs


def alone(prompt: list[int], params: SamplingParams, matcher: Quoted | None = None) -> list[int]:
    engine = Engine(FakeRunner(pages=128), max_batch=1, depth=1, jump_forward=False)
    sequence = engine.submit(prompt, params, matcher, ENDS)
    while engine.has_work:
        engine.step()
    return sequence.output_ids
