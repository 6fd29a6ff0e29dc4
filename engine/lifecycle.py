"""Lifecycle: what happens to a sequence from its submission, token by token, to the release of all that it held."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from structgen.engine.adapters import AdapterRegistry
from structgen.engine.jump_predictor import JumpPredictor
from structgen.engine.logprobs import TokenLogprob
from structgen.engine.mask_filler import MaskFiller
from structgen.engine.metrics import Metrics
from structgen.engine.runner import ModelRunner
from structgen.engine.scheduler import Scheduler
from structgen.engine.sequence import FinishReason, Mask, MaskSource, Sequence, Stage

END_SECONDS = 2e-3  # to find out that a text is at its end; the mask of an end takes some 10 microseconds


@dataclass(slots=True)
class StepOutput:
    """What one tick added to a sequence. EOS and stop tokens are not among `token_ids`.

    `logprobs` holds one entry for each of them when the request asked for it, and is empty otherwise.
    """

    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Lifecycle:
    """Owns the set of sequences that are not yet released, and what the next `take_outputs` will tell of them.

    `jumps`: whether tokens that a grammar forces are appended without sampling.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        adapters: AdapterRegistry,
        metrics: Metrics,
        filler: MaskFiller,
        *,
        jump_forward: bool,
    ) -> None:
        self.live: set[Sequence] = set()
        self._outputs: dict[Sequence, StepOutput] = {}
        self._runner, self._scheduler, self._adapters, self._metrics = runner, scheduler, adapters, metrics
        self._filler, self.jumps = filler, jump_forward
        self._predictor = JumpPredictor()
        self._spare_mask: Mask = np.zeros(-(-runner.vocab_size // 32), dtype=np.int32)

    @property
    def has_news(self) -> bool:
        return bool(self._outputs)

    def take_outputs(self) -> list[StepOutput]:
        """What was added since the last call, and which sequences ended."""
        outputs, self._outputs = list(self._outputs.values()), {}
        return outputs

    def begin(self, sequence: Sequence) -> None:
        self._metrics.prompt_tokens += len(sequence.prompt_ids)
        self.live.add(sequence)
        self._scheduler.add(sequence)
        self._jump(sequence)

    # -- tokens -----------------------------------------------------------------------------------------------------

    def append(self, sequence: Sequence, token: int, logprob: TokenLogprob | None = None) -> None:
        """Take one sampled token in, and what must follow it."""
        state = None
        if self.jumps:
            state, sequence.jump_state = sequence.jump_state or self._state_before_a_jump(sequence), None
        matcher = sequence.matcher
        try:
            if token in sequence.params.stop_token_ids:
                self.finish(sequence, "stop")
            elif matcher is None or matcher.accept(token):
                self._add(sequence, token, logprob)
            else:
                self.fail(sequence, f"the grammar refused token {token}, which its mask had allowed")
        except Exception as problem:
            self.fail(sequence, f"the grammar failed: {problem!r}")
        if sequence.finished:
            return
        if not sequence.prompt_is_known:
            sequence.prompt_is_known = True
            self._scheduler.remember(sequence, sequence.prompt_length)
        if self.jumps:
            jumped = self._jump(sequence)
            if state is not None:
                self._predictor.note(state, jumped)

    def jump_chance(self, sequence: Sequence) -> float:
        """How likely the token that is sampled next forces others after it, 0 to 1."""
        sequence.jump_state = state = self._state_before_a_jump(sequence)
        return 0.0 if state is None else self._predictor.chance(state)

    def _state_before_a_jump(self, sequence: Sequence) -> Hashable:
        """None where there can be no jump."""
        matcher = self._jumping_matcher(sequence)
        try:
            return None if matcher is None else matcher.state
        except Exception:  # the grammar is at fault, and will say so where its answer counts
            return None

    def _jumping_matcher(self, sequence: Sequence) -> MaskSource | None:
        """The matcher, where the tokens that it forces are appended. Not where the model's own logprob of each token is
        wanted: a token that is not sampled has none.
        """
        return sequence.matcher if self.jumps and sequence.params.logprobs != "raw" else None

    def _add(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        """The grammar has accepted the token: end the sequence where it must end."""
        matcher = sequence.matcher
        if token in sequence.eos_token_ids or (matcher is not None and matcher.is_terminated):
            return self.finish(sequence, "stop")
        output = self._output(sequence)
        output.token_ids.append(token)
        if sequence.sampling.wants_more:
            sequence.append(token, logprob)
            output.logprobs += sequence.logprobs[-1:]
        else:
            sequence.output_ids.append(token)
        if matcher is not None and matcher.is_complete and self._only_eos_is_left(sequence):
            return self.finish(sequence, "stop")
        if len(sequence.output_ids) >= sequence.limit:
            self.finish(sequence, "length")
        return None

    def _jump(self, sequence: Sequence) -> bool:
        """Append the tokens that the grammar leaves no choice about, if any; what a step in flight samples for it is
        then void.
        """
        matcher = self._jumping_matcher(sequence)
        if matcher is None or _is_busy(sequence):
            return False
        before = len(sequence.output_ids)
        try:
            forced = matcher.forced_tokens()
            if forced:
                self._take_forced(sequence, matcher, forced)
        except Exception as problem:
            self.fail(sequence, f"the grammar failed: {problem!r}")
        count = len(sequence.output_ids) - before
        if count:
            self._metrics.tokens_forced += count
            self._metrics.jumps += 1
            if sequence.unknown:
                sequence.void(sequence.computed)
        return count > 0

    def _take_forced(self, sequence: Sequence, matcher: MaskSource, tokens: Items[int]) -> None:
        params = sequence.params
        for token in tokens:
            if not sequence.finished and token in params.stop_token_ids:
                self.finish(sequence, "stop")
            if sequence.finished or not self._accept_in_time(sequence, matcher, token):
                break
            certain = TokenLogprob.certain(token, top=params.top_logprobs) if params.logprobs else None
            self._add(sequence, token, certain)
            if _is_busy(sequence):
                break

    @staticmethod
    def _accept_in_time(sequence: Sequence, matcher: MaskSource, token: int) -> bool:
        """Advance by a forced token, unless the value could not be completed in time after it: the tokenizer may spell
        it at length.
        """
        if not matcher.accept(token):
            return False
        fits = matcher.min_tokens_to_complete <= sequence.budget - 1
        if not fits:
            matcher.rollback(1)
        return fits

    def _only_eos_is_left(self, sequence: Sequence) -> bool:
        """Whether the next step could sample nothing but EOS, where the value is complete: then it need not run. Its
        mask is then final as well.

        False as well when the mask comes too late; the sequence's next step then waits for it.
        """
        if not sequence.eos_token_ids or sequence.budget == 0:
            return False
        mask = self._spare_mask
        was_closed = sequence.closed_early
        filled = self._filler.fill([(sequence, mask)], patience=END_SECONDS, others=True)
        for _, problem in filled.failed:
            raise problem
        if filled.late:
            return False
        words = mask.view(np.uint32)
        for token in sequence.eos_token_ids:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        if mask.any():
            sequence.closed_early = was_closed  # the step will run, and fill this mask again
            return False
        return True

    # -- ends -------------------------------------------------------------------------------------------------------

    def fail(self, sequence: Sequence, why: str) -> None:
        if not sequence.finished:
            self.finish(sequence, "error", why)

    def finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """Final for the user now; released now too, unless a step in flight still holds it."""
        self._scheduler.drop(sequence)
        sequence.finish(reason, error)
        self._metrics.finished += 1
        self._metrics.failed += reason == "error"
        self._metrics.cancelled += reason == "cancelled"
        self._output(sequence).finish_reason = sequence.finish_reason
        if sequence.inflight_refs == 0:
            self._release(sequence)

    def settle(self, sequence: Sequence) -> None:
        """No step in flight holds the sequence any more: give up what it kept for them."""
        if sequence.finished:
            self._release(sequence)
        elif sequence.stage is Stage.PREEMPTED:
            self._scheduler.release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.finish_reason == "error" and sequence.pages:
            self._runner.clear(self._scheduler.pages.exclusive(sequence.pages))
        self._scheduler.release(sequence)
        self.live.remove(sequence)
        if sequence.adapter is not None:
            self._adapters.release(sequence.adapter)

    def _output(self, sequence: Sequence) -> StepOutput:
        output = self._outputs.get(sequence)
        if output is None:
            output = self._outputs[sequence] = StepOutput(sequence, [], [])
        return output


def _is_busy(sequence: Sequence) -> bool:
    """Whether the matcher computes a mask on another thread: it stays where it is until that is there."""
    return sequence.mask_job is not None
