"""Rescue: a step that failed as a whole is run again row by row, so that only those at fault end."""

from __future__ import annotations

from structgen.engine.errors import StepTimeoutError
from structgen.engine.lifecycle import Lifecycle
from structgen.engine.metrics import Metrics
from structgen.engine.pipeline import Pipeline
from structgen.engine.runner import ModelRunner
from structgen.engine.sampled import Arrived
from structgen.engine.sampler import IGNORED
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Stage
from structgen.engine.step import StepSlot


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

    def wait(self, slot: StepSlot) -> Arrived:
        """What the step sampled; when the runner fails, each row is run again alone, and those that fail again end."""
        try:
            return self._wait(slot)
        except StepTimeoutError as problem:
            for sequence in list(self._lifecycle.live):
                self._lifecycle.fail(sequence, problem.message)
            raise

    def _wait(self, slot: StepSlot) -> Arrived:
        try:
            if slot.fault is not None:
                raise slot.fault
            self._runner.wait(slot, self._seconds)
        except StepTimeoutError:
            raise
        except Exception as problem:
            slot.fault = problem
            return self._run_again(slot)
        return _arrived(slot)

    def _run_again(self, slot: StepSlot) -> Arrived:
        self._metrics.rescued_steps += 1
        if self._pipeline.newest is not slot:  # it was launched on tokens that this step never sampled
            self._undo(self._pipeline.newest)
        sampling = {planned.sequence: row for row, planned in enumerate(slot.rows)}
        arrived = Arrived([0] * len(slot.rows), {}, {})
        for planned in slot.plan.rows:
            row, sequence = sampling.get(planned.sequence), planned.sequence
            if planned.void or sequence.stage is not Stage.RUNNING:  # nobody waits for its token, or it has no lane
                sequence.void(min(sequence.computed, planned.start))  # the keys of the row are not there
                continue
            found = self._run_alone(planned, slot, row)
            if row is not None and found is not None:
                arrived.tokens[row] = found.tokens[0]
                if 0 in found.faults:
                    arrived.faults[row] = found.faults[0]
                if 0 in found.logprobs:
                    arrived.logprobs[row] = found.logprobs[0]
        return arrived

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

    def _run_alone(self, planned: PlanRow, slot: StepSlot, row: int | None) -> Arrived | None:
        """Run one row of a step again; `row`: where its mask is in the step's slot, if it samples. None when it fails
        again, and its sequence with it.
        """
        alone = self._spare
        alone.stage(StepPlan((), (planned,)), slot.number)
        if row is not None:
            alone.mask_rows[0][:] = slot.mask_of(row)
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
            return None
        return _arrived(alone)


def _arrived(slot: StepSlot) -> Arrived:
    count = len(slot.rows)
    return Arrived.of(slot.host_tokens[:count], slot.host_status[:count], slot.logprobs)
