"""A runner without a model whose logits are a hash of a sequence's own tokens, and a small byte-pair vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from structgen.engine.host_input import HostInput
from structgen.engine.host_runner import HostRunner
from structgen.engine.scheduler import PlanRow
from structgen.engine.step import StepSlot
from structgen.grammar import Vocabulary

# As a byte-pair encoder would merge JSON: tokens that cross from one part of a value into the next.
MERGES = (
    *(
        '"k',
        '":',
        '": ',
        '":"',
        '": "',
        '", "',
        '","',
        '"}',
        '"]',
        "{}",
        "[]",
        '{"',
        '["',
        "},",
        "}}",
        "]}",
        "]]",
        "],",
    ),
    *(", ", ": ", "  ", "    ", "\n  ", "12", "20", "00", "19", "-1", ".5", "e-", "true", "fals", "null", "ul", "se"),
    *("the", " the", "in", " of", "an", "name", "k1", "k2", "k3", "é", "漢", "\\n", "\\u", "00e", "ab", "abc", "2024-"),
)
EOS = 256 + len(MERGES)
VOCABULARY = Vocabulary([*(bytes((byte,)) for byte in range(256)), *(one.encode() for one in MERGES), None], [EOS])


class HashRunner(HostRunner):
    """Logits that are a hash of the sequence's own tokens, whatever else is in the batch; no model.

    A place of its cache holds its position and the hash of all tokens up to there, so a token costs one look-up; a page
    that is shared, freed or padded wrongly fails an assertion or gives other tokens than the same request alone.
    """

    max_context, page_size = 512, 8

    def __init__(self, pages: int, *, max_batch: int = 64, threaded: bool = False) -> None:
        super().__init__(VOCABULARY.size, max_batch=max_batch, threaded=threaded)
        self.max_batch = max_batch
        self.pages = pages
        self._places: list[tuple[int, int]] = [(-1, 0)] * (pages * self.page_size)
        rng = np.random.default_rng(1)
        self._logits: npt.NDArray[np.float32] = 2 * rng.standard_normal((509, self.vocab_size), dtype=np.float32)
        self._logits[:, [ord('"'), ord("}"), ord("]"), EOS]] += 3  # or strings would go on for ever

    def lay_out(self, slot: StepSlot) -> None:
        slot.input = HostInput(
            step_tokens=slot.plan.tokens,
            max_batch=self.max_batch,
            table_pages=self.max_context // 8,
            page_size=self.page_size,
        )
        slot.input.stage(slot.plan)

    def forward(self, slot: StepSlot) -> None:
        slot.input.look_up(self.last_tokens)
        ids, places = slot.input.forward.ids.tolist(), slot.input.forward.places.tolist()
        offset, sampling = 0, 0
        for row in slot.plan.rows:
            seen = self._run(row, ids[offset : offset + row.count], places[offset : offset + row.count])
            offset += row.count
            if row.samples:
                slot.logits.numpy()[sampling] = self._logits_after(seen)
                sampling += 1

    def _run(self, row: PlanRow, ids: list[int], places: list[int]) -> int:
        """Put the row's tokens into the cache; the hash of the whole text."""
        seen = 0
        if row.start:
            before = row.start - 1
            place = row.sequence.pages[before // self.page_size] * self.page_size + before % self.page_size
            position, seen = self._places[place]
            assert position == before, "another sequence wrote here"
        for position, (token, place) in enumerate(zip(ids, places, strict=True), row.start):
            seen = (seen * 1_000_003 + token + 1) % (1 << 61)
            self._places[place] = (position, seen)
        return seen

    def _logits_after(self, seen: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._logits[seen % len(self._logits)]
        return logits

    def clear(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._places[page * self.page_size : (page + 1) * self.page_size] = [(-1, 0)] * self.page_size
