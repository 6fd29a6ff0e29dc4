"""Masks that come late: they hold back nobody else, change no token, and a grammar that hangs ends its own request."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from structgen.engine import Engine, SamplingParams, Sequence, mask_filler
from structgen.engine.sequence import Mask
from tests.engine.fakes import ENDS, EOS, FakeRunner, Quoted, alone, is_quoted, run


class Slow(Quoted):
    """Computes some of its masks for a while."""

    def __init__(self, seconds: float, every: int = 3) -> None:
        super().__init__()
        self.seconds, self.every = seconds, every

    def fill_mask(self, row: Mask, budget: int | None = None) -> None:
        if self.count % self.every == 1:
            time.sleep(self.seconds)
        super().fill_mask(row, budget)


def be_impatient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("GRAMMAR_SECONDS", "FIRST_SECONDS"):
        monkeypatch.setattr(mask_filler, name, seconds)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_late_mask_costs_its_own_row_a_step_and_changes_no_token(depth: int) -> None:
    engine = Engine(FakeRunner(), max_batch=4, depth=depth)
    slow = engine.submit([5, 6], SamplingParams(max_tokens=12, temperature=1.0, seed=4), Slow(0.03), ENDS)
    quick = [engine.submit([prompt, 3], SamplingParams(max_tokens=40), Quoted(), ENDS) for prompt in (7, 8)]
    free = engine.submit([9, 3], SamplingParams(max_tokens=40))
    run(engine)
    assert engine.metrics.late_masks > 0
    assert slow.output_ids == alone([5, 6], SamplingParams(max_tokens=12, temperature=1.0, seed=4), Quoted())
    for sequence, prompt in zip(quick, (7, 8), strict=True):
        assert sequence.output_ids == alone([prompt, 3], SamplingParams(max_tokens=40), Quoted())
    assert free.output_ids == alone([9, 3], SamplingParams(max_tokens=40))


@pytest.mark.parametrize("depth", [1, 2])
def test_while_one_mask_takes_long_the_others_finish(depth: int) -> None:
    release = threading.Event()

    class Held(Quoted):
        def fill_mask(self, row: Mask, budget: int | None = None) -> None:
            assert release.wait(30)
            super().fill_mask(row, budget)

    engine = Engine(FakeRunner(), max_batch=3, depth=depth)
    held = engine.submit([5, 6], SamplingParams(max_tokens=9), Held(), ENDS)
    other = engine.submit([7, 3], SamplingParams(max_tokens=30), Quoted(), ENDS)
    while not other.finished:
        engine.step()
        engine.check_integrity()
    assert not held.finished
    release.set()
    run(engine)
    assert is_quoted(held.output_ids)


def test_a_sequence_may_be_cancelled_while_its_mask_is_computed() -> None:
    engine = Engine(FakeRunner(), max_batch=3, depth=2)
    slow = engine.submit([5, 6], SamplingParams(max_tokens=9), Slow(0.2, every=2), ENDS)
    other = engine.submit([7, 3], SamplingParams(max_tokens=30), Quoted(), ENDS)
    for _ in range(4):
        engine.step()
    engine.cancel(slow)
    run(engine)
    assert (slow.finish_reason, other.finish_reason) == ("cancelled", "length")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grammar_that_hangs_ends_its_own_request_when_it_is_the_only_one(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tick takes long meanwhile: new requests and cancels would be seen."""
    be_impatient(monkeypatch, 0.3)
    engine = Engine(FakeRunner(), max_batch=3, depth=depth)
    bad = engine.submit([5, 6], SamplingParams(max_tokens=9), Slow(3.0, every=2), ENDS)
    longest = 0.0
    while engine.has_work:
        begin = time.perf_counter()
        engine.step()
        longest = max(longest, time.perf_counter() - begin)
    assert bad.finish_reason == "error"
    assert "mask" in str(bad.error)
    assert longest < 1.5
    good = engine.submit([7, 3], SamplingParams(max_tokens=12), Quoted(), ENDS)
    run(engine)
    assert good.output_ids == alone([7, 3], SamplingParams(max_tokens=12), Quoted())


