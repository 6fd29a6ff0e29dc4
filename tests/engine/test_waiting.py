"""Waiting for a step's tokens pays where jumps are likelier than what the device's idling costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from structgen.engine import Engine, SamplingParams
from structgen.engine.mask_filler import GLANCE
from structgen.engine.rescue import Rescue
from structgen.engine.sampled import Arrived
from structgen.engine.step import StepSlot
from structgen.engine.trace import Trace
from structgen.engine.waiting import Waiting
from tests.engine.fakes import ENDS, run
from tests.engine.runs import LONGEST, Runs, Unreliable


def a_trace(forward: float, between: float) -> Trace:
    trace = Trace()
    trace.add("device", "forward", 1, 0.0, forward)
    for kind in ("commit", "plan", "launch"):
        trace.add("host", kind, 1, 0.0, between / 3)
    return trace


def test_it_pays_where_jumps_are_likely_and_never_without_any() -> None:
    waiting = Waiting(a_trace(forward=1.0, between=0.3))
    assert not waiting.pays([])
    assert not waiting.pays([0.0, 0.0])
    assert not waiting.pays([0.5, 0.0])
    assert waiting.pays([0.9, 0.0])


def test_what_was_measured_counts_and_is_forgotten_after_a_while() -> None:
    waiting = Waiting(a_trace(forward=1.0, between=0.3))
    waiting.note(2.0)
    assert not waiting.pays([0.9])
    asked = next(count for count in range(1000) if waiting.pays([0.9]))
    assert 50 < asked < 300
    for _ in range(50):
        waiting.note(0.05)
    assert waiting.pays([0.1])


def test_a_trace_tells_how_long_the_device_idled_before_a_step() -> None:
    trace = Trace()
    assert trace.device([("forward", 1.0, 2.0), ("sample", 2.5, 3.0)], 1) == 0
    assert trace.device([("forward", 3.25, 4.0), ("sample", 4.5, 5.0)], 2) == pytest.approx(0.25)
    trace.idle()
    assert trace.device([("forward", 9.0, 9.5)], 3) == 0
    assert trace.device([], 4) == 0


LONG = 3 * GLANCE  # seconds: longer than a single mask is waited for


class Late(Runs):
    """Some masks take longer than a single one is waited for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.late = [LONG * (place % 4 == 2) for place in range(LONGEST + 4)]


class Failing(Unreliable):
    """Every fifth step."""

    def fails(self, slot: StepSlot) -> str:
        return "" if slot.number % 5 else ("launch", "forward", "late", "sample")[slot.number // 5 % 4]


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("source", [Late, Runs])
@pytest.mark.parametrize("count", [1, 3])
def test_only_what_the_engine_chose_to_wait_for_is_what_waiting_costs(
    count: int, source: type[Runs], chooses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a mask that came late, nor rows that ran again after a step had failed."""
    noted: list[float] = []
    monkeypatch.setattr(Waiting, "pays", lambda waiting, chances: chooses)
    monkeypatch.setattr(Waiting, "note", lambda waiting, idle: noted.append(idle))
    monkeypatch.setattr(Rescue, "_run_again", a_pause_before(Rescue._run_again))
    engine = Engine(Failing(256, depth=2, threaded=True), max_batch=4, depth=2)
    for turn in range(4):
        for number in range(count):
            engine.submit([5, 6, number], SamplingParams(max_tokens=30), source(7 * turn + number), ENDS)
        run(engine)
    assert engine.metrics.rescued_steps > 0
    assert engine.metrics.late_masks > 0 or source is Runs
    assert bool(noted) == chooses
    assert max(noted, default=0) < LONG / 2
    engine.close()


def a_pause_before(work: Callable[..., Arrived]) -> Callable[..., Arrived]:
    def later(*given: Any) -> Arrived:
        time.sleep(LONG)
        return work(*given)

    return later
