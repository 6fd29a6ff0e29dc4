"""MaskWorkers: threads for work that may never end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from structgen.engine.sequence import Mask

MOST_STUCK = 64  # threads that are given up, at most: a bound on what grammars that hang can cost


class MaskWorkers:
    """At most `threads` at work, started when they are first wanted.

    A thread that is at one piece of work for more than `patience` seconds is given up and another one takes its place;
    nothing waits for it, not even the interpreter's exit.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._work: queue.SimpleQueue[tuple[Future[Mask], Callable[[], Mask]] | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    def __del__(self) -> None:
        self.close()  # the threads hold the queue alone, and would wait at it for ever

    def submit(self, work: Callable[[], Mask], *, patience: float) -> Future[Mask]:
        future: Future[Mask] = Future()
        self._work.put((future, work))
        self.relieve(patience)
        return future

    def relieve(self, patience: float) -> bool:
        """Start a thread where work waits and too few are left to take it; False when all that there may be hang."""
        if self._work.empty():
            return True
        self._workers = [worker for worker in self._workers if worker.thread.is_alive()]
        oldest = time.perf_counter() - patience
        stuck = sum(worker.since < oldest for worker in self._workers)
        if len(self._workers) - min(stuck, MOST_STUCK) < self._threads:
            self._workers.append(_Worker(self._work))
        return stuck < len(self._workers)

    def close(self) -> None:
        """Cancel what waits, and let the threads end; one that is at work ends after it."""
        while not self._work.empty():
            entry = self._work.get()
            if entry is not None:
                entry[0].cancel()
        for _ in self._workers:
            self._work.put(None)


class _Worker:
    """`since`: when it took up its present work; in the future when it has none."""

    def __init__(self, work: queue.SimpleQueue[tuple[Future[Mask], Callable[[], Mask]] | None]) -> None:
        self.since = float("inf")
        self.thread = threading.Thread(target=self._run, args=(work,), name="structgen-engine-mask", daemon=True)
        self.thread.start()

    def _run(self, work: queue.SimpleQueue[tuple[Future[Mask], Callable[[], Mask]] | None]) -> None:
        while (entry := work.get()) is not None:
            future, compute = entry
            if future.set_running_or_notify_cancel():
                self.since = time.perf_counter()
                try:
                    future.set_result(compute())
                except BaseException as problem:
                    future.set_exception(problem)
                self.since = float("inf")
            del entry, future, compute