def test_no_mask_that_is_not_known_is_computed_on_the_caller_s_thread() -> None:
    seen = []

    class Watched(Quoted):
        def fill_mask(self, row: Mask, budget: int | None = None) -> None:
            seen.append(threading.current_thread())
            super().fill_mask(row, budget)

    filler = mask_filler.MaskFiller(2)
    for count in (1, 3):
        for others in (False, True):
            made = [Sequence(each, [5], SamplingParams(max_tokens=9), Watched(), ENDS) for each in range(count)]
            rows = np.zeros((count, 2), dtype=np.int32)
            filled = filler.fill(list(zip(made, rows, strict=True)), patience=5.0, others=others)
            assert not filled.late
            assert rows.tolist() == [[2, 0]] * count
    filler.close()
    assert len(seen) == 8
    assert threading.main_thread() not in seen


def test_a_mask_that_comes_as_patience_ends_is_taken_and_a_timeout_of_the_grammar_is_its_own() -> None:
    class Late(Future[Mask]):
        """Comes between the end of the wait and the look whether it is there."""

        def exception(self, timeout: float | None = None) -> BaseException | None:
            if not self.done():
                self.set_result(np.array([7], dtype=np.int32))
                raise TimeoutError
            return super().exception(timeout)

    filler = mask_filler.MaskFiller(1)
    comes, fails = (Sequence(each, [5], SamplingParams(max_tokens=9), Quoted(), ENDS) for each in range(2))
    comes.mask_job, fails.mask_job = Late(), Future()
    fails.mask_job.set_exception(TimeoutError("of the grammar"))
    rows = np.zeros((2, 1), dtype=np.int32)
    filled = filler.fill([(comes, rows[0]), (fails, rows[1])], patience=0.0, others=True)
    assert rows.tolist() == [[7], [0]]
    assert not filled.late
    assert [(sequence, str(problem)) for sequence, problem in filled.failed] == [(fails, "of the grammar")]
    filler.close()


def test_the_first_mask_may_wait_for_what_is_compiled_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second may not: it hangs."""
    monkeypatch.setattr(mask_filler, "GRAMMAR_SECONDS", 0.1)
    engine = Engine(FakeRunner(), max_batch=3, depth=2)
    first = engine.submit([5, 6], SamplingParams(max_tokens=3), Slow(0.5, every=2), ENDS)
    run(engine)
    assert is_quoted(first.output_ids)
    second = engine.submit([5, 6], SamplingParams(max_tokens=3), Slow(0.5, every=2), ENDS)
    run(engine)
    assert "mask" in str(second.error)


def test_a_grammar_that_hangs_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch, 0.05)
    engine = Engine(FakeRunner(), max_batch=3, depth=2)
    bad = engine.submit([5, 6], SamplingParams(max_tokens=9), Slow(1.0, every=2), ENDS)
    other = engine.submit([7, 3], SamplingParams(max_tokens=30), Quoted(), ENDS)
    run(engine)
    assert bad.finish_reason == "error"
    assert "mask" in str(bad.error)
    assert other.output_ids == alone([7, 3], SamplingParams(max_tokens=30), Quoted())


def test_masks_of_one_step_reach_their_own_rows() -> None:
    """Each row allows one letter only, its own; half of the masks are known, half are computed on threads."""

    class Only(Quoted):
        def __init__(self, letter: int, known: bool) -> None:
            super().__init__()
            self.letter, self.known = letter, known

        def allowed(self) -> dict[int, int]:
            return {self.letter: 1} if self.state == 1 and self.count < 20 else super().allowed()

        def fill_known_mask(self, row: Mask, budget: int | None = None) -> bool:
            if self.known:
                self.fill_mask(row, budget)
            return self.known

    engine = Engine(FakeRunner(), max_batch=32, depth=2, jump_forward=False)
    matchers = [Only(letter, letter % 2 == 0) for letter in range(3, 35)]
    sequences = [engine.submit([each.letter], SamplingParams(max_tokens=25), each, ENDS) for each in matchers]
    run(engine)
    for sequence, matcher in zip(sequences, matchers, strict=True):
        assert set(sequence.output_ids[1:20]) == {matcher.letter}
        assert np.array_equal(sequence.output_ids[:1], [1])


def test_grammars_that_hang_take_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch, 0.1)
    release = threading.Event()

    class Hung(Quoted):
        def fill_mask(self, row: Mask, budget: int | None = None) -> None:
            assert release.wait(30)

    engine = Engine(FakeRunner(), max_batch=16, depth=2)
    free = engine.submit([4], SamplingParams(max_tokens=400))
    hung = [engine.submit([5, number], SamplingParams(max_tokens=9), Hung(), ENDS) for number in range(8)]
    for _ in range(4):
        engine.step()
    for sequence in hung[::2]:
        engine.cancel(sequence)
    good = engine.submit([7, 3], SamplingParams(max_tokens=12), Quoted(), ENDS)
    run(engine)
    assert [sequence.finish_reason for sequence in hung] == ["cancelled", "error"] * 4
    assert good.output_ids == alone([7, 3], SamplingParams(max_tokens=12), Quoted())
    assert len(free.output_ids) == 400
    release.set()
    engine.close()


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_request_that_comes_while_a_mask_is_waited_for_is_served(waiting: int) -> None:
    release = threading.Event()

    class Held(Quoted):
        def fill_mask(self, row: Mask, budget: int | None = None) -> None:
            assert release.wait(30)
            super().fill_mask(row, budget)

    engine = Engine(FakeRunner(), max_batch=3, depth=2)
    held = [engine.submit([5, number], SamplingParams(max_tokens=9), Held(), ENDS) for number in range(waiting)]
    for _ in range(3):
        engine.step()
    other = engine.submit([7, 3], SamplingParams(max_tokens=30))
    while not other.finished:
        engine.step()
    assert not any(sequence.finished for sequence in held)
    release.set()
    run(engine)
    assert all(is_quoted(sequence.output_ids) for sequence in held)


def test_the_interpreter_ends_while_a_mask_is_computed() -> None:
    code = """
