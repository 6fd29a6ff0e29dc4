"""Waiting for a step's tokens pays where jumps are likelier than what the device's idling costs."""

from __future__ import annotations

import pytest

from structgen.engine.trace import Trace
from structgen.engine.waiting import Waiting


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
