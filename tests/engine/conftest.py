"""What tests of the whole engine share: a small byte-pair vocabulary, and an engine on a fake runner of that width."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from structgen.engine import Engine
from structgen.engine.scheduler import PlanRow
from structgen.engine.step import StepSlot
from structgen.grammar import Vocabulary

MakeEngine = Callable[..., Engine]

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


class HashRunner:
    """Logits that are a hash of the sequence's own tokens, whatever else is in the batch; no model.

    A place of its cache holds its position and the hash of all tokens up to there, so a token costs one look-up; a page
    that is shared, freed or padded wrongly fails an assertion or gives other tokens than the same request alone.
    """

    vocab_size, max_context, page_size = VOCABULARY.size, 512, 8

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._places: list[tuple[int, int]] = [(-1, 0)] * (pages * self.page_size)
        rng = np.random.default_rng(1)
        self._logits: npt.NDArray[np.float32] = 2 * rng.standard_normal((509, self.vocab_size), dtype=np.float32)
        self._logits[:, [ord('"'), ord("}"), ord("]"), EOS]] += 3  # or strings would go on for ever

    def launch(self, slot: StepSlot) -> None:
        """The device is the caller's own thread: `wait` computes the step."""

    def wait(self, slot: StepSlot) -> None:
        ids, places = slot.input.ids.tolist(), slot.input.places.tolist()
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


@pytest.fixture(scope="session")
def small_vocabulary() -> Vocabulary:
    """The 256 bytes, merges, and EOS."""
    return VOCABULARY


@pytest.fixture(params=[1, 2], ids=["depth 1", "depth 2"], scope="session")
def depth(request: pytest.FixtureRequest) -> int:
    depth: int = request.param
    if depth > 1 and "depth" not in inspect.signature(Engine).parameters:
        pytest.skip("this engine has one step in flight")
    return depth


@pytest.fixture(scope="session")
def make_engine() -> MakeEngine:
    """(max_batch, depth, pages=..., options of Engine) -> Engine on a HashRunner."""

    def make(max_batch: int, depth: int, *, pages: int = 1024, **options: Any) -> Engine:
        deep: dict[str, Any] = {"depth": depth} if "depth" in inspect.signature(Engine).parameters else {}
        return Engine(HashRunner(pages), max_batch=max_batch, **deep, **options)

    return make
