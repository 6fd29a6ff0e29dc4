"""Rescue: a step that failed as a whole is run again row by row, so that only those at fault end."""

from __future__ import annotations

from structgen.engine.errors import StepTimeoutError
from structgen.engine.lifecycle import Lifecycle
from structgen.engine.metrics import Metrics
from structgen.engine.pipeline import Pipeline
from structgen.engine.runner import ModelRunner
from structgen.engine.sampled import Pick, Sampled
from structgen.engine.sampler import IGNORED
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Stage
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
            return self._wait(slot)
        except StepTimeoutError as problem:
            for sequence in list(self._lifecycle.live):
                self._lifecycle.fail(sequence, problem.message)
            raise

    def _wait(self, slot: StepSlot) -> list[Pick]:
        try:
            if slot.fault is not None:
                raise slot.fault
            self._runner.wait(slot, self._seconds)
        except StepTimeoutError:
            raise
        except Exception as problem:
            slot.fault = problem
            return self._run_again(slot)
        return _picks(slot)

    def _run_again(self, slot: StepSlot) -> list[Pick]:
        self._metrics.rescued_steps += 1
        if self._pipeline.newest is not slot:  # it was launched on tokens that this step never sampled
            self._undo(self._pipeline.newest)
        sampling = {planned.sequence: row for row, planned in enumerate(slot.rows)}
        picks = [NO_PICK] * len(slot.rows)
        for planned in slot.plan.rows:
            row, sequence = sampling.get(planned.sequence), planned.sequence
            if planned.void or sequence.stage is not Stage.RUNNING:  # nobody waits for its token, or it has no lane
                sequence.void(min(sequence.computed, planned.start))  # the keys of the row are not there
                continue
            found = self._run_alone(planned, slot, row)
            if row is not None and found:
                picks[row] = found[0]
        return picks

    def _undo(self, slot: StepSlot) -> None:
        """Take the newest step back. It is seen through first: it may be reading its buffers, and what it wrote counts
        for nothing, whoever its rows belong to by now.
        """
        if slot.fault is None:
            slot.sampling = [IGNORED] * len(slot.rows)
            try:
                self._runner.sample(slot)
                self._runner.wait(slot, self._seconds)
            except StepTimeoutError:
                raise
            except Exception as problem:
                slot.fault = problem
        for planned in slot.plan.rows:
            sequence = planned.sequence
            sequence.unknown -= planned.samples and not planned.void
            sequence.computed = min(sequence.computed, planned.start)
        for sequence in self._pipeline.discard():
            self._lifecycle.settle(sequence)

    def _run_alone(self, planned: PlanRow, slot: StepSlot, row: int | None) -> list[Pick]:
        """Run one row of a step again; `row`: where its mask is in the step's slot, if it samples."""
        alone = self._spare
        alone.stage(StepPlan((), (planned,)), slot.number)
        if row is not None:
            alone.mask_rows[0][:] = slot.mask_rows[row]
            alone.constrained[0] = slot.constrained[row]
            alone.sampling = [slot.sampling[row]]
        try:
            self._runner.launch(alone)
            self._runner.sample(alone)
            self._runner.wait(alone, self._seconds)
        except StepTimeoutError:  # the device hangs: so would every other row
            raise
        except Exception as problem:
            self._lifecycle.fail(planned.sequence, f"the model failed: {problem!r}")
            return []
        return _picks(alone)


def _picks(slot: StepSlot) -> list[Pick]:
    count = len(slot.rows)
    return Sampled(slot.tokens[:count], slot.status[:count], slot.logprobs).read()
