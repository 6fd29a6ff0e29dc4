"""The benchmark's own parts on a fake runner: turns, lengths, ratios, and replays of recorded values."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from structgen.engine import Engine
from structgen.engine.bench_gpu import recorded_tasks
from structgen.engine.bench_host import microseconds
from structgen.engine.bench_replay import Recording, Replay
from structgen.engine.bench_rounds import Rounds
from structgen.engine.bench_schemas import EXTRACTIONS, Extraction
from structgen.engine.bench_structured import Contest, Group, Task, Writer
from structgen.engine.bench_vocabulary import SIZE, made_up_vocabulary
from structgen.grammar import Grammar, Vocabulary
from structgen.validate import Validator


def test_rounds_take_turns_and_ratios_are_of_the_same_round() -> None:
    order: list[str] = []
    costs = iter(range(1, 100))

    def contender(name: str) -> float:
        order.append(name)
        return float(next(costs))

    rounds = Rounds()
    for _ in range(3):
        rounds.take_turns({name: partial(contender, name) for name in "abc"})
    assert order == [*"abc", *"bca", *"cab"]
    assert rounds.costs == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}
    assert (rounds.median("a"), rounds.best("b")) == (6, 2)
    assert rounds.ratio("a", "b") == pytest.approx(8 / 9)


@pytest.mark.parametrize("found", EXTRACTIONS, ids=lambda each: each.name)
def test_recorded_values_are_valid_and_a_replay_follows_them(found: Extraction, small_vocabulary: Vocabulary) -> None:
    """Whatever allowed token is sampled; the masks stay the grammar's own."""
    assert not Validator(found.schema).errors(json.dumps(found.record))
    compiled = Grammar.from_json_schema(found.schema, whitespace="compact").compile(small_vocabulary)
    replay, plain = Replay(Recording(compiled, found.record)), compiled.matcher()
    rows = np.zeros((2, small_vocabulary.mask_words), np.int32)
    rng = np.random.default_rng(1)
    while not replay.is_terminated:
        replay.fill_mask(rows[0])
        plain.fill_mask(rows[1])
        assert np.array_equal(*rows)
        allowed = np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little"))
        assert replay.accept(int(rng.choice(allowed)))
        replay.rollback(1)
        assert replay.accept(int(rng.choice(allowed)))
        assert plain.accept(replay.tokens[-1])
    text = b"".join(small_vocabulary.tokens[token] or b"" for token in replay.tokens)
    assert json.loads(text) == found.record


def test_a_contest_runs_free_text_of_the_records_lengths(
    small_vocabulary: Vocabulary, make_engine: Callable[..., Engine]
) -> None:
    compiled = Grammar.from_json_schema(EXTRACTIONS[0].schema, whitespace="compact").compile(small_vocabulary)
    recording = Recording(compiled, EXTRACTIONS[0].record)
    task = Task([65, 66], partial(Replay, recording), small_vocabulary.eos_token_ids)
    plain, jumping = make_engine(4, 2, jump_forward=False), make_engine(4, 2)
    writers = {"constrained": Writer(plain), "jump-forward": Writer(jumping)}
    writers["free"] = Writer(plain, like=writers["constrained"])
    groups: list[Group] = [[task], [task] * 4]
    contest = Contest.hold(writers, groups, rounds=2)
    assert writers["free"].tokens == writers["constrained"].tokens
    assert contest.weights == [writers["free"].tokens[0][0], 4 * writers["free"].tokens[0][0]]
    assert contest.gain("free", "free") == contest.total_gain("free", "free") == 1
    assert contest.total_gain("constrained", "free") > 0
    jumps, held = writers["jump-forward"].load, writers["constrained"].load
    assert held.forced == 0
    assert jumps.forced > 0
    assert jumps.steps < held.steps
    assert held.over_the_longer > 0


def test_the_made_up_vocabulary_is_of_llamas_size_and_spells_json() -> None:
    vocabulary = made_up_vocabulary()
    assert (vocabulary.size, len(vocabulary.eos_token_ids)) == (SIZE, 1)
    text = json.dumps(EXTRACTIONS[1].record).encode()
    ids = vocabulary.encode(text)
    assert b"".join(vocabulary.tokens[token] or b"" for token in ids) == text
    assert len(ids) < len(text) / 2


def test_the_host_s_share_of_a_step_is_measured_by_part() -> None:
    tasks = list(recorded_tasks(made_up_vocabulary()))[:1]
    parts = microseconds(tasks, 1, jump=True, rounds=1)
    assert set(parts) == {"commit", "fill", "sample", "plan", "launch"}
    assert all(0 < part < 1e6 for part in parts.values())
