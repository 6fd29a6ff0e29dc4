"""Rounds: contenders take turns, so that a busy moment of the machine hits all alike; medians are what counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping


class Rounds:
    """What each contender cost in each round (seconds, or seconds a token)."""

    def __init__(self) -> None:
        self.costs: dict[str, list[float]] = {}

    def take_turns(self, contenders: Mapping[str, Callable[[], float]]) -> None:
        """One round; who begins changes from round to round."""
        names = [*contenders]
        first = len(self.costs.get(names[0], ())) % len(names)
        for name in names[first:] + names[:first]:
            self.costs.setdefault(name, []).append(contenders[name]())

    def median(self, name: str) -> float:
        return statistics.median(self.costs[name])

    def best(self, name: str) -> float:
        return min(self.costs[name])

    def ratio(self, name: str, other: str) -> float:
        """The median of the rounds' ratios: steadier than the ratio of medians where a machine drifts."""
        pairs = zip(self.costs[name], self.costs[other], strict=True)
        return statistics.median(one / two for one, two in pairs)
