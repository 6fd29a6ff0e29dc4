"""Rescue: a step that failed as a whole is run again row by row, so that only those at fault end."""

from __future__ import annotations

from structgen.engine.errors import StepTimeoutError
from structgen.engine.lifecycle import Lifecycle
from structgen.engine.metrics import Metrics
from structgen.engine.pipeline import Pipeline
from structgen.engine.runner import ModelRunner
from structgen.engine.sampled import Pick, Sampled
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.step import StepSlot

NO_PICK = Pick(0, None, None)


class Rescue:
    """Waits for steps. Owns the slot in which single rows run again."""

    def __init__(
        self,
        runner: ModelRunner,
        pipeline: Pipeline[StepSlot],
        lifecycle: Lifecycle,
        metrics: Metrics,
        spare: StepSlot,
        *,
        seconds: float,
    ) -> None:
        self._runner, self._pipeline, self._lifecycle, self._metrics = runner, pipeline, lifecycle, metrics
        self._spare, self._seconds = spare, seconds

    def wait(self, slot: StepSlot) -> list[Pick]:
        """What the step sampled; when the runner fails, each row is run again alone, and those that fail again end."""
        try:
            if slot.fault is not None:
                raise slot.fault
            self._runner.wait(slot, self._seconds)
        except StepTimeoutError as problem:
            for sequence in list(self._lifecycle.live):
                self._lifecycle.fail(sequence, problem.message)
            raise
        except Exception:
            return self._run_again(slot)
        return _picks(slot)

    def _run_again(self, slot: StepSlot) -> list[Pick]:
        self._metrics.rescued_steps += 1
        if self._pipeline.newest is not slot:  # it was launched on tokens that this step never sampled
            self._undo(self._pipeline.newest)
        sampling = {planned.sequence: row for row, planned in enumerate(slot.rows)}
        picks = [NO_PICK] * len(slot.rows)
        for planned in slot.plan.rows:
            row = sampling.get(planned.sequence)
            found = [] if planned.void else self._run_alone(planned, slot, row)
            if row is not None and found:
                picks[row] = found[0]
        return picks

    def _undo(self, slot: StepSlot) -> None:
        for planned in slot.plan.rows:
            sequence = planned.sequence
            if not planned.void:
                sequence.computed = min(sequence.computed, planned.start)
                sequence.unknown -= planned.samples
        for sequence in self._pipeline.discard():
            self._lifecycle.settle(sequence)

    def _run_alone(self, planned: PlanRow, slot: StepSlot, row: int | None) -> list[Pick]:
        """Run one row of a step again; `row`: where its mask is in the step's slot, if it samples."""
        alone = self._spare
        alone.stage(StepPlan((), (planned,)), slot.number)
        if row is not None:
            alone.mask_rows[0], alone.constrained[0] = slot.mask_rows[row], slot.constrained[row]
            alone.sampling = [slot.sampling[row]]
        try:
            self._runner.launch(alone)
            self._runner.sample(alone)
            self._runner.wait(alone, self._seconds)
        except Exception as problem:
            self._lifecycle.fail(planned.sequence, f"the model failed: {problem!r}")
            return []
        return _picks(alone)


def _picks(slot: StepSlot) -> list[Pick]:
    count = len(slot.rows)
    return Sampled(slot.tokens[:count], slot.status[:count], slot.logprobs).read()