import subprocess
import sys
import threading
from structgen.engine.mask_workers import MaskWorkers
workers = MaskWorkers(1)
begun = threading.Event()
workers.submit(lambda: begun.set() or threading.Event().wait(), patience=1.0)
assert begun.wait(20)
workers.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class SlowEnd(Quoted):
    """Complete after each letter, since CLOSE may be left out; the masks of such places take a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.busy = seconds, False
        self.threads: set[threading.Thread] = set()

    @property
    def is_complete(self) -> bool:
        assert not self.busy
        return self.state in (1, 2)

    @property
    def min_tokens_to_complete(self) -> int:
        return (2, 1, 1, 0)[self.state]

    def allowed(self) -> dict[int, int]:
        return {**super().allowed(), EOS: 3} if self.state == 1 else super().allowed()

    def forced_tokens(self) -> list[int]:
        assert not self.busy, "asked while its mask is computed"
        return super().forced_tokens()

    def accept(self, token_id: int) -> bool:
        assert not self.busy, "advanced while its mask is computed"
        return super().accept(token_id)

    def fill_mask(self, row: Mask, budget: int | None = None) -> None:
        self.threads.add(threading.current_thread())
        self.busy = True
        time.sleep(self.seconds * (self.state in (1, 2)))
        self.busy = False
        super().fill_mask(row, budget)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1])
def test_whether_a_text_is_at_its_end_is_not_found_out_on_the_engine_s_thread(seconds: float, depth: int) -> None:
    def answers(seconds: float, depth: int) -> list[tuple[object, ...]]:
        engine, matchers = Engine(FakeRunner(), max_batch=4, depth=depth), [SlowEnd(seconds), SlowEnd(seconds)]
        held = [
            engine.submit([5, 6 + number], SamplingParams(max_tokens=5 + number), matcher, ENDS)
            for number, matcher in enumerate(matchers)
        ]
        held.append(engine.submit([7, 3], SamplingParams(max_tokens=30)))
        run(engine)
        engine.close()
        assert threading.main_thread() not in set.union(*(matcher.threads for matcher in matchers))
        return [(each.output_ids, each.finish_reason, each.closed_early, each.error) for each in held]

    assert answers(seconds, depth) == answers(0.0, 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grammar_that_hangs_at_its_end_ends_its_own_request(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch, 0.3)
    engine = Engine(FakeRunner(), max_batch=4, depth=depth)
    begin = time.perf_counter()
    bad = engine.submit([5, 6], SamplingParams(max_tokens=9), SlowEnd(3.0), ENDS)
    other = engine.submit([7, 3], SamplingParams(max_tokens=30))
    run(engine)
    assert time.perf_counter() - begin < 2.5
    assert "mask" in str(bad.error)
    assert (other.finish_reason, len(other.output_ids)) == ("length", 30)
