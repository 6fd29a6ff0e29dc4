"""MaskFiller: the masks of a step, without letting a slow one hold back the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence as Items
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from structgen.engine.sequence import Mask, Sequence

GRAMMAR_SECONDS = 30.0  # a mask that takes longer ends its request


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
        self._pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="structgen-engine-mask")

    def fill(self, targets: Items[tuple[Sequence, Mask]], *, patience: float, others: bool) -> Filled:
        """Fill each target's row under its sequence's budget. `others`: the step has rows that need no mask.

        With nothing to hold back (no row ready, no others) it waits for the first mask, however long that takes.
        """
        result = Filled()
        started = [target for target in targets if not self._is_known(*target, result)]
        if not others and len(targets) == 1 and started and started[0][0].mask_job is None:
            self._fill_here(*started[0], result)
            return result
        for sequence, _ in started:
            if sequence.mask_job is None:
                sequence.mask_deadline = time.perf_counter() + GRAMMAR_SECONDS
                sequence.mask_job = self._pool.submit(self._compute, sequence)
        self._collect(started, patience, others or len(started) < len(targets), result)
        return result

    def wait_for_any(self, sequences: Items[Sequence]) -> None:
        """Block until one of the late masks is there, or counts as hanging."""
        jobs = [sequence.mask_job for sequence in sequences if sequence.mask_job is not None]
        deadline = min(sequence.mask_deadline for sequence in sequences)
        wait(jobs, max(0.0, deadline - time.perf_counter()), FIRST_COMPLETED)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

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

    def _fill_here(self, sequence: Sequence, row: Mask, result: Filled) -> None:
        try:
            fill_mask(sequence, row)
        except Exception as problem:
            result.failed.append((sequence, problem))

    def _compute(self, sequence: Sequence) -> Mask:
        row: Mask = np.empty(self._words, dtype=np.int32)  # not the slot's, which belongs to another step by then
        fill_mask(sequence, row)
        return row

    def _collect(self, targets: list[tuple[Sequence, Mask]], patience: float, others: bool, result: Filled) -> None:
        if not others and targets:
            self.wait_for_any([sequence for sequence, _ in targets])
        deadline = time.perf_counter() + patience
        for sequence, row in targets:
            assert sequence.mask_job is not None
            try:
                row[:] = sequence.mask_job.result(max(0.0, deadline - time.perf_counter()))
            except TimeoutError:
                if not sequence.mask_job.done():
                    result.late.append(sequence)
                    continue
                result.failed.append((sequence, TimeoutError("the grammar ran into a timeout of its own")))
            except Exception as problem:
                result.failed.append((sequence, problem))
            sequence.mask_job = None


def fill_mask(sequence: Sequence, row: Mask) -> None:
    """The row's mask under the remaining budget; remembers whether the budget, not the grammar, left tokens out."""
    assert sequence.matcher is not None
    sequence.matcher.fill_mask(row, sequence.budget)
    sequence.closed_early |= sequence.matcher.mask_was_narrowed


def hangs(sequence: Sequence) -> bool:
    """Whether the sequence waits for a mask longer than any should take."""
    job = sequence.mask_job
    return job is not None and not job.done() and time.perf_counter() > sequence.mask_deadline
