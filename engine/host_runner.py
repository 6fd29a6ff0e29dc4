"""HostRunner: a device that is a thread of this process, or the caller's own. Base of runners on the CPU."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import torch

from structgen.engine.errors import StepTimeoutError
from structgen.engine.sampler import Sampler
from structgen.engine.step import StepSlot

Work = Callable[[], None]


class HostRunner:
    """A subclass says in `lay_out` and `forward` how logits come about; order, sampling and waiting are done here.

    threaded  work runs on a thread of its own as soon as it is asked for, as on a GPU. Otherwise it is noted, and runs
              when it is waited for: the serial loop then pays for no hand-over.
    """

    pinned = shares_masks = False

    def __init__(self, vocab_size: int, *, max_batch: int, threaded: bool = False) -> None:
        self.vocab_size = vocab_size
        self.last_tokens = torch.zeros(max_batch + 1, dtype=torch.int64)  # by lane; the last for rows that lost theirs
        self._sampler = Sampler(vocab_size)
        self._spans: dict[int, list[tuple[str, float, float]]] = {}
        self._noted: deque[Work] = deque()
        self._work: queue.SimpleQueue[Work | None] | None = queue.SimpleQueue() if threaded else None
        self._done: dict[int, threading.Event] = {}
        if self._work is not None:
            threading.Thread(target=_run, args=(self._work,), name="structgen-device", daemon=True).start()

    @property
    def default_depth(self) -> int:
        return 1 if self._work is None else 2

    # -- what a subclass does -----------------------------------------------------------------------------------------

    def lay_out(self, slot: StepSlot) -> None:
        """Write the plan down as `slot.input`; called at once, since sequences change while the step waits."""
        raise NotImplementedError

    def forward(self, slot: StepSlot) -> None:
        """Write `slot.logits`, a row for each of `slot.rows`. Runs on the device's thread."""
        raise NotImplementedError

    def clear(self, pages: Iterable[int]) -> None:
        raise NotImplementedError

    # -- ModelRunner --------------------------------------------------------------------------------------------------

    def launch(self, slot: StepSlot) -> None:
        self.lay_out(slot)
        self._spans[slot.index] = []
        self._done[slot.index] = threading.Event()
        self._ask(lambda: self._timed(slot, "forward", lambda: self.forward(slot)))

    def sample(self, slot: StepSlot) -> None:
        lanes, done = torch.tensor(slot.lanes, dtype=torch.int64), self._done[slot.index]

        def work() -> None:
            try:
                if slot.fault is None and len(lanes):
                    self._timed(slot, "sample", lambda: self._sample(slot, lanes))
            finally:
                done.set()

        self._ask(work)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        done = self._done[slot.index]
        while self._noted and not done.is_set():
            self._noted.popleft()()
        if not done.wait(seconds):
            raise StepTimeoutError(seconds)
        if slot.fault is not None:
            raise slot.fault

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        return self._spans.get(slot.index, [])

    def close(self) -> None:
        if self._work is not None:
            self._work.put(None)

    # -- the device ---------------------------------------------------------------------------------------------------

    def _ask(self, work: Work) -> None:
        if self._work is None:
            self._noted.append(work)
        else:
            self._work.put(work)

    def _timed(self, slot: StepSlot, part: str, work: Work) -> None:
        begin = time.perf_counter()
        try:
            work()
        except Exception as problem:
            slot.fault = problem
        self._spans[slot.index].append((part, begin, time.perf_counter()))

    def _sample(self, slot: StepSlot, lanes: torch.Tensor) -> None:
        count = len(slot.rows)
        sampled = self._sampler.sample(slot.logits[:count], slot.mask[:count], slot.constrained[:count], slot.sampling)
        slot.tokens[:count], slot.status[:count] = sampled.tokens, sampled.status
        slot.logprobs = sampled.logprobs
        self.last_tokens[lanes] = sampled.tokens


def _run(work: queue.SimpleQueue[Work | None]) -> None:
    """The device's thread; it holds no runner, so that a forgotten runner does not live on in it."""
    while (task := work.get()) is not None:
        task()
        del task
