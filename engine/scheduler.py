"""Scheduler: which tokens run in the next step. Pure: no torch, no matcher, no sampling."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from structgen.engine.metrics import Metrics
from structgen.engine.pages import PageAllocator, page_keys
from structgen.engine.sequence import RUNNING, Sequence, Stage

SHORT_CHUNK = 16  # tokens; what a jump forward leaves, or the rest of a prompt: it goes before longer ones
# Pages of a prefix that a running sequence computes right now: so many are worth a wait of some steps, which that
# sequence fills with its prompt anyway. On a CPU 64 tokens of prefill take three decode steps.
WORTH_WAITING = 4


@dataclass(eq=False, slots=True)
class PlanRow:
    """Run `count` tokens of `sequence` from position `start`. `samples`: the token after the last of them is wanted.

    `epoch` is the sequence's when the row was planned: what the row samples is void once the sequence has moved on.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    epoch: int = 0

    @property
    def void(self) -> bool:
        return self.sequence.epoch != self.epoch


class StepPlan:
    """Decode rows (one token each, all of which sample) first, then chunks; both kinds are equal otherwise.

    rows           all of them
    sampling_rows  those of them that sample
    tokens         of all rows
    """

    __slots__ = ("chunks", "decode", "rows", "sampling_rows", "tokens")

    def __init__(self, decode: tuple[PlanRow, ...], chunks: tuple[PlanRow, ...]) -> None:
        self.decode, self.chunks = decode, chunks
        self.rows, self.sampling_rows, self.tokens = decode, decode, len(decode)
        if chunks:
            self.rows += chunks
            self.sampling_rows += tuple([row for row in chunks if row.samples])
            self.tokens += sum([row.count for row in chunks])

    @property
    def has_adapter(self) -> bool:
        """Whether any row runs under one."""
        return any(row.sequence.adapter is not None for row in self.rows)


