"""EventWaiter: an event with a deadline; StepEvents and DeviceClock: when parts of a step ran, in the host's time."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Iterable

import torch

MARGIN = 150e-6  # seconds before the expected end of a wait: it is watched from then on. A sleep lasts 70e-6 too long
LEAST_SLEEP = 100e-6  # seconds: longer than a sleep of none
MOST_WATCHING = 2e-3  # seconds without a pause; an event that is so late may be later still
WINDOWS = os.name == "nt"
RECENT = 8  # so many waits are remembered; the shortest of them is what the next is expected to take at least


def make_event(*, timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


def make_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class EventWaiter:
    """Waits for events that come no sooner than the ones before, and notices them within microseconds.

    It polls, since an event cannot be waited for with a deadline. Through most of the expected wait it sleeps, so that
    other threads run; then it looks without a pause, letting go of the GIL each time. (`time.sleep(0)` takes 50 to 70
    us, and every longer sleep that much more than it should: Linux's timer slack. `select` on nothing takes 0.5.)
    """

    def __init__(self) -> None:
        self._waits = deque([0.0], maxlen=RECENT)  # seconds

    def happens(self, event: torch.cuda.Event, seconds: float) -> bool:
        """Whether the event comes within so many seconds."""
        begin = time.perf_counter()
        expected = min(self._waits)
        if expected > LEAST_SLEEP and not _is_there(event):
            nap = max(0.0, min(expected - MARGIN, seconds))
            time.sleep(nap)
            if _is_there(event):  # it may have been there for long
                self._waits.append(nap / 2)
                return True
        watched = time.perf_counter()
        while not _is_there(event):
            now = time.perf_counter()
            if now > begin + seconds:
                return False
            if now > watched + MOST_WATCHING:
                time.sleep(0)
            else:
                _let_others_run()
        self._waits.append(time.perf_counter() - begin)
        return True


def _let_others_run() -> None:
    """For less than a microsecond. Windows refuses to `select` from nothing; its sleep of no time is as short."""
    if WINDOWS:
        time.sleep(0)
    else:
        select.select((), (), (), 0)


def _is_there(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def comes_to_rest(streams: Iterable[torch.cuda.Stream], seconds: float) -> bool:
    """Whether all that the streams have been given is through within so many seconds."""
    deadline = time.perf_counter() + seconds
    events = []
    for stream in streams:
        events.append(make_event())
        events[-1].record(stream)
    return all(EventWaiter().happens(event, max(0.0, deadline - time.perf_counter())) for event in events)


class StepEvents:
    """One slot's timed events. `samples`: whether its step had rows to sample, so that the last two count."""

    def __init__(self) -> None:
        self.forward_begin, self.forward_end, self.sample_begin, self.sampled = (
            make_event(timed=True) for _ in range(4)
        )
        self.samples = False


class DeviceClock:
    """Device times as `time.perf_counter` seconds: each event counts from the one before, which keeps them precise.

    Owns the event it counts from: it keeps a step's last event and gives the slot the one that it had so far, since
    the slot's next step may record its events before the step is asked for.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._base = make_event(timed=True)
        self._base.record(stream)
        self._base.synchronize()
        self._base_time = time.perf_counter()

    def spans(self, events: StepEvents) -> list[tuple[str, float, float]]:
        """The parts of a step that is through. Steps are asked for in their order; one that failed is left out."""
        forward = self._at(events.forward_begin), self._at(events.forward_end)
        if not events.samples:
            self._base, events.forward_end = events.forward_end, self._base
            self._base_time = forward[1]
            return [("forward", *forward)]
        sample = self._at(events.sample_begin), self._at(events.sampled)
        self._base, events.sampled = events.sampled, self._base
        self._base_time = sample[1]
        return [("forward", *forward), ("sample", *sample)]

    def _at(self, event: torch.cuda.Event) -> float:
        return self._base_time + float(self._base.elapsed_time(event)) / 1000
