"""Engine: the loop that turns submitted sequences into tokens, one tick at a time.

A tick at depth 2, while the device computes step N:
    commit  step N-1: its tokens have arrived; append, accept, jump, finish, free
    fill    the masks of step N
    sample  step N                        the only thing that needs the masks
    launch  step N+1 LAST                 it reads the tokens of step N on the device

At depth 1 the commit of step N stands before the launch of step N+1, and nothing else differs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from structgen.engine.adapters import AdapterRegistry
from structgen.engine.choose_runner import choose_runner
from structgen.engine.errors import AdapterError, BudgetError, ContextLengthError, ParameterError
from structgen.engine.lifecycle import Lifecycle, StepOutput
from structgen.engine.llama import LlamaModel
from structgen.engine.lora_files import AdapterWeights
from structgen.engine.mask_filler import GRAMMAR_SECONDS, MaskFiller
from structgen.engine.metrics import Metrics
from structgen.engine.pages import PageAllocator
from structgen.engine.pipeline import Pipeline
from structgen.engine.rescue import Rescue
from structgen.engine.runner import (
    MAX_ADAPTERS,
    MAX_LORA_RANK,
    MOST_DEPTH,
    PREFILL_TOKENS,
    AdapterRunner,
    ModelRunner,
)
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.scheduler import Scheduler, StepPlan
from structgen.engine.sequence import MaskSource, Sequence
from structgen.engine.step import StepSlot
from structgen.engine.trace import Trace
from structgen.engine.waiting import Waiting

CACHED_PREFIX_TOKENS = 16384
STEP_SECONDS = 120.0  # a step that takes longer means that the device hangs


class Engine:
    """Not thread safe: one thread drives it. A runner may stand in for the model.

    depth           steps in flight: 1 is the serial loop, 2 overlaps the host's work with the device's. The runner
                    knows what suits it when left out
    jump_forward    tokens that a grammar leaves no choice about are appended without sampling, and run as a chunk
    share_prefixes  requests that begin alike reuse each other's pages. Which prompt tokens run together then depends on
                    earlier requests, and with real matrix products so does the last bit of their logits
    prefill_tokens  prompt tokens in one step, at most: a bound on how long a step with a prompt holds back the others
    """

    def __init__(
        self,
        model: LlamaModel | ModelRunner,
        *,
        max_batch: int = 8,
        max_context: int | None = None,
        depth: int | None = None,
        jump_forward: bool = True,
        share_prefixes: bool = True,
        prefill_tokens: int = PREFILL_TOKENS,
        step_seconds: float = STEP_SECONDS,
        max_adapters: int = MAX_ADAPTERS,
        max_lora_rank: int = MAX_LORA_RANK,
    ) -> None:
        if depth is not None and not 1 <= depth <= MOST_DEPTH:
            raise ValueError(f"depth must be 1 or {MOST_DEPTH}, not {depth}")
        runner: ModelRunner = (
            choose_runner(
                model,
                max_batch=max_batch,
                max_context=max_context,
                max_adapters=max_adapters,
                max_lora_rank=max_lora_rank,
                step_tokens=prefill_tokens + max_batch,
            )
            if isinstance(model, LlamaModel)
            else model
        )
        self.runner = runner
        self.depth = depth or runner.default_depth
        self.metrics, self.trace = Metrics(), Trace()
        self._adapters = AdapterRegistry(runner.max_adapters if isinstance(runner, AdapterRunner) else 0)
        self.max_context = min(runner.max_context, runner.pages * runner.page_size, max_context or runner.max_context)
        cached = CACHED_PREFIX_TOKENS // runner.page_size
        self._pages = PageAllocator(runner.pages, runner.page_size, max_cached=cached)
        self._scheduler = Scheduler(
            self._pages,
            self.metrics,
            max_batch=max_batch,
            step_tokens=prefill_tokens + max_batch,
            share_prefixes=share_prefixes,
        )
        slots = [
            StepSlot(index, max_batch=max_batch, vocab_size=runner.vocab_size, pinned=runner.pinned)
            for index in range(self.depth + 1)
        ]
        self._pipeline = Pipeline(slots[: self.depth])
        self._filler = MaskFiller(-(-runner.vocab_size // 32))
        self._lifecycle = Lifecycle(
            runner, self._scheduler, self._adapters, self.metrics, self._filler, jump_forward=jump_forward
        )
        self._rescue = Rescue(
            runner, self._pipeline, self._lifecycle, self.metrics, slots[self.depth], seconds=step_seconds
        )
        self._waiting = Waiting(self.trace)
        self._submitted = 0
        self._usual_step = 0.0  # seconds: how long a late mask may hold the others back
        self._last_commit = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._lifecycle.live or self._lifecycle.has_news)

    def submit(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        matcher: MaskSource | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        *,
        adapter: str | None = None,
    ) -> Sequence:
        """Queue a request. BudgetError or ContextLengthError when it could not end; ValueError for bad ids.

        `adapter` names a loaded LoRA adapter to run it under; AdapterError when there is none of that name.
        """
        chosen = None if adapter is None else self._adapters.find(adapter)
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
        if chosen is not None:
            self._adapters.hold(chosen)
            sequence.adapter = chosen
        self._submitted += 1
        self._lifecycle.begin(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End the sequence now, at whatever stage; nothing happens when it has ended. The next `step` reports it."""
        if not sequence.finished:
            self._lifecycle.finish(sequence, "cancelled")

    def step(self) -> list[StepOutput]:
        """One tick. Returns what it added, and the sequences that ended; [] when there was only prefill, or nothing.

        StepTimeoutError when the device hangs: every request in flight has then ended with an error.
        """
        self._commit_sampled()
        if self._pipeline.empty:
            self._launch()
        slot = self._pipeline.to_sample
        if slot is not None:
            self._fill(slot)
            self._sample(slot)
            waits = self.depth == 1 or self._waiting_pays(slot)
            if waits:
                self._commit_sampled()
            self._launch(has_waited=waits)
        return self._lifecycle.take_outputs()

    def close(self) -> None:
        """Give threads and device back; what is in flight is lost."""
        self._filler.close()
        self.runner.close()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names that `submit` takes now. Any thread may read this."""
        return self._adapters.names

    def read_adapter(self, folder: str | Path) -> AdapterWeights:
        """Read a PEFT folder for `load_adapter`; any thread may do it. ModelError when it cannot be used."""
        return self._adapter_runner().read_adapter(folder)

    def load_adapter(self, name: str, source: str | Path | AdapterWeights) -> None:
        """Make a LoRA adapter, a PEFT folder or one already read, known as `name`; between steps, at any time.

        AdapterError when the name is taken or no slot is free; ModelError for a bad folder or too large a rank.
        """
        runner = self._adapter_runner()
        weights = source if isinstance(source, AdapterWeights) else runner.read_adapter(source)
        self._adapters.load(name, lambda slot: runner.load_adapter(slot, weights))

    def unload_adapter(self, name: str) -> None:
        """Refuse the name from now on. Sequences that use it go on; its slot is free when the last one is released."""
        self._adapters.unload(name)

    def check_integrity(self) -> None:
        """AssertionError unless every page, slot, lane and reference is accounted for. Cheap enough for production."""
        live = self._lifecycle.live
        self._pages.check_integrity(sequence.pages for sequence in live)
        self._pipeline.check_integrity(live)
        self._adapters.check_integrity(sequence.adapter for sequence in live)
        self._scheduler.check_integrity()
        active = {*self._scheduler.waiting, *self._scheduler.running, *self._scheduler.preempted}
        assert active <= live, "a released sequence is still scheduled"
        zombies = live - active
        assert all(sequence.finished and sequence.inflight_refs for sequence in zombies), "a sequence is forgotten"

    # -- the tick ---------------------------------------------------------------------------------------------------

    def _fill(self, slot: StepSlot) -> None:
        with self.trace.host("fill", slot.number):
            others, masked = False, []  # rows without a mask to be copied; rows with one
            shares, lend = self.runner.shares_masks, self._filler.lend
            for row, planned in enumerate(slot.rows):
                sequence = planned.sequence
                if planned.epoch != sequence.epoch:
                    continue
                if sequence.matcher is None:
                    others = True
                elif shares and (mask := lend(sequence)) is not None:
                    others = slot.constrained[row] = True
                    slot.shared[row] = mask
                else:
                    masked.append(row)
            if masked:
                self._copy_masks(slot, masked, others=others)

    def _copy_masks(self, slot: StepSlot, rows: list[int], *, others: bool) -> None:
        """Masks that are written into the slot. `others`: the step has rows that wait for no mask."""
        targets = [(slot.sequences[row], slot.mask_rows[row]) for row in rows]
        filled = self._filler.fill(targets, patience=self._usual_step, others=others)
        for sequence, problem in filled.failed:
            self._lifecycle.fail(sequence, f"the grammar failed to fill a mask: {problem!r}")
        for row in rows:
            planned = slot.rows[row]
            if filled.late and planned.sequence in filled.late:
                # This step's logits are lost to it: its last token runs again.
                planned.sequence.void(planned.start + planned.count - 1)
                self.metrics.late_masks += 1
            else:
                slot.constrained[row] = not planned.void

    def _sample(self, slot: StepSlot) -> None:
        with self.trace.host("sample", slot.number):
            slot.sampling = slot.gather_sampling()
            self._pipeline.sampled()
            if slot.fault is None:
                try:
                    self.runner.sample(slot)
                except Exception as problem:
                    slot.fault = problem

    def _commit_sampled(self) -> None:
        slot = self._pipeline.to_commit
        if slot is None:
            return
        with self.trace.host("wait", slot.number):
            tokens, faults, logprobs = self._rescue.wait(slot)
        with self.trace.host("commit", slot.number):
            if slot.fault is None:  # else its events may never have been recorded
                idle = self.trace.device(self.runner.spans(slot), slot.number)
                if slot.waited and idle:
                    self._waiting.note(idle)
            else:
                self.trace.idle()  # rows have run again since, which is not in the trace
            append, sampled, voids = self._lifecycle.append, 0, 0
            for row, planned in enumerate(slot.rows):
                sequence = planned.sequence
                if planned.epoch != sequence.epoch:
                    voids += 1
                    continue
                sequence.unknown -= 1
                if faults and row in faults:
                    self._lifecycle.fail(sequence, faults[row])
                else:
                    append(sequence, tokens[row], logprobs.get(row) if logprobs else None)
                    sampled += 1
            self.metrics.tokens_sampled += sampled
            self.metrics.void_rows += voids
            for sequence in self._pipeline.commit():
                self._lifecycle.settle(sequence)
        self._note_duration()

    def _launch(self, *, has_waited: bool = False) -> None:
        for sequence in self._filler.hanging(self._scheduler.running):
            self._lifecycle.fail(sequence, f"the grammar hangs: a mask took more than {GRAMMAR_SECONDS:g} s")
        with self.trace.host("plan", self.metrics.steps + 1):
            plan = self._scheduler.plan()
        if plan is None and self._pipeline.empty and not self._lifecycle.has_news:  # what has ended is told first
            plan, has_waited = self._plan_when_a_mask_is_there(), False
        if plan is None:
            if self._pipeline.empty:
                self.trace.idle()
                self._last_commit = 0.0
            return
        self.metrics.steps += 1
        slot = self._pipeline.reserve()
        with self.trace.host("launch", self.metrics.steps):
            slot.stage(plan, self.metrics.steps)
            slot.waited = has_waited
            self._pipeline.launch([row.sequence for row in plan.rows])
            try:
                self.runner.launch(slot)
            except Exception as problem:
                slot.fault = problem

    def _plan_when_a_mask_is_there(self) -> StepPlan | None:
        """Everything that runs waits for its mask: so does the engine, instead of spinning."""
        late = [sequence for sequence in self._scheduler.running if sequence.mask_job is not None]
        if late:
            self._filler.wait_for_any(late)
        return self._scheduler.plan() if late else None

    def _waiting_pays(self, slot: StepSlot) -> bool:
        """Whether to commit before launching, though a second step could be in flight: when rows are likely to jump."""
        if not self._lifecycle.jumps:
            return False
        chance = self._lifecycle.jump_chance
        return self._waiting.pays([chance(row.sequence) for row in slot.rows if row.epoch == row.sequence.epoch])

    def _note_duration(self) -> None:
        now = time.perf_counter()
        if self._last_commit:
            self._usual_step += 0.1 * (now - self._last_commit - self._usual_step)
        self._last_commit = now

    def _adapter_runner(self) -> AdapterRunner:
        if not isinstance(self.runner, AdapterRunner):
            raise AdapterError(f"{type(self.runner).__name__} runs no LoRA adapters", hint="use the torch runner")
        return self.runner
