"""MaskFiller: the masks of a step, without letting a slow one hold back the rest."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from collections.abc import Sequence as Items
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from structgen.engine.mask_residency import SharedMask
from structgen.engine.mask_workers import MaskWorkers
from structgen.engine.sequence import Mask, Sequence

GRAMMAR_SECONDS = 30.0  # a mask that takes longer ends its request
# Until one has been computed: where nothing is compiled yet, the grammar engine's first mask waits a minute for that.
FIRST_SECONDS = 180.0
GLANCE = 0.05  # seconds: so often the engine looks up from waiting for a mask, for new requests and cancels


@dataclass
class Filled:
    """`late`: rows whose mask is still being computed; `failed`: rows whose grammar raised, with the exception."""

    late: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)


class MaskFiller:
    """Known masks are copied here and now. Others are computed on a few threads (compiled code runs without the GIL);
    those that are not there within `patience` stay with their sequence as `mask_job`, and a later step takes them.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._workers = MaskWorkers(min(4, os.cpu_count() or 1))
        self._patience = FIRST_SECONDS

    def fill(self, targets: Items[tuple[Sequence, Mask]], *, patience: float, others: bool) -> Filled:
        """Fill each target's row under its sequence's budget. `others`: the step has rows that need no mask.

        With nothing to hold back (no row ready, no others) the first mask is waited for, but not for long: a grammar
        may hang, and then new requests and cancels must still be seen. So nothing is computed on the engine's thread:
        handing a mask over takes 30 to 70 us, once for each place in a grammar.
        """
        result = Filled()
        started = [target for target in targets if not self._is_known(*target, result)]
        for sequence, _ in started:
            if sequence.mask_job is None:
                sequence.mask_deadline = math.inf  # until a thread takes it up: others may hang before it
                sequence.mask_job = self._workers.submit(partial(self._compute, sequence), patience=GRAMMAR_SECONDS)
        self._collect(started, patience, others or len(started) < len(targets), result)
        return result

    @staticmethod
    def lend(sequence: Sequence) -> SharedMask | None:
        """The mask that its grammar has ready and gives to every text that stands here; None where there is none such.

        Then, and where the grammar raises, `fill` is what to ask.
        """
        known_mask = sequence.known_mask
        if known_mask is None or sequence.mask_job is not None:
            return None
        try:
            return known_mask(sequence.limit - len(sequence.output_ids))
        except Exception:
            return None

    def wait_for_any(self, sequences: Items[Sequence]) -> None:
        """Block until one of the late masks is there, but not for long: then the caller looks up."""
        jobs = [sequence.mask_job for sequence in sequences if sequence.mask_job is not None]
        wait(jobs, GLANCE, FIRST_COMPLETED)

    def hanging(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Those that wait for a mask longer than any should take. Their threads are given up."""
        late = [each for each in sequences if each.mask_job is not None and not each.mask_job.done()]
        if late and not self._workers.relieve(GRAMMAR_SECONDS):
            return late
        now = time.perf_counter()
        return [each for each in late if now > each.mask_deadline]

    def close(self) -> None:
        self._workers.close()

    def _is_known(self, sequence: Sequence, row: Mask, result: Filled) -> bool:
        """Whether the row is settled: filled with a known mask, or failed."""
        if sequence.mask_job is not None:
            return False
        assert sequence.matcher is not None
        try:
            return sequence.matcher.fill_known_mask(row, sequence.budget)
        except Exception as problem:
            result.failed.append((sequence, problem))
            return True

    def _compute(self, sequence: Sequence) -> Mask:
        sequence.mask_deadline = time.perf_counter() + self._patience
        row: Mask = np.empty(self._words, dtype=np.int32)  # not the slot's, which belongs to another step by then
        fill_mask(sequence, row)
        self._patience = GRAMMAR_SECONDS
        return row

    def _collect(self, targets: list[tuple[Sequence, Mask]], patience: float, others: bool, result: Filled) -> None:
        if not others and len(targets) == 1:
            patience = max(patience, GLANCE)
        elif not others and targets:
            self.wait_for_any([sequence for sequence, _ in targets])
        deadline = time.perf_counter() + patience
        for sequence, row in targets:
            job = sequence.mask_job
            assert job is not None
            if not _is_through(job, max(0.0, deadline - time.perf_counter())):
                result.late.append(sequence)
                continue
            try:
                row[:] = job.result()
            except Exception as problem:
                result.failed.append((sequence, problem))
            sequence.mask_job = None


def _is_through(job: Future[Mask], seconds: float) -> bool:
    """Whether the job ends within so many seconds. A TimeoutError may also be the grammar's own."""
    try:
        job.exception(seconds)
    except TimeoutError:
        return job.done()
    return True


def fill_mask(sequence: Sequence, row: Mask) -> None:
    """The row's mask under the remaining budget; remembers whether the budget, not the grammar, left tokens out."""
    assert sequence.matcher is not None
    sequence.matcher.fill_mask(row, sequence.budget)
    sequence.closed_early |= sequence.matcher.mask_was_narrowed
