"""Trace: where the time of each step goes, on the host and on the device, so that a bubble is seen and not guessed."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple

RECENT = 0.1  # weight of the latest step in what is usual
MOST_SPANS = 50_000  # kept for `chrome`; the totals know all
HOST, DEVICE = "host", "device"


class Span(NamedTuple):
    """`begin` and `end` are seconds of `time.perf_counter`."""

    track: str
    kind: str
    step: int
    begin: float
    end: float


class HostSpan:
    """Six of them in each step: a class costs half of what a generator does."""

    __slots__ = ("_begin", "_kind", "_step", "_trace")

    def __init__(self, trace: Trace, kind: str, step: int) -> None:
        self._trace, self._kind, self._step = trace, kind, step

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._trace.add(HOST, self._kind, self._step, self._begin, time.perf_counter())


class Trace:
    """Totals are always kept; single spans only after `record = True`, the latest `MOST_SPANS` of them.

    Kinds on the host: fill (masks), sample (handing the step to the sampler), wait (for its tokens), commit, plan,
    launch.
    On the device: forward, sample, and bubble: idle between two parts of work while rows are being decoded.
    """

    def __init__(self) -> None:
        self.record = False
        self.spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self.totals: dict[str, float] = {}
        self._usual: dict[str, float] = {}  # seconds a step, lately; kept by `reset`
        self._device_busy_until: float | None = None

    def host(self, kind: str, step: int) -> HostSpan:
        """For a `with`: the time of what stands in it."""
        return HostSpan(self, kind, step)

    def device(self, spans: list[tuple[str, float, float]], step: int) -> float:
        """The parts of one step, in order; a gap before one is a bubble, except after `idle`. Seconds of the first."""
        gaps = [self._part(kind, step, begin, end) for kind, begin, end in spans]
        return gaps[0] if gaps else 0.0

    def _part(self, kind: str, step: int, begin: float, end: float) -> float:
        """Adds one part of the device's work, and the gap before it, which is returned."""
        busy_until, gap = self._device_busy_until, 0.0
        if busy_until is not None and begin > busy_until:
            gap = begin - busy_until
            self.add(DEVICE, "bubble", step, busy_until, begin)
        self.add(DEVICE, kind, step, begin, end)
        self._device_busy_until = end
        return gap

    def idle(self) -> None:
        """Nothing is in flight, and nothing could be: the time until the next step is no bubble."""
        self._device_busy_until = None

    def add(self, track: str, kind: str, step: int, begin: float, end: float) -> None:
        name = f"{track}.{kind}"
        seconds = end - begin
        self.totals[name] = self.totals.get(name, 0.0) + seconds
        usual = self._usual.get(name, seconds)
        self._usual[name] = usual + RECENT * (seconds - usual)
        if self.record:
            self.spans.append(Span(track, kind, step, begin, end))

    def reset(self) -> None:
        self.spans.clear()
        self.totals.clear()
        self._device_busy_until = None

    def usual(self, track: str, *kinds: str) -> float:
        """Seconds of a step that these kinds take together, lately."""
        return sum(self._usual.get(f"{track}.{kind}", 0.0) for kind in kinds)

    @property
    def bubble_share(self) -> float:
        """The device's idle share of the time between its first and its last work, 0 to 1."""
        busy = self.totals.get("device.forward", 0.0) + self.totals.get("device.sample", 0.0)
        bubble = self.totals.get("device.bubble", 0.0)
        return bubble / (busy + bubble) if busy else 0.0

    def chrome(self) -> dict[str, Any]:
        """The recorded spans in Chrome's trace format (chrome://tracing, Perfetto): host and device have a row each."""
        first = min((span.begin for span in self.spans), default=0.0)
        return {
            "displayTimeUnit": "ms",
            "traceEvents": [
                {
                    "name": span.kind,
                    "ph": "X",
                    "pid": 1,
                    "tid": span.track,
                    "ts": (span.begin - first) * 1e6,
                    "dur": (span.end - span.begin) * 1e6,
                    "args": {"step": span.step},
                }
                for span in self.spans
            ],
        }
