"""ThreadGovernor: how many threads the next step should use, judged by what steps took. Plain Python.

A step forks and joins some 250 times. On an idle machine all cores are best (7.3 ms a token against 11.4 with one).
When other work holds a core, each join waits for the thread that does not get to run: the same step was measured at
36 to 280 ms, and one thread alone at 16 to 26 ms. Results are the same bits either way in bfloat16 and int8 (a test).

    trial: a few steps with each count in turn -> keep the better one. One thread comes first: the first prompt runs
           before anything is known, and all threads on a busy machine can cost it seconds (7 s were measured)
    all threads kept: try again when a few steps in a row are far slower than usual
    one thread kept:  try again after a while, and after longer and longer whiles as long as it stays better
"""

from __future__ import annotations

from collections import deque

TRIAL_STEPS = 2  # of each count; the better of them counts
TOO_SLOW = 1.7  # times the usual cost of a step ...
HOPELESS = 3.0  # times the cost of one thread: all threads are not tried again at once
SLOW_STEPS = 3  # ... so many times in a row
FIRST_WAIT, LONGEST_WAIT = 64, 1024  # steps


class ThreadGovernor:
    """`threads` is what the next step should use, 1 or `most`. Only steps of comparable cost are reported."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = most
        self._trial: deque[int] = deque()
        self._costs: dict[int, float] = {}
        self._usual = 0.0
        self._slow = 0
        self._wait = self._waited = 0
        if most > 1:
            self._start_trial()

    @property
    def threads(self) -> int:
        return self._trial[0] if self._trial else self._kept

    def report(self, seconds: float, rows: int) -> None:
        """The last step had `threads` threads and `rows` decode rows, and nothing else."""
        cost = seconds / (6 + rows)  # a step of 8 rows takes about twice as long as one of 1
        if self._most == 1:
            return
        if self._trial:
            used = self._trial.popleft()
            self._costs[used] = min(self._costs.get(used, cost), cost)
            if used > 1 and cost > HOPELESS * self._costs[1]:
                self._trial.clear()
            if not self._trial:
                self._decide()
        elif self._kept == 1:
            self._waited += 1
            if self._waited >= self._wait:
                self._start_trial()
        else:
            self._watch(cost)

    def _start_trial(self) -> None:
        self._costs = {}
        self._trial.extend([1] * TRIAL_STEPS + [self._most] * TRIAL_STEPS)

    def _decide(self) -> None:
        if self._costs[1] < self._costs[self._most]:
            self._wait = min(max(2 * self._wait, FIRST_WAIT), LONGEST_WAIT)
            self._kept, self._waited = 1, 0
        else:
            self._kept, self._wait, self._slow = self._most, 0, 0
            self._usual = self._costs[self._most]

    def _watch(self, cost: float) -> None:
        if cost < TOO_SLOW * self._usual:
            self._slow = 0
            self._usual += 0.05 * (cost - self._usual)  # texts grow, and steps with them
            return
        self._slow += 1
        if self._slow >= SLOW_STEPS:
            self._slow = 0
            self._start_trial()
