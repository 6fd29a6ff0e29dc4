"""Scheduler and pipeline without a model: what runs, in which order, and who owns what meanwhile."""

from __future__ import annotations

import pytest

from structgen.engine.metrics import Metrics
from structgen.engine.pages import PageAllocator
from structgen.engine.pipeline import Pipeline
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.scheduler import Scheduler
from structgen.engine.sequence import Sequence, Stage


def make_sequence(number: int, prompt: int, max_tokens: int = 4) -> Sequence:
    ids = range(100 * number, 100 * number + prompt)
    return Sequence(number, ids, SamplingParams(max_tokens=max_tokens), None, frozenset())


def make_scheduler(
    pages: int = 32, *, max_batch: int = 4, step_tokens: int = 8, metrics: Metrics | None = None
) -> Scheduler:
    return Scheduler(PageAllocator(pages, 4), metrics or Metrics(), max_batch=max_batch, step_tokens=step_tokens)


def commit(sequence: Sequence, token: int = 5) -> None:
    """What the engine does when a sampled token has arrived."""
    sequence.unknown -= 1
    sequence.output_ids.append(token)


def test_a_long_prompt_runs_in_chunks_and_only_its_last_one_samples() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, 19))
    steps = []
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        (row,) = plan.rows
        steps.append((row.start, row.count, row.samples))
    assert steps == [(0, 8, False), (8, 8, False), (16, 3, True)]


def test_decode_rows_go_before_chunks_and_share_the_step_with_them() -> None:
    scheduler = make_scheduler()
    first, second = make_sequence(1, 3), make_sequence(2, 30)
    scheduler.add(first)
    scheduler.plan()
    scheduler.add(second)
    commit(first)
    plan = scheduler.plan()
    assert plan is not None
    assert [(row.sequence, row.count) for row in plan.decode] == [(first, 1)]
    assert [(row.sequence, row.count) for row in plan.chunks] == [(second, 7)]
    assert plan.sampling_rows == plan.decode
    assert plan.tokens == 8


def test_a_token_that_is_sampled_and_not_yet_known_may_run_but_none_after_it() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(1, 3, max_tokens=3)
    scheduler.add(sequence)
    rows = []
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        rows += [(row.start, row.count, row.samples) for row in plan.rows]
        if sequence.unknown == 2:
            commit(sequence)
    assert rows == [(0, 3, True), (3, 1, True), (4, 1, True)]
    assert (sequence.unknown, sequence.budget) == (1, 1)
    assert scheduler.plan() is None, "the token in flight is the last one"


def test_a_row_is_void_once_its_sequence_has_moved_on() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(1, 3, max_tokens=9)
    scheduler.add(sequence)
    scheduler.plan()
    ahead = scheduler.plan()
    assert ahead is not None
    commit(sequence)
    sequence.output_ids += [7, 8]  # a jump: the token in flight was sampled in vain
    sequence.void(sequence.computed)
    assert ahead.rows[0].void
    plan = scheduler.plan()
    assert plan is not None
    assert [(row.start, row.count, row.samples, row.void) for row in plan.rows] == [(4, 2, True, False)]


def test_the_youngest_gives_way_when_pages_run_out_and_is_computed_again() -> None:
    metrics = Metrics()
    scheduler = make_scheduler(metrics=metrics, pages=6, max_batch=2, step_tokens=16)
    old, young = make_sequence(1, 7, max_tokens=17), make_sequence(2, 7, max_tokens=17)
    for sequence in (old, young):
        scheduler.add(sequence)
    scheduler.plan()
    assert scheduler.running == [old, young]
    while young.stage is Stage.RUNNING:
        for sequence in (old, young):
            commit(sequence)
        scheduler.plan()
    assert (metrics.preemptions, young.pages, young.lane, young.computed) == (1, [], -1, 0)
    assert old.stage is Stage.RUNNING
    scheduler.check_integrity()
    scheduler.pages.check_integrity([old.pages])
    old.finish("stop")
    scheduler.drop(old)
    scheduler.release(old)
    plan = scheduler.plan()
    assert plan is not None
    assert plan.rows[-1].samples
    assert plan.rows[-1].start + plan.rows[-1].count == young.total


def test_a_preempted_sequence_keeps_its_pages_until_no_step_in_flight_holds_it() -> None:
    scheduler = make_scheduler(pages=4, max_batch=2, step_tokens=16)
    pipeline = Pipeline(["a", "b"])
    old, young = make_sequence(1, 7, max_tokens=9), make_sequence(2, 4, max_tokens=9)
    for sequence in (old, young):
        scheduler.add(sequence)
    plan = scheduler.plan()
    assert plan is not None
    pipeline.launch(row.sequence for row in plan.rows)
    pipeline.sampled()
    commit(old)
    old.output_ids += [1, 2, 3, 4, 5]
    scheduler.plan()
    assert (young.stage, bool(young.pages)) == (Stage.PREEMPTED, True)
    commit(young)
    assert young in pipeline.commit()
    scheduler.release(young)
    assert (young.stage, young.pages, young.total) == (Stage.WAITING, [], 5)
    scheduler.pages.check_integrity([old.pages])


def test_admission_is_first_come_first_served_and_bounded_by_batch_and_pages() -> None:
    scheduler = make_scheduler(pages=6, max_batch=2)
    large, small, third = make_sequence(1, 12), make_sequence(2, 12), make_sequence(3, 1)
    for sequence in (large, small, third):
        scheduler.add(sequence)
    scheduler.plan()
    assert scheduler.running == [large], "4 of 6 pages are taken; the next needs 4, and nobody overtakes it"
    large.finish("stop")
    scheduler.drop(large)
    scheduler.release(large)
    scheduler.plan()
    assert scheduler.running == [small, third]
    scheduler.pages.check_integrity([small.pages, third.pages])


