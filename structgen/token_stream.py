"""Streams of token ids: what the engine's thread and the event loop say to each other, and how it can fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from structgen.errors import StructgenError


class SequenceLike(Protocol):
    """What is read of `structgen.engine.Sequence`."""

    @property
    def closed_early(self) -> bool: ...

    @property
    def error(self) -> str | None: ...


class StepOutputLike(Protocol):
    """What is read of `structgen.engine.StepOutput`."""

    @property
    def sequence(self) -> Any: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> Sequence[Any]: ...

    @property
    def finish_reason(self) -> str | None: ...


class EngineLike(Protocol):
    """What is used of `structgen.engine.Engine`; a fake in tests."""

    @property
    def has_work(self) -> bool: ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded LoRA adapters; any thread may read it, as it may call `read_adapter`."""
        ...

    def submit(
        self,
        prompt_ids: Any,
        params: Any,
        matcher: Any = None,
        eos_token_ids: Any = frozenset(),
        *,
        adapter: str | None = None,
    ) -> Any: ...

    def read_adapter(self, folder: Any) -> Any: ...

    def load_adapter(self, name: str, source: Any) -> None: ...

    def unload_adapter(self, name: str) -> None: ...

    def step(self) -> Sequence[StepOutputLike]: ...

    def cancel(self, sequence: Any) -> None: ...


class EngineStoppedError(StructgenError):
    """The engine takes no requests: it shuts down, or it broke."""


class EngineBusyError(StructgenError):
    """So many requests are waiting that one more would only wait too."""


class EngineFailedError(StructgenError):
    """This request failed inside the engine; `message` says why."""


class TokenEvent(NamedTuple):
    """News of one stream.

    Attributes:
        token_ids: the tokens of this tick, the end-of-sequence token not among them.
        finish_reason: None while it runs; then "stop", "length", "cancelled" or "error".
        logprobs: one entry a token, for requests that want them.
    """

    stream: TokenStream
    token_ids: Sequence[int]
    finish_reason: str | None
    logprobs: Sequence[Any] = ()


class News(NamedTuple):
    """What the engine's thread has to say to a stream: an event before it is one."""

    token_ids: Sequence[int]
    finish_reason: str | None = None
    closed_early: bool = False
    error: str | None = None
    logprobs: Sequence[Any] = ()


class EngineCall:
    """Something to do in the engine's thread between two ticks; `done` tells the event loop how it went."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.function = function

    def settle(self, error: Exception | None) -> None:
        """In the event loop's thread."""
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)


class TokenStream:
    """One request on its way: iterate over it for lists of token ids.

    Attributes:
        finish_reason: None until the last event arrived.
        closed_early: the budget narrowed the choice of tokens (then finish_reason is "length").
        error: why, when finish_reason is "error".
    """

    def __init__(
        self,
        request: tuple[Any, ...],
        events: asyncio.Queue[TokenEvent] | None,
        cancel: Callable[[TokenStream], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[TokenEvent] = asyncio.Queue() if events is None else events
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self.finish_reason: str | None = None
        self.closed_early = False
        self.error: str | None = None
        self.request = request
        self._cancel = cancel
        self._mail: list[News] = []
        self._mail_lock = threading.Lock()

    def cancel(self) -> None:
        """Free the request at the next tick; harmless when it is over. Any thread may call this."""
        self._cancel(self)

    async def __aiter__(self) -> AsyncIterator[Sequence[int]]:
        """Lists of token ids as they come. Raises EngineFailedError when the request fails."""
        reason: str | None = None
        while reason is None:
            event = await self.events.get()
            reason = event.finish_reason
            if event.token_ids:
                yield event.token_ids
        if reason == "error":
            raise EngineFailedError(self.error or "the engine failed")

    def post(self, news: News) -> None:
        """From the engine's thread: news for the event loop. RuntimeError when that loop is gone.

        The loop is woken once for all that is posted until it looks: an engine faster than the loop must not fill the
        loop's own queue, behind which everything else would wait.
        """
        with self._mail_lock:
            self._mail.append(news)
            first = len(self._mail) == 1
        if first:
            self.loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with self._mail_lock:
            mail, self._mail = self._mail, []
        if self.finish_reason is not None:
            return
        last = mail[-1]
        self.finish_reason, self.closed_early, self.error = last.finish_reason, last.closed_early, last.error
        token_ids = [token for news in mail for token in news.token_ids]
        logprobs = [entry for news in mail for entry in news.logprobs]
        self.events.put_nowait(TokenEvent(self, token_ids, last.finish_reason, logprobs))

    def settle(self, error: Exception | None) -> None:
        """In the event loop's thread: the engine took the request, or refused it."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)
