"""The pipeline's state machine alone: slots, references, and the order that steps must keep."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from structgen.engine import SamplingParams, Sequence
from structgen.engine.pipeline import Pipeline


def sequence(number: int) -> Sequence:
    return Sequence(number, [1], SamplingParams(), None, frozenset())


def state(pipeline: Pipeline[str]) -> tuple[str | None, str | None]:
    return pipeline.to_sample, pipeline.to_commit


def test_a_slot_is_free_again_only_after_its_commit() -> None:
    pipeline = Pipeline(["a", "b"])
    one, two = sequence(1), sequence(2)
    pipeline.launch([one, two])
    assert state(pipeline) == ("a", None)
    pipeline.sampled()
    assert state(pipeline) == (None, "a")
    pipeline.launch([one])
    assert (pipeline.full, len(pipeline)) == (True, 2)
    assert state(pipeline) == ("b", "a")
    assert (one.inflight_refs, two.inflight_refs) == (2, 1)
    assert pipeline.commit() == [two]
    assert (pipeline.full, len(pipeline)) == (False, 1)
    pipeline.sampled()
    assert pipeline.commit() == [one]
    assert pipeline.empty


def test_a_step_is_not_launched_before_the_last_is_sampled() -> None:
    pipeline = Pipeline(["a", "b"])
    pipeline.launch([])
    with pytest.raises(AssertionError):
        pipeline.launch([])
    with pytest.raises(AssertionError):
        pipeline.commit()


def test_discarding_takes_the_newest_back() -> None:
    pipeline = Pipeline(["a", "b"])
    one = sequence(1)
    pipeline.launch([one])
    pipeline.sampled()
    pipeline.launch([one])
    assert pipeline.newest == "b"
    assert pipeline.discard() == []
    assert (len(pipeline), one.inflight_refs, pipeline.to_commit, pipeline.to_sample) == (1, 1, "a", None)
    assert pipeline.commit() == [one]
    pipeline.check_integrity([one])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_any_order_of_allowed_moves_keeps_the_books(depth: int) -> None:
    rng = random.Random(depth)
    pipeline = Pipeline(list(range(depth)))
    sequences = [sequence(number) for number in range(5)]
    for _ in range(2000):
        moves: list[Callable[[], object]] = []
        if not pipeline.full and pipeline.to_sample is None:
            moves.append(lambda: pipeline.launch(rng.sample(sequences, rng.randrange(6))))
        if pipeline.to_sample is not None:
            moves.append(pipeline.sampled)
        if pipeline.to_commit is not None:
            moves.append(pipeline.commit)
        if not pipeline.empty and rng.random() < 0.1:
            moves.append(pipeline.discard)
        rng.choice(moves)()
        pipeline.check_integrity(sequences)
        assert all(0 <= each.inflight_refs <= depth for each in sequences)
