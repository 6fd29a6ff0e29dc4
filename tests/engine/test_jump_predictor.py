"""Jumps are foretold by where a grammar stands, from counts that do not grow without bound."""

from __future__ import annotations

import pytest

from structgen.engine import jump_predictor
from structgen.engine.jump_predictor import JumpPredictor


def test_states_are_told_apart_and_an_unknown_one_is_expected_to_be_like_all() -> None:
    predictor = JumpPredictor()
    assert predictor.chance("string") == 0
    for _ in range(50):
        predictor.note("string", False)
        predictor.note("choice", True)
    assert predictor.chance("string") < 0.05
    assert predictor.chance("choice") > 0.95
    assert 0.3 < predictor.chance("never seen") < 0.7


def test_what_is_remembered_has_a_bound_and_the_latest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jump_predictor, "MOST_STATES", 100)
    predictor = JumpPredictor()
    for state in range(1000):
        predictor.note(state, True)
        predictor.note(state, True)
        assert len(predictor._seen) <= 100
    assert predictor._seen[999] == [2, 2]
