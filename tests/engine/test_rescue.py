"""Steps that fail as a whole: at any time, with another step in flight, they change no token and poison no page."""

from __future__ import annotations

import pytest

from structgen.engine import Engine, SamplingParams, Sequence
from structgen.engine.errors import StepTimeoutError
from structgen.engine.step import StepSlot
from tests.engine.fakes import ENDS, FakeRunner, run
from tests.engine.runs import Runs, Unreliable, close_late

PLACES = ("launch", "forward", "late", "sample")
GRAMMARS = (3, 5, 12)


class FailsAt(Unreliable):
    """The steps `numbers` fail at `place`."""

    def __init__(self, pages: int, place: str, *numbers: int, threaded: bool = False) -> None:
        super().__init__(pages, depth=2, threaded=threaded)
        self.place, self.numbers = place, numbers

    def fails(self, slot: StepSlot) -> str:
        return self.place if slot.number in self.numbers else ""


def submit(engine: Engine, prompt: list[int], grammar: int | None) -> Sequence:
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3)
    return engine.submit(prompt, params, None if grammar is None else Runs(grammar), ENDS)


def alone(prompt: list[int], grammar: int | None) -> list[int]:
    engine = Engine(FakeRunner(128, close_late), max_batch=1, depth=1, jump_forward=False)
    sequence = submit(engine, prompt, grammar)
    run(engine)
    return sequence.output_ids


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pages", [16, 128], ids=["preempting", "pages enough"])
def test_a_step_that_fails_at_any_time_changes_no_token(place: str, pages: int) -> None:
    """Among its rows are some that a jump made void, whose keys are needed, and some that are preempted by now."""
    prompts = [[5, 6, 7, number] for number in GRAMMARS]
    expected = [alone(prompt, grammar) for prompt, grammar in zip(prompts, GRAMMARS, strict=True)]
    for number in range(1, 40):
        engine = Engine(FailsAt(pages, place, number), max_batch=3, depth=2, prefill_tokens=16)
        sequences = [submit(engine, prompt, grammar) for prompt, grammar in zip(prompts, GRAMMARS, strict=True)]
        run(engine)
        assert [sequence.error for sequence in sequences] == [None] * 3
        assert [sequence.output_ids for sequence in sequences] == expected, f"step {number}"
        engine.close()


@pytest.mark.parametrize("place", PLACES)
def test_what_a_cancelled_sequence_never_wrote_is_not_shared(place: str) -> None:
    """Its chunk is in flight when it is cancelled, and the step fails: nobody runs the chunk again."""
    prompt = [5, 6, 7, 8] * 10
    for number in (1, 2, 3):
        engine = Engine(FailsAt(64, place, number, number + 1), max_batch=2, depth=2, prefill_tokens=16)
        gone = submit(engine, prompt, None)
        for _ in range(number):
            engine.step()
        engine.cancel(gone)
        sequence = submit(engine, prompt, None)
        run(engine)
        assert (sequence.error, sequence.output_ids) == (None, alone(prompt, None))
        engine.close()


@pytest.mark.parametrize("threaded", [False, True])
def test_a_step_taken_back_is_through_before_its_slot_is_used_again(threaded: bool) -> None:
    """No row runs again here, for which the rescue would wait."""
    engine = Engine(FailsAt(64, "sample", 2, threaded=threaded), max_batch=2, depth=2)
    gone = submit(engine, [5, 6, 7], None)
    engine.step()
    engine.step()
    engine.cancel(gone)
    sequence = submit(engine, [8, 9], None)
    run(engine)
    assert engine.metrics.rescued_steps == 1
    assert (sequence.error, sequence.output_ids) == (None, alone([8, 9], None))
    engine.close()


class HangsAlone(FailsAt):
    """Fails once, and hangs for good when rows run again."""

    waits = 0

    def wait(self, slot: StepSlot, seconds: float) -> None:
        if slot.index == self.spare:
            self.waits += 1
            raise StepTimeoutError(seconds)
        super().wait(slot, seconds)


def test_a_device_that_hangs_during_a_rescue_is_waited_for_once() -> None:
    runner = HangsAlone(64, "forward", 2)
    engine = Engine(runner, max_batch=3, depth=2)
    sequences = [submit(engine, [5, number], None) for number in (6, 7, 8)]
    with pytest.raises(StepTimeoutError):
        run(engine)
    assert runner.waits == 1
    assert [sequence.finish_reason for sequence in sequences] == ["error"] * 3
    run(engine)
    assert engine._pages.available == 64
