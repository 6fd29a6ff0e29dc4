"""The engine in a thread of its own, and asyncio on the other side.

Ownership: the thread owns the engine and calls every method of it; nobody else may. The event loop owns the streams.
Between them lie two queues: commands go in (`queue.SimpleQueue`), events come out (`TokenStream.post`).
Every stream gets exactly one last event, whatever happens: finished, cancelled, failed, or shut down.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from structgen.token_stream import (
    EngineBusyError,
    EngineCall,
    EngineLike,
    EngineStoppedError,
    News,
    StepOutputLike,
    TokenEvent,
    TokenStream,
)

log = logging.getLogger("structgen.engine")

# A broken step fails the requests in flight; so many in a row, with none that worked between them, end the engine.
_MAX_FAILED_STEPS = 3
NOTHING = News(())
_Command = Literal["submit", "cancel", "cancel all", "call", "wake"]


class AsyncEngine:
    """Drives one engine for any number of asyncio callers.

    Args:
        engine: owned by this object's thread from `start` on.
        max_pending: requests in flight (running and waiting) before `submit` refuses.
    """

    def __init__(self, engine: EngineLike, *, max_pending: int = 256) -> None:
        self.failure: str | None = None
        self.steps = 0
        self.last_progress = time.monotonic()
        self._engine = engine
        self._max_pending = max_pending
        self._commands: queue.SimpleQueue[tuple[_Command, TokenStream | EngineCall | None]] = queue.SimpleQueue()
        self._loading = asyncio.Lock()  # one adapter's files in memory at a time
        self._streams: dict[int, tuple[TokenStream, Any]] = {}  # id(sequence) -> both; the thread's own
        self._pending = 0
        self._lock = threading.Lock()  # guards _pending and _closing, the only state of both sides
        self._closing = False
        self._failed_steps = 0
        self._thread = threading.Thread(target=self._run, name="structgen-engine", daemon=True)

    # -- any thread ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def pending(self) -> int:
        """Requests in flight, running and waiting."""
        return self._pending

    def is_making_progress(self, *, patience: float = 60.0) -> bool:
        """Whether the thread lives and, when there is work, ticked within the last `patience` seconds."""
        if self.failure is not None or self._closing or not self._thread.is_alive():
            return False
        return self._pending == 0 or time.monotonic() - self.last_progress < patience

    async def submit(
        self,
        prompt_ids: Iterable[int],
        params: Any,
        matcher: Any = None,
        eos_token_ids: frozenset[int] = frozenset(),
        *,
        events: asyncio.Queue[TokenEvent] | None = None,
        adapter: str | None = None,
    ) -> TokenStream:
        """Hand a request over and wait until the engine has taken it in; see `Engine.submit` for what it may refuse.

        Args:
            matcher: a Matcher, or a function that makes one; it is called in the engine's thread.
            events: a queue to share between several streams; each event names its stream.
            adapter: the name of a loaded LoRA adapter.
        Raises:
            EngineBusyError, EngineStoppedError, and what `Engine.submit` raises.
        """
        stream = TokenStream((list(prompt_ids), params, matcher, eos_token_ids, adapter), events, self._cancel)
        with self._lock:
            if self._closing or self.failure is not None:
                raise EngineStoppedError(self.failure or "the engine is shutting down")
            if self._pending >= self._max_pending:
                raise EngineBusyError(f"{self._pending} requests are in flight already", hint="try again later")
            self._pending += 1
            self._commands.put(("submit", stream))
        try:
            await stream.accepted
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return stream

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded LoRA adapters."""
        return self._engine.adapters

    async def load_adapter(self, name: str, folder: str | Path) -> None:
        """Load a LoRA adapter while requests run; see `Engine.load_adapter` for what it may refuse.

        Its files are read in a thread of their own, and only copied between two ticks.
        """
        async with self._loading:
            weights = await asyncio.to_thread(self._engine.read_adapter, folder)
            await self._call(lambda: self._engine.load_adapter(name, weights))

    async def unload_adapter(self, name: str) -> None:
        """Refuse the name from now on; see `Engine.unload_adapter`."""
        await self._call(lambda: self._engine.unload_adapter(name))

    async def _call(self, function: Callable[[], None]) -> None:
        call = EngineCall(function)
        with self._lock:
            if self._closing or self.failure is not None:
                raise EngineStoppedError(self.failure or "the engine is shutting down")
            self._commands.put(("call", call))
        await call.done

    async def stop(self, grace: float = 10.0) -> None:
        """Refuse new requests, let the running ones finish for `grace` seconds, then cancel them. Idempotent."""
        with self._lock:
            self._closing = True
        self._commands.put(("wake", None))
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, grace)
            self._commands.put(("cancel all", None))
            await asyncio.to_thread(self._thread.join, 2.0)
        if self._thread.is_alive():  # stuck inside a step: nobody may wait for it
            for stream, _ in list(self._streams.values()):
                self._tell(stream.post, News((), "error", error="the engine did not stop in time"))
        self._refuse_the_rest()

    def _cancel(self, stream: TokenStream) -> None:
        if stream.finish_reason is None:
            self._commands.put(("cancel", stream))

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._obey()
                if self.failure is not None or (self._closing and not self._engine.has_work and self._commands.empty()):
                    break
                if self._engine.has_work:
                    self._step()
        except Exception as error:  # the engine itself is broken: say so, and leave nobody waiting
            self._break(error)
        finally:
            self._refuse_the_rest()

    def _obey(self) -> None:
        """Carry out what was asked; wait for something to do when there is nothing."""
        if not self._engine.has_work and not self._closing:
            self._carry_out(*self._commands.get())
            self.last_progress = time.monotonic()
        while not self._commands.empty():
            self._carry_out(*self._commands.get())

    def _carry_out(self, command: _Command, about: TokenStream | EngineCall | None) -> None:
        if isinstance(about, EngineCall):
            self._do(about)
        elif command == "submit" and about is not None:
            self._take_in(about)
        elif command != "wake":
            self._drop(about)

    def _do(self, call: EngineCall) -> None:
        error: Exception | None = None
        try:
            call.function()
        except Exception as problem:
            error = problem
        self._tell(call.loop.call_soon_threadsafe, call.settle, error)

    def _take_in(self, stream: TokenStream) -> None:
        if stream.accepted.cancelled():
            self._forget()
            return
        try:
            prompt_ids, params, matcher, eos_token_ids, adapter = stream.request
            cursor = matcher() if callable(matcher) else matcher
            sequence = self._engine.submit(prompt_ids, params, cursor, eos_token_ids, adapter=adapter)
        except Exception as error:
            self._forget()
            self._tell(stream.loop.call_soon_threadsafe, stream.settle, error)
            return
        self._streams[id(sequence)] = (stream, sequence)
        self._tell(stream.loop.call_soon_threadsafe, stream.settle, None)

    def _drop(self, stream: TokenStream | None) -> None:
        """Cancel one stream, or all of them for None."""
        for key, (other, sequence) in list(self._streams.items()):
            if stream is None or other is stream:
                self._engine.cancel(sequence)
                self._finish(key, "cancelled", None)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            log.exception("a step of the engine failed")
            self._fail_streams(error)
            return
        self._failed_steps = 0
        self.steps += 1
        self.last_progress = time.monotonic()
        for output in outputs:
            self._publish(output)

    def _publish(self, output: StepOutputLike) -> None:
        key = id(output.sequence)
        if key not in self._streams:  # cancelled in the meantime
            return
        stream, sequence = self._streams[key]
        news = News(list(output.token_ids), logprobs=list(output.logprobs))
        if output.finish_reason is not None:
            self._finish(key, output.finish_reason, sequence.error, news)
        elif output.token_ids and not self._tell(stream.post, news):
            self._drop(stream)

    def _finish(self, key: int, reason: str, error: str | None, news: News = NOTHING) -> None:
        stream, sequence = self._streams.pop(key)
        self._forget()
        closed_early = bool(sequence.closed_early)
        self._tell(stream.post, news._replace(finish_reason=reason, closed_early=closed_early, error=error))

    def _fail_streams(self, error: Exception) -> None:
        """A step broke: it cannot be known whose fault it is, so all in flight fail, and the engine is emptied."""
        self._failed_steps += 1
        reason = f"{type(error).__name__}: {error}"
        for key, (_, sequence) in list(self._streams.items()):
            self._engine.cancel(sequence)
            self._finish(key, "error", reason)
        if self._engine.has_work and not self._streams:
            self._engine.step()  # lets it drop what was cancelled; raises when it is beyond repair
        if self._failed_steps >= _MAX_FAILED_STEPS:
            raise error

    def _break(self, error: Exception) -> None:
        log.error("the engine stopped: %s: %s", type(error).__name__, error)
        with self._lock:
            self.failure = f"the engine stopped: {type(error).__name__}: {error}"
        for key in list(self._streams):
            self._finish(key, "error", self.failure)

    def _refuse_the_rest(self) -> None:
        """After the last tick: answer those whom the engine never saw."""
        with self._lock:
            self._closing = True
        while True:
            try:
                command, about = self._commands.get_nowait()
            except queue.Empty:
                return
            if command in ("submit", "call") and about is not None:
                if command == "submit":
                    self._forget()
                error = EngineStoppedError(self.failure or "the engine is shutting down")
                self._tell(about.loop.call_soon_threadsafe, about.settle, error)

    def _forget(self) -> None:
        with self._lock:
            self._pending -= 1

    @staticmethod
    def _tell(function: Callable[..., object], *arguments: Any) -> bool:
        """Call something that wakes a stream's event loop; False when that loop is gone."""
        try:
            function(*arguments)
        except RuntimeError:
            return False
        return True
