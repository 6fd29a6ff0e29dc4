"""Engine: the loop that turns submitted sequences into tokens, one tick at a time.

A tick:  fill the masks of the step in flight  (its forward may be running)
         wait for its logits, sample           (the only thing that needs the masks)
         commit: append, accept, finish, free
         launch the next step's forward LAST   (a runner with its own thread or device works on it until the next tick)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from structgen.engine.errors import BudgetError, ContextLengthError, ParameterError
from structgen.engine.llama import LlamaModel
from structgen.engine.logprobs import TokenLogprob
from structgen.engine.pages import PageAllocator
from structgen.engine.pipeline import Pipeline
from structgen.engine.runner import ModelRunner, TorchRunner
from structgen.engine.sampled import Pick
from structgen.engine.sampler import Sampler
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.scheduler import PlanRow, Scheduler, StepPlan
from structgen.engine.sequence import FinishReason, Mask, MaskSource, Sequence
from structgen.engine.step import StepSlot

PREFILL_TOKENS = 256
CACHED_PREFIX_TOKENS = 16384


@dataclass
class StepOutput:
    """What one tick added to a sequence. EOS and stop tokens are not among `token_ids`.

    `logprobs` holds one entry for each of them when the request asked for it, and is empty otherwise.
    """

    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Engine:
    """Not thread safe: one thread drives it. A runner may stand in for the model.

    `share_prefixes`: requests that begin alike reuse each other's pages. Which prompt tokens run together then depends
    on earlier requests, and with real matrix products so does the last bit of their logits.
    """

    def __init__(
        self,
        model: LlamaModel | ModelRunner,
        *,
        max_batch: int = 8,
        max_context: int | None = None,
        share_prefixes: bool = True,
    ) -> None:
        runner = (
            TorchRunner(model, max_batch=max_batch, max_context=max_context) if isinstance(model, LlamaModel) else model
        )
        self.runner: ModelRunner = runner
        self.max_context = min(runner.max_context, runner.pages * runner.page_size, max_context or runner.max_context)
        cached = CACHED_PREFIX_TOKENS // runner.page_size
        self._pages = PageAllocator(runner.pages, runner.page_size, max_cached=cached)
        step_tokens = PREFILL_TOKENS + max_batch
        self._scheduler = Scheduler(
            self._pages, max_batch=max_batch, step_tokens=step_tokens, share_prefixes=share_prefixes
        )
        self._pipeline = Pipeline([self._slot(max_batch, step_tokens)])
        self._rescue_slot = self._slot(max_batch, step_tokens)
        self._sampler = Sampler(runner.vocab_size)
        self._spare_mask: Mask = np.zeros(-(-runner.vocab_size // 32), dtype=np.int32)
        self._live: set[Sequence] = set()  # not yet released
        self._outputs: dict[Sequence, StepOutput] = {}  # of this tick, and of cancels since the last
        self._submitted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._outputs)

    def submit(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        matcher: MaskSource | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> Sequence:
        """Queue a request. BudgetError or ContextLengthError when it could not end; ValueError for bad ids."""
        sequence = Sequence(self._submitted, prompt_ids, params, matcher, frozenset(eos_token_ids))
        prompt = sequence.prompt_ids
        if not prompt:
            raise ValueError("prompt_ids must hold at least one token")
        if not all(0 <= token < self.runner.vocab_size for token in prompt):
            raise ValueError(f"prompt_ids must be between 0 and {self.runner.vocab_size - 1}")
        if any(token >= self.runner.vocab_size for token in params.logit_bias):
            raise ParameterError("logit_bias", f"must name tokens between 0 and {self.runner.vocab_size - 1}")
        least = matcher.min_tokens_to_complete if matcher else 1
        if params.max_tokens < least:
            raise BudgetError(params.max_tokens, least)
        sequence.limit = min(params.max_tokens, self.max_context - len(prompt))
        if sequence.limit < least:
            raise ContextLengthError(len(prompt), self.max_context, least)
        self._submitted += 1
        self._live.add(sequence)
        self._scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End the sequence now, at whatever stage; nothing happens when it has ended. The next `step` reports it."""
        if not sequence.finished:
            self._finish(sequence, "cancelled")

    def step(self) -> list[StepOutput]:
        """One tick. Returns what it added, and the sequences that ended; [] when there was only prefill, or nothing."""
        if self._pipeline.empty:
            self._launch()
        if not self._pipeline.empty:
            slot = self._pipeline.oldest
            self._fill(slot)
            self._commit(slot, self._sample(slot))
            self._launch()
        outputs, self._outputs = list(self._outputs.values()), {}
        return outputs

    def check_integrity(self) -> None:
        """AssertionError unless every page, slot and reference is accounted for. Cheap enough for production."""
        self._pages.check_integrity(sequence.pages for sequence in self._live)
        self._pipeline.check_integrity(self._live)
        active = {*self._scheduler.waiting, *self._scheduler.running}
        assert active <= self._live, "a released sequence is still scheduled"
        zombies = self._live - active
        assert all(sequence.finished and sequence.inflight_refs for sequence in zombies), "a sequence is forgotten"

    # -- the tick ---------------------------------------------------------------------------------------------------

    def _fill(self, slot: StepSlot) -> None:
        for row, planned in enumerate(slot.rows):
            sequence = planned.sequence
            if sequence.matcher is None or sequence.finished:
                continue
            try:
                _fill_mask(sequence, sequence.matcher, slot.mask_rows[row])
            except Exception as problem:
                self._fail(sequence, f"the grammar failed to fill a mask: {problem!r}")
            else:
                slot.constrained[row] = True

    def _sample(self, slot: StepSlot) -> list[Pick]:
        self._wait(slot)
        sequences = [planned.sequence for planned in slot.rows]
        if not sequences:
            return []
        masked = slot.constrained[: len(sequences)]
        for sequence, has_mask in zip(sequences, masked, strict=True):
            assert has_mask or sequence.matcher is None or sequence.finished, "a constrained row lost its mask"
        count = len(sequences)
        rows = [sequence.sampling for sequence in sequences]
        return self._sampler.sample(slot.logits[:count], slot.mask[:count], masked, rows).read()

    def _commit(self, slot: StepSlot, picks: list[Pick]) -> None:
        for planned, pick in zip(slot.rows, picks, strict=True):
            if planned.sequence.finished:
                continue
            if pick.fault is not None:
                self._fail(planned.sequence, pick.fault)
            else:
                self._append(planned.sequence, pick.token, pick.logprob)
        for sequence in self._pipeline.commit():
            self._release(sequence)

    def _launch(self) -> None:
        plan = self._scheduler.plan()
        if plan is None:
            return
        slot = self._pipeline.reserve()
        slot.stage(plan)
        self._pipeline.launch(row.sequence for row in plan.rows)
        try:
            self.runner.launch(slot)
        except Exception as problem:
            slot.fault = problem

    # -- one sequence -----------------------------------------------------------------------------------------------

    def _append(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        """Take one sampled token in: advance the grammar, and end the sequence where it must end."""
        if token in sequence.params.stop_token_ids:
            return self._finish(sequence, "stop")
        matcher = sequence.matcher
        try:
            if matcher is not None and not matcher.accept(token):
                return self._fail(sequence, f"the grammar refused token {token}, which its mask had allowed")
            if token in sequence.eos_token_ids or (matcher is not None and matcher.is_terminated):
                return self._finish(sequence, "stop")
            sequence.append(token, logprob)
            output = self._output(sequence)
            output.token_ids.append(token)
            output.logprobs += sequence.logprobs[-1:]
            if len(sequence.output_ids) == 1:
                self._scheduler.remember(sequence)
            if matcher is not None and self._only_eos_is_left(sequence, matcher):
                return self._finish(sequence, "stop")
        except Exception as problem:
            return self._fail(sequence, f"the grammar failed: {problem!r}")
        if sequence.budget == 0:
            self._finish(sequence, "length")
        return None

    def _only_eos_is_left(self, sequence: Sequence, matcher: MaskSource) -> bool:
        """Whether the next step could sample nothing but EOS: then it need not run. Its mask is then final as well."""
        if not matcher.is_complete or not sequence.eos_token_ids or sequence.budget == 0:
            return False
        mask = self._spare_mask
        was_closed = sequence.closed_early
        _fill_mask(sequence, matcher, mask)
        words = mask.view(np.uint32)
        for token in sequence.eos_token_ids:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        if mask.any():
            sequence.closed_early = was_closed  # the step will run, and fill this mask again
            return False
        return True

    def _fail(self, sequence: Sequence, why: str) -> None:
        self._finish(sequence, "error", why)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """Final for the user now; released now too, unless a step in flight still holds it."""
        sequence.finish(reason, error)
        self._scheduler.drop(sequence)
        self._output(sequence).finish_reason = sequence.finish_reason
        if sequence.inflight_refs == 0:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.finish_reason == "error" and sequence.pages:
            self.runner.clear(self._pages.exclusive(sequence.pages))
        self._scheduler.release(sequence)
        self._live.remove(sequence)

    def _output(self, sequence: Sequence) -> StepOutput:
        return self._outputs.setdefault(sequence, StepOutput(sequence))

    # -- faults of the runner ---------------------------------------------------------------------------------------

    def _wait(self, slot: StepSlot) -> None:
        """Logits of the step; when the runner fails, each row is run again alone, and those that fail again end."""
        if slot.fault is None:
            try:
                return self.runner.wait(slot)
            except Exception as problem:
                slot.fault = problem
        sampling = {planned.sequence: row for row, planned in enumerate(slot.rows)}
        for planned in slot.plan.rows:
            self._run_alone(planned, slot, sampling.get(planned.sequence))
        return None

    def _run_alone(self, planned: PlanRow, slot: StepSlot, row: int | None) -> None:
        if planned.sequence.finished:
            return
        alone = self._rescue_slot
        alone.stage(StepPlan((), (planned,)))
        try:
            self.runner.launch(alone)
            self.runner.wait(alone)
        except Exception as problem:
            self._fail(planned.sequence, f"the model failed: {problem!r}")
        else:
            if row is not None:
                slot.logits[row] = alone.logits[0]

    def _slot(self, max_batch: int, step_tokens: int) -> StepSlot:
        return StepSlot(
            step_tokens=step_tokens,
            max_batch=max_batch,
            vocab_size=self.runner.vocab_size,
            table_pages=self._pages.pages_for(self.max_context),
            page_size=self.runner.page_size,
        )


def _fill_mask(sequence: Sequence, matcher: MaskSource, row: Mask) -> None:
    """The row's mask under the remaining budget; remembers whether the budget, not the grammar, left tokens out."""
    matcher.fill_mask(row, sequence.budget)
    sequence.closed_early |= matcher.mask_was_narrowed
