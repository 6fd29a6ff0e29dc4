"""Stop strings: text is held back while it could still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed it text; it passes on what can be shown. After a `hit` it passes nothing more.

    Invariant: what was passed on and what is held, joined, is the text so far, up to the first stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        if self.hit or not self._stops:
            return "" if self.hit else text
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.hit = True
            return self._pass(min(found), rest="")
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