def test_a_shared_prefix_is_not_run_again_except_for_the_last_token() -> None:
    metrics = Metrics()
    scheduler = make_scheduler(step_tokens=64, metrics=metrics)
    first, again = make_sequence(1, 16), make_sequence(1, 16)
    scheduler.add(first)
    scheduler.plan()
    first.finish("stop")
    scheduler.drop(first)
    scheduler.release(first)
    scheduler.add(again)
    plan = scheduler.plan()
    assert plan is not None
    assert [(row.start, row.count) for row in plan.rows] == [(12, 4)]
    assert metrics.prompt_tokens_shared == 12


def test_sequences_with_a_prompt_that_is_being_computed_wait_for_it() -> None:
    scheduler = make_scheduler(step_tokens=24)
    first, again, other = make_sequence(1, 41), make_sequence(1, 41), make_sequence(2, 3)
    for sequence in (first, again, other):
        scheduler.add(sequence)
    for _ in range(2):
        scheduler.plan()
        assert scheduler.running == [first]
    commit(first)
    scheduler.remember(first, first.total)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.running == [first, again, other]
    assert [(row.sequence, row.start, row.count) for row in plan.rows][1:] == [(again, 40, 1), (other, 0, 3)]
    assert not scheduler._coming


def test_a_short_prompt_that_is_being_computed_is_not_worth_waiting_for() -> None:
    scheduler = make_scheduler(step_tokens=24)
    scheduler.add(make_sequence(1, 12))
    scheduler.add(make_sequence(1, 12))
    scheduler.plan()
    assert len(scheduler.running) == 2


def test_nobody_waits_for_a_prompt_that_will_not_come() -> None:
    scheduler = make_scheduler(step_tokens=24)
    first, again = make_sequence(1, 41), make_sequence(1, 41)
    scheduler.add(first)
    scheduler.add(again)
    scheduler.plan()
    first.finish("cancelled")
    scheduler.drop(first)
    scheduler.plan()
    assert scheduler.running == [again]
    again.finish("cancelled")
    scheduler.drop(again)
    assert not scheduler._coming


def test_what_a_failed_sequence_computed_is_never_shared() -> None:
    scheduler = make_scheduler(step_tokens=64)
    first, again = make_sequence(1, 16), make_sequence(1, 16)
    scheduler.add(first)
    scheduler.plan()
    first.finish("error", "NaN")
    scheduler.drop(first)
    scheduler.release(first)
    scheduler.add(again)
    plan = scheduler.plan()
    assert plan is not None
    assert plan.tokens == 16


def test_a_zombie_is_handed_back_when_the_last_step_that_holds_it_is_through() -> None:
    pipeline = Pipeline(["slot a", "slot b"])
    sequence = make_sequence(1, 3)
    for _ in range(2):
        pipeline.launch([sequence])
        pipeline.sampled()
    assert pipeline.full
    assert sequence.inflight_refs == 2
    sequence.finish("cancelled")
    assert pipeline.commit() == []
    pipeline.check_integrity([sequence])
    assert pipeline.commit() == [sequence]
    assert pipeline.empty


def test_wrong_references_are_found() -> None:
    pipeline = Pipeline(["slot"])
    sequence = make_sequence(1, 3)
    sequence.inflight_refs = 1
    with pytest.raises(AssertionError, match="wrong references"):
        pipeline.check_integrity([sequence])


def two_for_the_pages_of_one() -> tuple[Scheduler, Sequence, Sequence]:
    """Both run; the older one's next tokens need the pages of the younger one."""
    scheduler = make_scheduler(pages=4, max_batch=2, step_tokens=16)
    old, young = make_sequence(1, 7, max_tokens=9), make_sequence(2, 3, max_tokens=9)
    for sequence in (old, young):
        scheduler.add(sequence)
    scheduler.plan()
    for sequence in (old, young):
        commit(sequence)
    old.output_ids += [1, 2, 3, 4, 5]
    return scheduler, old, young


def test_a_row_that_is_preempted_by_a_later_one_of_the_same_plan_was_never_taken() -> None:
    scheduler, old, young = two_for_the_pages_of_one()
    plan = scheduler.plan()
    assert plan is not None
    assert [(row.sequence, row.count) for row in plan.rows] == [(old, 6)]
    assert (young.stage, young.pages, young.unknown) == (Stage.WAITING, [], 0)
    assert young.page_keys == [], "its fourth token never ran, so its page is no known prefix"


def test_pages_that_come_back_with_the_step_in_flight_are_waited_for() -> None:
    scheduler = make_scheduler(pages=11, max_batch=4, step_tokens=40)
    pipeline = Pipeline(["a", "b"])
    sequences = [make_sequence(number, 7, max_tokens=9) for number in range(1, 5)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.plan()
    assert scheduler.running == sequences
    scheduler.pages.take(3)  # none is left
    pipeline.launch(sequences)
    pipeline.sampled()
    for sequence in sequences:
        commit(sequence)
    sequences[0].output_ids.append(1)
    scheduler.plan()
    assert [sequence.stage for sequence in sequences] == [Stage.RUNNING] * 3 + [Stage.PREEMPTED]


def test_a_preempted_prompt_is_told_again_when_it_has_been_computed_again() -> None:
    scheduler, _, young = two_for_the_pages_of_one()
    young.prompt_is_known = True
    scheduler.plan()
    assert (young.stage, young.prompt_is_known) == (Stage.WAITING, False)
