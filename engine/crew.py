"""Crew: threads that run one compiled function together with the caller's. Plain Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

PATIENCE_S = 60.0


class Crew:
    """`run(work, n)` calls work(0) here and work(1) ... work(n - 1) in threads of the crew, and returns when all have.

    `work` must be complete when work(0) returns, whether or not the others came in time: what has not begun by then is
    called off. Threads are made when they are first needed and end with the crew.
    """

    def __init__(self) -> None:
        self._orders: list[SimpleQueue[_Order | None]] = []

    def run(self, work: Callable[[int], None], threads: int) -> None:
        """TimeoutError when a thread that has begun does not end; then nothing may be reused."""
        while len(self._orders) < threads - 1:
            self._orders.append(_hire(len(self._orders) + 1))
        orders = [_Order(work) for _ in range(threads - 1)]
        for queue, order in zip(self._orders, orders, strict=False):
            queue.put(order)
        work(0)
        for order in orders:
            order.settle()

    def __del__(self) -> None:
        for queue in self._orders:
            queue.put(None)


class _Order:
    """One thread's part in one piece of work."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._work = work
        self._mine = (
            threading.Lock()
        )  # whoever gets it first decides: the thread that it begins, the caller that it does not
        self._ended = threading.Event()
        self._problem: BaseException | None = None

    def begin(self, number: int) -> None:
        if not self._mine.acquire(blocking=False):
            return
        try:
            self._work(number)
        except BaseException as problem:
            self._problem = problem
        finally:
            self._ended.set()

    def settle(self) -> None:
        if self._mine.acquire(blocking=False):
            return
        if not self._ended.wait(PATIENCE_S):
            raise TimeoutError(f"a thread of the forward pass has not come back for {PATIENCE_S:.0f} s")
        if self._problem is not None:
            raise RuntimeError("a thread of the forward pass failed") from self._problem


def _hire(number: int) -> SimpleQueue[_Order | None]:
    orders: SimpleQueue[_Order | None] = SimpleQueue()

    def serve() -> None:
        while (order := orders.get()) is not None:
            order.begin(number)
            del order  # it holds the step's buffers

    threading.Thread(target=serve, name=f"structgen-forward-{number}", daemon=True).start()
    return orders
