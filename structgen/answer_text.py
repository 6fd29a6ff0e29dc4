"""AnswerText: one answer while it grows, from token ids to the text that may be shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

from structgen.stop_strings import StopStrings


class DecoderLike(Protocol):
    """Token ids -> text, never half a character."""

    def push(self, ids: Iterable[int], /) -> str: ...

    def flush(self) -> str: ...


class Shown(NamedTuple):
    """New text, and the logprob entries of the tokens that begin in it."""

    text: str
    logprobs: list[Any]


class AnswerText:
    """Whole characters only, up to the first stop string; text that may become one is held back.

    Attributes:
        text: all that was shown.
        stop: the stop string that ended the answer; nothing is shown after it.
    """

    def __init__(self, decoder: DecoderLike, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self._decoder = decoder
        self._stops = StopStrings(stops)
        self._decoded = 0  # characters, those held back and those after a stop string included
        self._waiting: deque[tuple[int, Any]] = deque()  # entries of tokens not yet shown: (where it begins, entry)

    @property
    def stop(self) -> str | None:
        return self._stops.hit

    def push(self, token_ids: Sequence[int], logprobs: Sequence[Any] = ()) -> Shown:
        """`logprobs`: one entry a token, or none at all."""
        assert not logprobs or len(logprobs) == len(token_ids)
        new = []
        for token, entry in zip_longest(token_ids, logprobs):
            if entry is not None:
                self._waiting.append((self._decoded, entry))
            new.append(self._decoder.push([token]))
            self._decoded += len(new[-1])
        return self._show(self._stops.push("".join(new)), over=False)

    def flush(self) -> Shown:
        """The answer is over: what was held back is shown after all, unless a stop string ended it."""
        return self._show(self._stops.push(self._decoder.flush()) + self._stops.flush(), over=self.stop is None)

    def _show(self, text: str, *, over: bool) -> Shown:
        self.text += text
        begun = []
        while self._waiting and (over or self._waiting[0][0] < len(self.text)):
            begun.append(self._waiting.popleft()[1])
        return Shown(text, begun)
