"""Scheduler: which tokens run in the next step. Pure: no torch, no matcher, no sampling."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from structgen.engine.pages import PageAllocator, page_keys
from structgen.engine.sequence import Sequence, Stage

# Pages of a prefix that a running sequence computes right now: so many are worth a wait of some steps, which that
# sequence fills with its prompt anyway. On a CPU 64 tokens of prefill take three decode steps.
WORTH_WAITING = 4


@dataclass(frozen=True)
class PlanRow:
    """Run `count` tokens of `sequence` from position `start`. `samples`: the last of them is its last known token."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class StepPlan:
    """Decode rows (one token each) first, then chunks; both kinds are equal otherwise."""

    decode: tuple[PlanRow, ...]
    chunks: tuple[PlanRow, ...]

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        return self.decode + self.chunks

    @property
    def sampling_rows(self) -> tuple[PlanRow, ...]:
        return tuple(row for row in self.rows if row.samples)

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


class Scheduler:
    """First come, first served; at most `max_batch` sequences run, and `step_tokens` tokens a step.

    A sequence gets the pages of its longest possible text on admission, so a running one never lacks a page.
    Decode rows go first and are never held back; what is left of `step_tokens` bounds the prefill chunks.
    A sequence whose prompt begins like one that is being computed waits for those pages instead of computing them too:
    the n answers to one prompt, or many requests with one long instruction, which all arrive together.
    """

    def __init__(self, pages: PageAllocator, *, max_batch: int, step_tokens: int, share_prefixes: bool = True) -> None:
        assert step_tokens > max_batch
        self.pages = pages
        self.max_batch, self.step_tokens = max_batch, step_tokens
        self._share_prefixes = share_prefixes
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._coming: dict[bytes, Sequence] = {}  # key of a page worth waiting for -> who computes it; one a sequence

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan(self) -> StepPlan | None:
        """Admit what fits and choose the next step's tokens; they count as computed from here on."""
        self._admit()
        decode = [sequence for sequence in self.running if sequence.pending == 1]
        rows = [self._take(sequence, 1) for sequence in decode]
        room = self.step_tokens - len(rows)
        chunks = []
        for sequence in self.running:
            if sequence.pending > 0 and room > 0:
                chunks.append(self._take(sequence, min(sequence.pending, room)))
                room -= chunks[-1].count
        return StepPlan(tuple(rows), tuple(chunks)) if rows or chunks else None

    def drop(self, sequence: Sequence) -> None:
        """The sequence is finished: it is planned no more. Its pages stay until `release`."""
        self._arrived(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """No step in flight writes to the sequence's pages any more: give them up."""
        assert sequence.finished
        assert sequence.inflight_refs == 0
        if sequence.finish_reason != "error":  # whatever went wrong may stand in the pages
            self.remember(sequence)
        self.pages.release(sequence.pages)
        sequence.pages = []

    def remember(self, sequence: Sequence) -> None:
        """Let later requests share the sequence's full pages, all of whose tokens have been committed."""
        if not self._share_prefixes:
            return
        self._arrived(sequence)
        final = sequence.tokens(0, sequence.computed)
        first = len(sequence.page_keys)
        sequence.page_keys = page_keys(final, self.pages.page_size, sequence.page_keys)
        for page, key in zip(sequence.pages[first:], sequence.page_keys[first:], strict=False):
            self.pages.register(page, key)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting[0]
            need = self.pages.pages_for(len(sequence.prompt_ids) + sequence.limit)
            shared = self._share_prefix(sequence)
            # A key stands for its whole prefix: this page and the unknown ones before it.
            unknown = sequence.page_keys[len(shared) :][WORTH_WAITING - 1 : WORTH_WAITING]
            if need - len(shared) > self.pages.available or any(map(self._is_coming, unknown)):
                self.pages.release(shared)
                return
            if self._share_prefixes:
                self._coming |= dict.fromkeys(unknown, sequence)
            sequence.pages = shared + self.pages.take(need - len(shared))
            sequence.page_keys = sequence.page_keys[: len(shared)]
            sequence.computed = len(shared) * self.pages.page_size
            sequence.stage = Stage.RUNNING
            self.running.append(self.waiting.popleft())

    def _share_prefix(self, sequence: Sequence) -> list[int]:
        """Pages another request has computed; at least the prompt's last token is left to run, for its logits."""
        if not sequence.page_keys:
            sequence.page_keys = page_keys(sequence.prompt_ids[:-1], self.pages.page_size, [])
        return self.pages.share(sequence.page_keys)

    def _is_coming(self, key: bytes) -> bool:
        """Whether a running sequence computes this page. With its first token the page is known, or never will be."""
        owner = self._coming.get(key)
        return owner is not None and owner.stage is Stage.RUNNING and not owner.output_ids

    def _arrived(self, sequence: Sequence) -> None:
        """Nobody needs to wait for the sequence's prompt any longer."""
        if self._coming:
            self._coming = {key: owner for key, owner in self._coming.items() if owner is not sequence}

    @staticmethod
    def _take(sequence: Sequence, count: int) -> PlanRow:
        row = PlanRow(sequence, sequence.computed, count, samples=count == sequence.pending)
        sequence.computed += count
        return row
