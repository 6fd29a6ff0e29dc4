"""JumpPredictor: how likely the next sampled token forces others after it, by where its grammar stands."""

from __future__ import annotations

from collections.abc import Hashable

MOST_STATES = 1 << 16  # remembered; about 10 MB
RECENT = 0.1  # weight of the latest token in the rate of all states together
EXPECTED = 1.0  # of how many tokens that rate is worth in a state of its own
NEVER = (0, 0)  # seen


class JumpPredictor:
    """As a processor predicts branches: counts by state, and the rate of all states where little is known of one.

    A guess costs a step where it is wrong, and never a token: nothing depends on it but when a step is launched.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[int]] = {}  # state -> tokens sampled there, and how many led to a jump
        self._rate = 0.0

    def chance(self, state: Hashable) -> float:
        """Between 0 and 1."""
        tokens, jumps = self._seen.get(state, NEVER)
        return (jumps + EXPECTED * self._rate) / (tokens + EXPECTED)

    def note(self, state: Hashable, jumped: bool) -> None:
        """A token was sampled at `state`; `jumped`: tokens were forced after it."""
        seen = self._seen.get(state)
        if seen is None:
            if len(self._seen) == MOST_STATES:
                self._forget_half()
            seen = self._seen[state] = [0, 0]
        seen[0] += 1
        seen[1] += jumped
        self._rate += RECENT * (jumped - self._rate)

    def _forget_half(self) -> None:
        """The states that came first."""
        for state in list(self._seen)[: MOST_STATES // 2]:
            del self._seen[state]
