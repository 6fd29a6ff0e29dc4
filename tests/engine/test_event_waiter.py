"""EventWaiter on a clock that is not there: how late it notices an event, and what it does meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from structgen.engine import cuda_events
from structgen.engine.cuda_events import EventWaiter

US = 1e-6


class Clock:
    """A sleep lasts 70 us longer than it should, a look 1 us. `slept` and `watched` add up."""

    def __init__(self) -> None:
        self.now = self.slept = self.watched = self.event_at = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 70 * US
        self.slept += seconds + 70 * US

    def select(self, *nothing: object) -> None:
        self.now += 0.5 * US
        self.watched += 0.5 * US

    def query(self) -> bool:
        self.now += 0.5 * US
        return self.now >= self.event_at

    def wait(self, waiter: EventWaiter, seconds: float, *, limit: float = 10.0) -> float:
        """For an event in so many seconds; how late it was noticed."""
        self.event_at = self.now + seconds
        assert waiter.happens(self, limit)  # type: ignore[arg-type]
        return self.now - self.event_at


class WindowsClock(Clock):
    """A sleep of no time is as short as Linux's look at nothing, which is an error there."""

    def sleep(self, seconds: float) -> None:
        if seconds:
            super().sleep(seconds)
        else:
            super().select()

    def select(self, *nothing: object) -> None:
        raise OSError(10022, "An invalid argument was supplied")


@pytest.fixture(params=[Clock, WindowsClock])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made: Clock = request.param()
    monkeypatch.setattr(cuda_events, "WINDOWS", isinstance(made, WindowsClock))
    monkeypatch.setattr(cuda_events, "time", SimpleNamespace(perf_counter=lambda: made.now, sleep=made.sleep))
    monkeypatch.setattr(cuda_events, "select", SimpleNamespace(select=made.select))
    return made


@pytest.mark.parametrize("usual", [0.0, 50 * US, 110 * US, 300 * US, 1e-3, 20e-3])
def test_an_event_that_comes_as_usual_is_noticed_at_once(usual: float, clock: Clock) -> None:
    waiter = EventWaiter()
    for _ in range(50):
        clock.wait(waiter, usual)
    clock.slept = clock.watched = 0.0
    late = [clock.wait(waiter, usual) for _ in range(100)]
    assert max(late) < 3 * US
    if usual > (160 if isinstance(clock, WindowsClock) else 100) * US:
        assert clock.slept > 99 * max(70 * US, usual - 160 * US), "others run through most of it"


@pytest.mark.parametrize(("before", "after"), [(20e-3, 300 * US), (5e-3, 0.0), (1e-3, 400 * US), (300 * US, 5e-3)])
def test_when_waits_become_shorter_or_longer_few_events_are_late(before: float, after: float, clock: Clock) -> None:
    waiter = EventWaiter()
    for _ in range(50):
        clock.wait(waiter, before)
    late = [clock.wait(waiter, after) for _ in range(40)]
    assert sum(late) < 2 * before + 1e-3
    assert max(late[-20:]) < 3 * US


def test_waits_that_vary_by_half_are_noticed_soon(clock: Clock) -> None:
    waiter = EventWaiter()
    late = [clock.wait(waiter, (400 + 200 * (turn % 3)) * US) for turn in range(300)]
    assert sum(late[30:]) / 270 < 40 * US


def test_a_long_wait_now_and_then_makes_no_short_one_late(clock: Clock) -> None:
    """A prompt's step among decode steps."""
    waiter = EventWaiter()
    for turn in range(200):
        late = clock.wait(waiter, 5e-3 if turn % 5 == 0 else 300 * US)
        assert turn % 5 == 0 or late < 3 * US


def test_an_event_that_never_comes_ends_in_time_and_is_not_watched_all_along(clock: Clock) -> None:
    waiter = EventWaiter()
    for _ in range(20):
        clock.wait(waiter, 1e-3)
    begin, clock.event_at, clock.watched = clock.now, 1e9, 0.0
    assert not waiter.happens(clock, 2.0)  # type: ignore[arg-type]
    assert 2.0 <= clock.now - begin < 2.001
    assert clock.watched < 3e-3 or isinstance(clock, WindowsClock)


def test_a_look_at_an_event_lets_others_run_on_this_system() -> None:
    cuda_events._let_others_run()