class Scheduler:
    """First come, first served; at most `max_batch` sequences run, and `step_tokens` tokens a step.

    A sequence is admitted when there are pages for the tokens it has and one for each that runs already; it takes more
    as it grows. When none is left, the youngest running one is preempted: it gives its pages back and waits, first in
    the queue, to be computed again (its full pages may still be found as a prefix). The oldest never is, and one
    sequence always fits, so there is always progress.
    Decode rows go first and are never held back by prompts; what is left of `step_tokens` bounds the chunks.
    A sequence whose prompt begins like one that is being computed waits for those pages instead of computing them too:
    the n answers to one prompt, or many requests with one long instruction, which all arrive together.
    """

    def __init__(
        self,
        pages: PageAllocator,
        metrics: Metrics,
        *,
        max_batch: int,
        step_tokens: int,
        share_prefixes: bool = True,
    ) -> None:
        assert step_tokens > max_batch
        self.pages = pages
        self.max_batch, self.step_tokens = max_batch, step_tokens
        self._share_prefixes = share_prefixes
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of their admission
        self.preempted: list[Sequence] = []  # still held by a step in flight
        self._lanes = list(range(max_batch - 1, -1, -1))
        self._metrics = metrics
        self._coming: dict[bytes, Sequence] = {}  # key of a page worth waiting for -> who computes it; one a sequence

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan(self) -> StepPlan | None:
        """Admit what fits and choose the next step's tokens; they count as computed from here on."""
        if self.waiting:
            self._admit()
        decode, waiting, size = [], [], self.pages.page_size
        for sequence in self.running.copy():  # growing may preempt some
            pending = sequence.plannable
            if pending > 1:
                waiting.append((sequence, pending))
            elif pending and (sequence.computed < len(sequence.pages) * size or self._grow(sequence, 1)):
                decode.append(sequence)
        chunks = self._fit_chunks(waiting, self.step_tokens - len(decode)) if waiting else []
        if not decode and not chunks:
            return None
        # Taken only now: a later row may have preempted an earlier one's, whose token then does not run.
        taken = []
        for sequence in decode:
            if sequence.stage is RUNNING:
                start = sequence.computed
                sequence.computed = start + 1
                sequence.unknown += 1
                taken.append(PlanRow(sequence, start, 1, True, sequence.epoch))
        pieces = [_take(each, count) for each, count in chunks if each.stage is RUNNING]
        return StepPlan(tuple(taken), tuple(pieces)) if taken or pieces else None

    def _fit_chunks(self, waiting: list[tuple[Sequence, int]], room: int) -> list[tuple[Sequence, int]]:
        """How much of what waits runs in this step."""
        chunks = []
        for sequence, pending in sorted(waiting, key=_is_long):
            count = min(pending, room)
            if count > 0 and self._grow(sequence, count):
                chunks.append((sequence, count))
                room -= count
        return chunks

    def drop(self, sequence: Sequence) -> None:
        """The sequence is finished: it is planned no more. Its pages stay until `release`."""
        if sequence in self.running:
            self._stop(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.preempted:
            self.preempted.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """No step in flight writes to the pages of a finished or preempted sequence any more: give them up."""
        assert sequence.stage in (Stage.FINISHED, Stage.PREEMPTED)
        assert sequence.inflight_refs == 0
        if sequence.finish_reason != "error":  # whatever went wrong may stand in the pages
            self.remember(sequence, sequence.total)
        self.pages.release(sequence.pages)
        sequence.pages = []
        if sequence.stage is Stage.PREEMPTED:
            if sequence in self.preempted:
                self.preempted.remove(sequence)
            sequence.void(computed=0)
            sequence.prompt_is_known = False  # its pages may be taken for others before it runs again
            sequence.stage = Stage.WAITING
            self.waiting.appendleft(sequence)

    def remember(self, sequence: Sequence, tokens: int) -> None:
        """Let later requests share the full pages of the sequence's first `tokens` tokens, which are committed."""
        if not self._share_prefixes:
            return
        self._arrived(sequence)
        final = sequence.tokens(0, min(sequence.computed, tokens))
        first = len(sequence.page_keys)
        sequence.page_keys = page_keys(final, self.pages.page_size, sequence.page_keys, sequence.page_seed)
        for page, key in zip(sequence.pages[first:], sequence.page_keys[first:], strict=False):
            self.pages.register(page, key)

    def check_integrity(self) -> None:
        lanes = [sequence.lane for sequence in self.running]
        assert sorted(lanes + self._lanes) == list(range(self.max_batch)), "a lane is lost or shared"
        assert all(sequence.stage is Stage.RUNNING for sequence in self.running)

    # -- pages ------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting[0]
            need = self.pages.pages_for(sequence.total)
            shared = self._share_prefix(sequence)
            others = len(self.running) + len(self.preempted)
            # A key stands for its whole prefix: this page and the unknown ones before it.
            unknown = sequence.page_keys[len(shared) :][WORTH_WAITING - 1 : WORTH_WAITING]
            short = need - len(shared) + others > self.pages.available or (others and self.preempted)
            if short or any(map(self._is_coming, unknown)):
                self.pages.release(shared)
                return
            if self._share_prefixes:
                self._coming |= dict.fromkeys(unknown, sequence)
            sequence.pages = shared + self.pages.take(need - len(shared))
            sequence.page_keys = sequence.page_keys[: len(shared)]
            sequence.computed = len(shared) * self.pages.page_size
            self._metrics.prompt_tokens_shared += sequence.computed
            sequence.lane = self._lanes.pop()
            sequence.stage = Stage.RUNNING
            self.running.append(self.waiting.popleft())

    def _share_prefix(self, sequence: Sequence) -> list[int]:
        """Pages another request has computed; at least the last known token is left to run, for its logits."""
        if not sequence.page_keys or sequence.output_ids:
            known = sequence.tokens(0, sequence.total - 1)
            sequence.page_keys = page_keys(known, self.pages.page_size, [], sequence.page_seed)
        return self.pages.share(sequence.page_keys)

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Pages for `count` more tokens; False when the sequence must wait for some, or is preempted."""
        if sequence.stage is not RUNNING:
            return False
        end = sequence.computed + count
        if end <= len(sequence.pages) * self.pages.page_size:
            return True
        need = self.pages.pages_for(end) - len(sequence.pages)
        while need > self.pages.available:
            victim = self.running[-1]
            coming = sum(len(each.pages) for each in self.preempted)  # when the steps that hold them are through
            if need <= self.pages.available + coming or victim is self.running[0]:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages += self.pages.take(need)
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._metrics.preemptions += 1
        self._stop(victim)
        victim.stage = Stage.PREEMPTED
        if victim.inflight_refs == 0:
            self.release(victim)
        else:
            self.preempted.append(victim)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._arrived(sequence)
        self._lanes.append(sequence.lane)
        sequence.lane = -1

    def _is_coming(self, key: bytes) -> bool:
        """Whether a running sequence computes this page. With its first token the page is known, or never will be."""
        owner = self._coming.get(key)
        return owner is not None and owner.stage is Stage.RUNNING

    def _arrived(self, sequence: Sequence) -> None:
        """Nobody needs to wait for the sequence's prompt any longer."""
        if self._coming:
            self._coming = {key: owner for key, owner in self._coming.items() if owner is not sequence}


def _take(sequence: Sequence, count: int) -> PlanRow:
    start, samples = sequence.computed, count == sequence.pending
    sequence.computed += count
    sequence.unknown += samples
    return PlanRow(sequence, start, count, samples, sequence.epoch)


def _is_long(waiting: tuple[Sequence, int]) -> bool:
    """Of a sequence and the tokens it waits to run."""
    return waiting[1] > SHORT_CHUNK
