"""One request's answers while they grow: token ids from the engine, whole characters to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from structgen.answer_text import AnswerText, Shown
from structgen.async_engine import AsyncEngine
from structgen.token_stream import EngineFailedError, EngineStoppedError, TokenEvent, TokenStream


class Piece(NamedTuple):
    """New text of one answer, which `choice` numbers; the engine's logprobs of the tokens that begin in it."""

    choice: int
    text: str
    finish_reason: str | None
    logprobs: list[Any]


@dataclass
class Answer:
    """One of a request's `n` answers.

    Attributes:
        logprobs: the engine's, of the tokens that were shown.
        cut: the stop string that ended it. What it has is then not the whole value of a constraint.
    """

    stream: TokenStream
    content: AnswerText
    tokens: int = 0
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.content.text

    @property
    def cut(self) -> str | None:
        return self.content.stop

    def take(self, event: TokenEvent) -> Shown:
        """Add an event's tokens; what may be shown now."""
        self.tokens += len(event.token_ids)
        shown = self.content.push(event.token_ids, event.logprobs)
        if self.cut is None and event.finish_reason is not None:
            rest = self.content.flush()
            shown = Shown(shown.text + rest.text, shown.logprobs + rest.logprobs)
            if self.cut is None:
                self.finish_reason = self._reason(event.finish_reason)
        if self.cut is not None:
            self.finish_reason = "stop"
            self.stream.cancel()
        self.logprobs += shown.logprobs
        return shown

    def _reason(self, reason: str) -> str:
        if reason == "error":
            raise EngineFailedError(self.stream.error or "the engine failed")
        if reason == "cancelled":
            raise EngineStoppedError("the server is shutting down")
        # A client must be able to trust "stop": what the budget steered or cut is never called that.
        return "length" if self.stream.closed_early else reason


class Generation:
    """The answers of one request, in the order of their index."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.answers: list[Answer] = []
        self.prompt_tokens = 0
        self._engine = engine
        self._streams: list[TokenStream | None] = []
        self._events: asyncio.Queue[TokenEvent] = asyncio.Queue()

    async def start(
        self,
        prompt: list[int],
        params: Sequence[Any],
        matcher: Callable[[], Any] | None,
        eos_token_ids: frozenset[int],
        new_decoder: Callable[[], Any],
        stops: Sequence[str],
        adapter: str | None = None,
    ) -> None:
        """Submit one answer for each of `params`; all or none. Raises what `AsyncEngine.submit` raises."""
        self.prompt_tokens = len(prompt)
        self._streams = [None] * len(params)

        async def submit(index: int) -> None:
            self._streams[index] = await self._engine.submit(
                prompt, params[index], matcher, eos_token_ids, events=self._events, adapter=adapter
            )

        try:
            outcomes = await asyncio.gather(*map(submit, range(len(params))), return_exceptions=True)
            for error in outcomes:
                if error is not None:
                    raise error
        except BaseException:
            self.cancel()
            raise
        accepted = [stream for stream in self._streams if stream is not None]
        self.answers = [Answer(stream, AnswerText(new_decoder(), stops)) for stream in accepted]

    def cancel(self) -> None:
        """Free what still runs; harmless at any time."""
        for stream in self._streams:
            if stream is not None:
                stream.cancel()

    async def pieces(self, patience: float | None = None) -> AsyncIterator[Piece | None]:
        """New text as it comes, until every answer has its finish reason; None after `patience` seconds of silence.

        Raises:
            EngineFailedError, EngineStoppedError: an answer will not be finished.
        """
        by_stream = {id(answer.stream): (index, answer) for index, answer in enumerate(self.answers)}
        try:
            while any(answer.finish_reason is None for answer in self.answers):
                try:
                    event = await asyncio.wait_for(self._events.get(), patience)
                except TimeoutError:
                    yield None
                    continue
                index, answer = by_stream[id(event.stream)]
                if answer.finish_reason is not None:  # the rest of an answer that met a stop string
                    continue
                shown = answer.take(event)
                if shown.text or shown.logprobs or answer.finish_reason is not None:
                    yield Piece(index, shown.text, answer.finish_reason, shown.logprobs)
        finally:
            self.cancel()

    @property
    def usage(self) -> dict[str, int]:
        completion = sum(answer.tokens for answer in self.answers)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }
