"""Waiting: whether to wait for a step's tokens before the next one is launched, where both could be in flight."""

from __future__ import annotations

from structgen.engine.trace import RECENT, Trace

FORGET = 0.01  # how fast, a step, what was measured gives way to what is expected


class Waiting:
    """A step launched before the last one's tokens are known runs without the tokens that these force, so each jump
    costs its row one forward pass more. Waiting lets the device idle, and costs all rows: about what the host does
    between the two, which is expected until it has been measured.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._cost: float | None = None  # seconds

    def pays(self, chances: list[float]) -> bool:
        """`chances`: of each row, how likely its next token forces others."""
        if not any(chances):
            return False
        expected = self._trace.usual("host", "commit", "plan", "launch")
        cost = expected if self._cost is None else self._cost
        if sum(chances) / len(chances) * self._trace.usual("device", "forward") > cost:
            return True
        self._cost = cost + FORGET * (expected - cost)  # or a single hiccup would decide for ever
        return False

    def note(self, idle: float) -> None:
        """The device idled so long, in seconds, before a step that had waited."""
        self._cost = idle if self._cost is None else self._cost + RECENT * (idle - self._cost)
