"""The engine thread: order, cancelling, failures, shutdown; nobody is ever left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from structgen.async_engine import AsyncEngine
from structgen.engine.errors import AdapterError, ModelError
from structgen.token_stream import EngineBusyError, EngineFailedError, EngineStoppedError, TokenEvent, TokenStream

T = TypeVar("T")


@dataclass
class FakeSequence:
    script: list[int]
    endless: bool
    finish_reason: str | None = None
    closed_early: bool = False
    error: str | None = None
    output_ids: list[int] = field(default_factory=list)


@dataclass
class FakeOutput:
    sequence: FakeSequence
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[Any] = field(default_factory=list)


class FakeEngine:
    """Echoes the prompt, one token a tick, forever when params are "endless"; notes which threads call it."""

    def __init__(self) -> None:
        self.running: list[FakeSequence] = []
        self.cancelled: list[FakeSequence] = []
        self.threads: set[int] = set()
        self.faults: list[Exception] = []
        self.gate: threading.Event | None = None
        self.in_step = threading.Event()
        self.adapters: tuple[str, ...] = ()
        self.readers: set[int] = set()

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def submit(
        self,
        prompt_ids: Any,
        params: Any,
        matcher: Any = None,
        eos_token_ids: Any = frozenset(),
        *,
        adapter: str | None = None,
    ) -> Any:
        self.threads.add(threading.get_ident())
        if params == "bad":
            raise ValueError("max_tokens must be at least 1")
        if adapter is not None and adapter not in self.adapters:
            raise AdapterError(f"there is no adapter named {adapter!r}", unknown=True)
        sequence = FakeSequence(list(prompt_ids), params == "endless")
        self.running.append(sequence)
        return sequence

    def step(self) -> list[FakeOutput]:
        self.threads.add(threading.get_ident())
        self.in_step.set()
        if self.gate is not None:
            self.gate.wait(10)
        if self.faults:
            raise self.faults.pop()
        outputs = []
        for sequence in list(self.running):
            token = sequence.script.pop(0)
            sequence.output_ids.append(token)
            if sequence.endless:
                sequence.script.append(token)
            if not sequence.script:
                sequence.finish_reason = "stop"
                self.running.remove(sequence)
            outputs.append(FakeOutput(sequence, [token], sequence.finish_reason))
        return outputs

    def read_adapter(self, folder: Any) -> Any:
        self.readers.add(threading.get_ident())
        if folder == "damaged":
            raise ModelError("cut short")
        return folder

    def load_adapter(self, name: str, source: Any) -> None:
        self.threads.add(threading.get_ident())
        if name in self.adapters:
            raise AdapterError(f"an adapter named {name!r} is loaded already")
        self.adapters = (*self.adapters, name)

    def unload_adapter(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.adapters = tuple(other for other in self.adapters if other != name)

    def cancel(self, sequence: FakeSequence) -> None:
        self.cancelled.append(sequence)
        if sequence in self.running:
            self.running.remove(sequence)


def run(scenario: Callable[[AsyncEngine], Awaitable[T]], engine: FakeEngine, **options: Any) -> T:
    async def main() -> T:
        owner = AsyncEngine(engine, **options)
        owner.start()
        try:
            return await asyncio.wait_for(scenario(owner), 20)
        finally:
            await owner.stop(grace=1.0)
            assert owner.pending == 0

    return asyncio.run(main())


async def collect(stream: TokenStream) -> list[int]:
    return [token async for ids in stream for token in ids]


def test_many_requests_each_get_their_own_tokens() -> None:
    engine = FakeEngine()

    async def scenario(owner: AsyncEngine) -> list[list[int]]:
        async def one(number: int) -> list[int]:
            return await collect(await owner.submit(range(number, number + 5), None))

        return await asyncio.gather(*(one(number) for number in range(60)))

    assert run(scenario, engine) == [list(range(number, number + 5)) for number in range(60)]
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads


def test_events_that_pile_up_are_not_lost() -> None:
    async def scenario(owner: AsyncEngine) -> tuple[list[int], str | None]:
        stream = await owner.submit([1, 2, 3], None)
        while stream.finish_reason is None:
            await asyncio.sleep(0.001)
        return await collect(stream), stream.finish_reason

    assert run(scenario, FakeEngine()) == ([1, 2, 3], "stop")


def test_streams_may_share_a_queue() -> None:
    async def scenario(owner: AsyncEngine) -> dict[int, list[int]]:
        events: asyncio.Queue[TokenEvent] = asyncio.Queue()
        streams = [await owner.submit([n, n + 1], None, events=events) for n in (10, 20)]
        seen: dict[int, list[int]] = {0: [], 1: []}
        running = len(streams)
        while running:
            event = await events.get()
            seen[streams.index(event.stream)].extend(event.token_ids)
            running -= event.finish_reason is not None
        return seen

    assert run(scenario, FakeEngine()) == {0: [10, 11], 1: [20, 21]}


def test_a_refused_request_raises_what_the_engine_raised() -> None:
    async def scenario(owner: AsyncEngine) -> list[int]:
        with pytest.raises(ValueError, match="max_tokens"):
            await owner.submit([1], "bad")
        return await collect(await owner.submit([7], None))

    assert run(scenario, FakeEngine()) == [7]


def test_cancel_frees_the_request() -> None:
    engine = FakeEngine()

    async def scenario(owner: AsyncEngine) -> str | None:
        stream = await owner.submit([1], "endless")
        async for _ in stream:
            break
        stream.cancel()
        while stream.finish_reason is None:
            await asyncio.sleep(0.001)
        stream.cancel()
        return stream.finish_reason

    assert run(scenario, engine) == "cancelled"
    assert len(engine.cancelled) == 1
    assert not engine.has_work


def test_giving_up_while_submitting_frees_the_request() -> None:
    engine = FakeEngine()
    engine.gate = threading.Event()

    async def scenario(owner: AsyncEngine) -> None:
        await owner.submit([1, 2], None)
        await asyncio.to_thread(engine.in_step.wait, 10)  # the thread is now held inside a step
        task = asyncio.create_task(owner.submit([3], "endless"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.gate is not None
        engine.gate.set()
        while owner.pending:
            await asyncio.sleep(0.001)

    run(scenario, engine)


def test_a_broken_step_fails_those_in_flight_and_the_next_request_works() -> None:
    engine = FakeEngine()
    engine.faults = [RuntimeError("NaN logits")]

    async def scenario(owner: AsyncEngine) -> list[int]:
        stream = await owner.submit([1, 2], None)
        with pytest.raises(EngineFailedError, match="NaN logits"):
            await collect(stream)
        assert stream.finish_reason == "error"
        assert owner.is_making_progress()
        return await collect(await owner.submit([5], None))

    assert run(scenario, engine) == [5]


def test_an_engine_that_stays_broken_is_given_up() -> None:
    engine = FakeEngine()
    engine.faults = [RuntimeError("gone")] * 100

    async def scenario(owner: AsyncEngine) -> None:
        for _ in range(3):
            with pytest.raises(EngineFailedError, match="gone"):
                await collect(await owner.submit([1], None))
        while owner.failure is None:
            await asyncio.sleep(0.001)
        assert not owner.is_making_progress()
        with pytest.raises(EngineStoppedError, match="gone"):
            await owner.submit([1], None)

    run(scenario, engine)


def test_a_cancel_that_raises_leaves_nobody_waiting() -> None:
    class Broken(FakeEngine):
        def cancel(self, sequence: FakeSequence) -> None:
            raise RuntimeError("cannot cancel")

    async def scenario(owner: AsyncEngine) -> None:
        first = await owner.submit([1], "endless")
        second = await owner.submit([1], "endless")
        first.cancel()
        with pytest.raises(EngineFailedError, match="cannot cancel"):
            await collect(second)
        with pytest.raises(EngineFailedError, match="cannot cancel"):
            await collect(first)

    run(scenario, Broken())


def test_too_many_requests_are_refused() -> None:
    engine = FakeEngine()
    engine.gate = threading.Event()

    async def scenario(owner: AsyncEngine) -> None:
        stream = await owner.submit([1], None)
        with pytest.raises(EngineBusyError):
            await owner.submit([1], None)
        assert engine.gate is not None
        engine.gate.set()
        await collect(stream)
        await collect(await owner.submit([2], None))

    run(scenario, engine, max_pending=1)


def test_stop_lets_the_running_finish_and_refuses_the_new() -> None:
    engine = FakeEngine()
    engine.gate = threading.Event()

    async def scenario(owner: AsyncEngine) -> list[int]:
        stream = await owner.submit([1, 2, 3], None)
        stopping = asyncio.create_task(owner.stop(grace=5.0))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineStoppedError):
            await owner.submit([4], None)
        assert engine.gate is not None
        engine.gate.set()
        await stopping
        return await collect(stream)

    assert run(scenario, engine) == [1, 2, 3]


def test_stop_cancels_what_outlives_the_grace() -> None:
    engine = FakeEngine()

    async def scenario(owner: AsyncEngine) -> str | None:
        stream = await owner.submit([1], "endless")
        await owner.stop(grace=0.05)
        await asyncio.sleep(0)
        return stream.finish_reason

    assert run(scenario, engine) == "cancelled"


def test_an_engine_never_started_refuses_at_stop() -> None:
    async def main() -> None:
        owner = AsyncEngine(FakeEngine())
        task = asyncio.create_task(owner.submit([1], None))
        await asyncio.sleep(0)
        await owner.stop()
        with pytest.raises(EngineStoppedError):
            await task

    asyncio.run(main())


def test_adapters_change_in_the_engine_thread_while_requests_run() -> None:
    engine = FakeEngine()

    async def scenario(owner: AsyncEngine) -> list[int]:
        running = await owner.submit([7], "endless")
        await owner.load_adapter("a", "folder")
        assert owner.adapters == ("a",)
        found = await collect(await owner.submit([1, 2], None, adapter="a"))
        with pytest.raises(AdapterError, match="loaded already"):
            await owner.load_adapter("a", "folder")
        with pytest.raises(ModelError, match="cut short"):
            await owner.load_adapter("b", "damaged")
        await owner.unload_adapter("a")
        with pytest.raises(AdapterError, match="no adapter"):
            await owner.submit([1], None, adapter="a")
        running.cancel()
        return found

    assert run(scenario, engine) == [1, 2]
    assert len(engine.threads) == 1
    assert not engine.readers & engine.threads, "files are read elsewhere: steps must not wait for a disk"


def test_an_adapter_asked_for_at_the_end_is_answered() -> None:
    async def main() -> None:
        engine = FakeEngine()
        owner = AsyncEngine(engine)
        owner.start()
        await owner.stop(grace=1.0)
        with pytest.raises(EngineStoppedError):
            await owner.load_adapter("a", "folder")
        with pytest.raises(EngineStoppedError):
            await owner.unload_adapter("a")
        late = AsyncEngine(engine)  # its thread never starts, so nobody obeys
        waiting = asyncio.ensure_future(late.unload_adapter("a"))
        await asyncio.sleep(0)
        await late.stop(grace=0.1)
        with pytest.raises(EngineStoppedError):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(main())
