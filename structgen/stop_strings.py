"""Stop strings: text is held back while it could still become one."""

from __future__ import annotations

from collections.abc import Sequence

MAX_STOPS, MAX_STOP = 16, 256  # how many, and how many characters of each


class StopStrings:
    """Feed it text; it passes on what can be shown. After a `hit`, which names the stop string, it passes nothing more.

    Invariant: what was passed on and what is held, joined, is the text so far, up to the first stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit: str | None = None
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        if self.hit is not None or not self._stops:
            return text if self.hit is None else ""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.hit = min(found, key=lambda place: place[0])
            return self._pass(at, rest="")
        keep = max(map(self._overlap, self._stops))
        cut = len(self._held) - keep
        return self._pass(cut, rest=self._held[cut:])

    def flush(self) -> str:
        """The text is over: what was held is shown after all."""
        return self._pass(len(self._held), rest="")

    def _pass(self, end: int, rest: str) -> str:
        shown, self._held = self._held[:end], rest
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest beginning of `stop` that the held text ends with."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)


def checked_stops(stop: str | Sequence[str] | None) -> list[str]:
    """The stop strings of an argument. Raises ValueError that starts with `stop`."""
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if len(stops) > MAX_STOPS or not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP for text in stops):
        raise ValueError(f"stop takes at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters")
    return stops
