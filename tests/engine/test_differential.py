"""The pipelined engine against the serial one: random traffic, few pages, late masks, cancels, a device that fails."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch

from structgen.engine import Engine, SamplingParams, Sequence, device_masks
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.step import StepSlot
from tests.engine.fakes import ENDS, LETTERS, VOCAB, FakeRunner
from tests.engine.runs import LendingRuns, Runs, Unreliable, close_late

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = 60
MOST_STEPS = 4000


class Random(Unreliable):
    """Fails at random, and takes its time. Masks that are lent go through a table with room for three."""

    shares_masks = True

    def __init__(self, pages: int, *, depth: int, threaded: bool, seed: int, faults: float) -> None:
        super().__init__(pages, depth=depth, threaded=threaded)
        self.faults, self.rng = faults, random.Random(seed)
        self.masks = DeviceMasks(VOCAB, slots=depth + 1, max_batch=5, device=torch.device("cpu"))

    def sample(self, slot: StepSlot) -> None:
        count = len(slot.rows)
        if True in slot.constrained[:count]:
            rows = self.masks.bring(slot)
            wanted = [slot.mask_of(row).copy() for row in range(count)]
            for row in np.flatnonzero(slot.constrained[:count]).tolist():
                slot.mask_rows[row][:] = self.masks.table[rows[row]].numpy()
                assert slot.mask_rows[row].tolist() == wanted[row].tolist()
        super().sample(slot)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        super().wait(slot, seconds)
        self.masks.release(slot)
        self.masks.residency.check_integrity()

    def fails(self, slot: StepSlot) -> str:
        return self.rng.choice(["launch", "forward", "late", "sample"]) if self.rng.random() < self.faults else ""

    def forward(self, slot: StepSlot) -> None:
        if self.as_thread and self.faults:
            time.sleep(0.0005)
        super().forward(slot)


class Case:
    """One engine with its traffic, all of it following from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        depth = rng.choice([1, 2, 2, 2])
        threaded = rng.random() < 0.4
        self.pages, batch = rng.choice([14, 18, 24, 60]), rng.choice([1, 2, 3, 5])
        self.slow = rng.choice([0.0, 0.0, 0.002])
        faults = rng.choice([0.0, 0.0, 0.1, 0.3])
        options: dict[str, Any] = {
            "max_batch": batch,
            "jump_forward": rng.random() < 0.8,
            "prefill_tokens": rng.choice([4, 16, 256]),
        }
        self.cancels = rng.choice([0.0, 0.02, 0.1])
        self.engine = Engine(
            Random(self.pages, depth=depth, threaded=threaded, seed=seed, faults=faults), depth=depth, **options
        )
        self.about = f"seed {seed}: depth {depth} threaded {threaded} pages {self.pages} faults {faults} {options}"
        self.common = [[rng.choice(LETTERS) for _ in range(40)] for _ in range(2)]

    def request(self) -> tuple[list[int], SamplingParams, int | None]:
        rng = self.rng
        prompt = rng.choice(self.common)[: rng.choice([1, 4, 8, 17, 24, 25])] + [
            rng.choice(LETTERS) for _ in range(rng.choice([0, 0, 1, 3]))
        ]
        grammar = rng.randrange(1000) if rng.random() < 0.8 else None
        least = 1 if grammar is None else Runs(grammar).min_tokens_to_complete
        params = SamplingParams(
            max_tokens=max(least, rng.choice([1, 2, 5, 20, 30])),
            temperature=rng.choice([0.0, 1.0]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            seed=rng.randrange(9),
            logprobs=rng.choice([None, "masked", "raw"]),
            stop_token_ids=frozenset(rng.sample(LETTERS, 1) if rng.random() < 0.2 else []),
        )
        return prompt, params, grammar

    def run(self) -> None:
        engine, rng = self.engine, self.rng
        made: list[tuple[Sequence, int | None]] = []
        steps, ended = 0, []
        told: dict[Sequence, list[int]] = {}
        while len(made) < 12 or engine.has_work:
            if len(made) < 12 and (rng.random() < 0.3 or not engine.has_work):
                prompt, params, grammar = self.request()
                for stream in range(rng.choice([1, 1, 3])):
                    kind = rng.choice([Runs, LendingRuns])
                    matcher = None if grammar is None else kind(grammar, slow=self.slow)
                    one = SamplingParams(**{**vars(params), "stream": stream})
                    made.append((engine.submit(prompt, one, matcher, ENDS), grammar))
            if rng.random() < self.cancels:
                engine.cancel(rng.choice(made)[0])
            for output in engine.step():
                told.setdefault(output.sequence, []).extend(output.token_ids)
                ended += [output.sequence] * (output.finish_reason is not None)
            engine.check_integrity()
            steps += 1
            assert steps < MOST_STEPS, f"a request never ends; {self.about}"
        assert sorted(each.number for each in ended) == sorted(each.number for each, _ in made), self.about
        assert engine._pages.available == self.pages, self.about
        for sequence, grammar in made:
            assert told.get(sequence, []) == sequence.output_ids
            self.check(sequence, grammar)

    def check(self, sequence: Sequence, grammar: int | None) -> None:
        expected = serial(sequence, grammar, self.pages)
        assert sequence.finish_reason != "error", f"{sequence.error}; {self.about}"
        if sequence.params.logprobs:
            assert [told.token_id for told in sequence.logprobs] == sequence.output_ids
        if sequence.finish_reason == "cancelled":
            assert sequence.output_ids == expected.output_ids[: len(sequence.output_ids)], self.about
            return
        assert sequence.output_ids == expected.output_ids, self.about
        assert (sequence.finish_reason, sequence.closed_early) == (expected.finish_reason, expected.closed_early)
        for told, known in zip(sequence.logprobs, expected.logprobs, strict=True):
            assert told.logprob == pytest.approx(known.logprob, abs=1e-4)


def serial(like: Sequence, grammar: int | None, pages: int) -> Sequence:
    """The same request alone, a step at a time, every token sampled."""
    engine = Engine(FakeRunner(pages, close_late), max_batch=1, depth=1, jump_forward=False, share_prefixes=False)
    matcher = None if grammar is None else Runs(grammar)
    sequence = engine.submit(like.prompt_ids, like.params, matcher, like.eos_token_ids)
    while engine.has_work:
        engine.step()
    engine.close()
    return sequence


@pytest.mark.parametrize("seed", range(CASES))
def test_traffic_gets_the_tokens_of_the_serial_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_masks, "MOST_RESIDENT", 3)
    case = Case(seed)
    try:
        case.run()
    finally:
        case.engine.close()
