"""The trace: totals, bubbles between the device's parts of work, and Chrome's format."""

from __future__ import annotations

import pytest

from structgen.engine import Engine, SamplingParams, Trace, cuda_events
from structgen.engine.cuda_events import StepEvents
from structgen.engine.trace import MOST_SPANS
from tests.engine.fakes import ENDS, FakeRunner, Quoted, run


def test_gaps_between_parts_of_work_are_bubbles_except_after_idling() -> None:
    trace = Trace()
    trace.device([("forward", 1.0, 2.0), ("sample", 2.5, 3.0)], 1)
    trace.device([("forward", 3.25, 4.0)], 2)
    trace.idle()
    trace.device([("forward", 9.0, 9.5)], 3)
    assert trace.totals == pytest.approx({"device.forward": 2.25, "device.sample": 0.5, "device.bubble": 0.75})
    assert trace.bubble_share == pytest.approx(0.75 / 3.5)


def test_single_spans_are_kept_when_asked_for_and_never_without_bound() -> None:
    trace = Trace()
    trace.add("host", "fill", 1, 0.0, 1.0)
    assert not trace.spans
    trace.record = True
    for step in range(MOST_SPANS + 10):
        trace.add("host", "fill", step, step, step + 0.5)
    assert len(trace.spans) == MOST_SPANS
    (first, *_) = trace.chrome()["traceEvents"]
    assert (first["name"], first["ts"], first["dur"], first["args"]) == ("fill", 0.0, 5e5, {"step": 10})


@pytest.mark.parametrize("depth", [1, 2])
def test_an_engine_tells_every_part_of_every_step(depth: int) -> None:
    engine = Engine(FakeRunner(), depth=depth)
    engine.trace.record = True
    for prompt in (5, 6, 7):
        engine.submit([prompt, 3], SamplingParams(max_tokens=9), Quoted(), ENDS)
    run(engine)
    steps = range(1, engine.metrics.steps + 1)
    for track, kinds in (("host", ("fill", "sample", "wait", "commit", "launch")), ("device", ("forward", "sample"))):
        for kind in kinds:
            assert [span.step for span in engine.trace.spans if (span.track, span.kind) == (track, kind)] == [*steps]
    engine.trace.reset()
    assert (engine.trace.totals, engine.trace.bubble_share) == ({}, 0.0)


class ClockedEvent:
    """A GPU's event whose times a test decides, in seconds."""

    now = 0.0

    def __init__(self) -> None:
        self.time = 0.0

    def record(self, stream: object) -> None:
        self.time = ClockedEvent.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: ClockedEvent) -> float:
        return (later.time - self.time) * 1000


@pytest.mark.parametrize("depth", [1, 2])
def test_device_times_stay_true_though_a_slot_records_its_events_anew(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 3 seconds, 2 of forward; at depth 1 the device then waits for 4 more."""
    monkeypatch.setattr(cuda_events, "make_event", lambda **_: ClockedEvent())
    ClockedEvent.now = 0.0
    clock = cuda_events.DeviceClock(stream=None)  # type: ignore[arg-type]
    start = clock._base_time
    slots = [StepEvents() for _ in range(depth)]
    flight: list[tuple[StepEvents, float]] = []
    for step in range(6):
        events, begin = slots[step % depth], ClockedEvent.now
        events.samples = step != 3
        for name, seconds in (("forward_begin", 0), ("forward_end", 2), ("sample_begin", 0), ("sampled", 1)):
            ClockedEvent.now += seconds
            getattr(events, name).record(None)
        flight.append((events, begin))
        if len(flight) == depth:
            told, begin = flight.pop(0)
            samples = told.samples
            spans = clock.spans(told)
            assert [kind for kind, _, _ in spans] == ["forward", "sample"][: 1 + samples]
            times = [time - start - begin for _, *both in spans for time in both]
            assert times == pytest.approx([0, 2, 2, 3][: 2 + 2 * samples])
        ClockedEvent.now += 4 if depth == 1 else 0
