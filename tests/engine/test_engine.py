"""The engine's loop on a fake runner: mixed batches, budgets, cancels, faults, ownership."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from structgen.engine import BudgetError, Engine, SamplingParams, Sequence
from structgen.engine.errors import ContextLengthError
from structgen.engine.random_stream import RandomStream
from structgen.engine.sequence import Stage
from structgen.engine.step import StepSlot
from tests.engine import sampling_twin as twin
from tests.engine.fakes import (
    CLOSE,
    ENDS,
    LETTERS,
    VOCAB,
    FakeRunner,
    Quoted,
    alone,
    is_quoted,
    prefer_letters,
    run,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True, params=[(1, False), (2, False), (2, True)], ids=["depth 1", "depth 2", "a thread"])
def pipeline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of this file holds for the serial loop, for two steps in flight, and with a device beside the host."""
    monkeypatch.setattr(FakeRunner, "depth", request.param[0])
    monkeypatch.setattr(FakeRunner, "as_thread", request.param[1])


@pytest.mark.parametrize("depth", [0, 3, -1])
def test_a_depth_that_there_is_not_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth must be 1 or 2"):
        Engine(FakeRunner(), depth=depth)


def test_each_row_of_a_mixed_batch_gets_what_it_gets_alone() -> None:
    engine = Engine(FakeRunner(), max_batch=3)
    requests = [
        ([5, 6, 7], SamplingParams(max_tokens=9), None),
        ([5, 6, 8] * 40, SamplingParams(max_tokens=12), Quoted()),
        ([9], SamplingParams(max_tokens=5, temperature=1.0, seed=1), None),
        ([9, 9] * 170, SamplingParams(max_tokens=7, temperature=1.5, seed=2, top_p=0.8), Quoted()),
        ([30], SamplingParams(max_tokens=30), Quoted()),
    ]
    sequences = [engine.submit(prompt, params, matcher, ENDS) for prompt, params, matcher in requests]
    run(engine)
    for sequence, (prompt, params, matcher) in zip(sequences, requests, strict=True):
        assert sequence.output_ids == alone(prompt, params, matcher and Quoted())
        assert matcher is None or is_quoted(sequence.output_ids)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    def tokens(seed: int | None, companions: int) -> list[int]:
        engine = Engine(FakeRunner())
        for number in range(companions):
            engine.submit([number + 1] * 9, SamplingParams(max_tokens=5 + number, temperature=2.0))
        sequence = engine.submit([8, 8], SamplingParams(max_tokens=20, temperature=1.0, seed=seed))
        run(engine)
        return sequence.output_ids

    assert tokens(5, 0) == tokens(5, 4) == tokens(5, 7)
    assert tokens(6, 0) != tokens(5, 0)
    assert tokens(None, 0) != tokens(None, 0)


def test_outputs_of_the_steps_are_the_sequence_in_pieces() -> None:
    engine = Engine(FakeRunner())
    sequence = engine.submit([4, 5], SamplingParams(max_tokens=6), Quoted(), ENDS)
    outputs = run(engine)
    assert all(output.sequence is sequence for output in outputs)
    assert [token for output in outputs for token in output.token_ids] == sequence.output_ids
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]


# -- how a text ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", range(3, 24))
def test_any_budget_closes_the_value_in_time(max_tokens: int) -> None:
    engine = Engine(FakeRunner())
    sequence = engine.submit([7], SamplingParams(max_tokens=max_tokens), Quoted(), ENDS)
    run(engine)
    assert is_quoted(sequence.output_ids)
    assert len(sequence.output_ids) + 1 == max_tokens, "EOS counts, though it needs no step here"
    assert (sequence.finish_reason, sequence.closed_early) == ("length", True)


def test_a_value_that_ends_by_itself_was_not_closed_early() -> None:
    def close_soon(tokens: list[int]) -> np.ndarray:
        logits = prefer_letters(tokens)
        logits[CLOSE] += 100 * (len(tokens) > 6)
        return logits

    engine = Engine(FakeRunner(logits=close_soon))
    sequence = engine.submit([7], SamplingParams(max_tokens=50), Quoted(), ENDS)
    run(engine)
    assert is_quoted(sequence.output_ids)
    assert (sequence.finish_reason, sequence.closed_early) == ("stop", False)


def test_a_budget_that_cannot_hold_any_value_is_refused_before_any_work() -> None:
    engine = Engine(FakeRunner())
    with pytest.raises(BudgetError) as caught:
        engine.submit([7], SamplingParams(max_tokens=2), Quoted(), ENDS)
    assert (caught.value.max_tokens, caught.value.least) == (2, 3)
    assert not engine.has_work


def test_when_only_eos_is_left_no_forward_is_spent_on_it() -> None:
    for ends, extra in ((ENDS, 0), (frozenset[int](), 1)):
        runner = FakeRunner()
        engine = Engine(runner)
        sequence = engine.submit([7], SamplingParams(max_tokens=8), Quoted(), ends)
        run(engine)
        assert sequence.finish_reason == "length"
        least = len(sequence.output_ids) - 1 + extra  # the first token is forced
        assert runner.steps in range(least, least + engine.depth), "depth 2 may launch one before the end is known"


@pytest.mark.parametrize("where", ["eos", "stop id"])
def test_free_text_ends_at_eos_and_at_stop_ids_which_are_not_output(where: str) -> None:
    text = alone([6, 7], SamplingParams(max_tokens=20))
    end = text[5]
    first = text.index(end)
    params = SamplingParams(max_tokens=20, stop_token_ids=frozenset([end] if where == "stop id" else []))
    engine = Engine(FakeRunner())
    sequence = engine.submit([6, 7], params, None, frozenset([end] if where == "eos" else []))
    run(engine)
    assert sequence.output_ids == text[:first]
    assert sequence.finish_reason == "stop"


def test_free_text_that_runs_out_of_tokens_says_so() -> None:
    engine = Engine(FakeRunner())
    sequence = engine.submit([6, 7], SamplingParams(max_tokens=4))
    run(engine)
    assert (len(sequence.output_ids), sequence.finish_reason, sequence.closed_early) == (4, "length", False)


def test_the_context_limits_what_may_be_generated() -> None:
    engine = Engine(FakeRunner(), max_context=32)
    free = engine.submit([6] * 30, SamplingParams(max_tokens=20))
    held = engine.submit([6] * 28, SamplingParams(max_tokens=20), Quoted(), ENDS)
    run(engine)
    assert (len(free.output_ids), free.finish_reason) == (2, "length")
    assert is_quoted(held.output_ids)
    assert len(held.output_ids) == 3
    with pytest.raises(ContextLengthError):
        engine.submit([6] * 32, SamplingParams(max_tokens=20))
    with pytest.raises(ContextLengthError):
        engine.submit([6] * 30, SamplingParams(max_tokens=20), Quoted())


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1]])
def test_prompts_that_are_no_tokens_are_refused(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt_ids"):
        Engine(FakeRunner()).submit(prompt, SamplingParams())


# -- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 1.5, "temperature": 0.7},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"logit_bias": {7: 30.0, 8: 30.0}, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
def test_every_token_is_the_one_that_the_twin_draws(options: dict[str, Any], held: bool) -> None:
    """Penalties count prompt and output as the text grows; draws are bound to positions; logprobs go with tokens."""
    engine = Engine(FakeRunner())
    params = SamplingParams(max_tokens=20, seed=4, stream=1, logprobs=True, top_logprobs=2, **options)
    prompt = [5, 6, 6, 9]
    sequence = engine.submit(prompt, params, Quoted() if held else None, ENDS)
    for seed in range(3):
        engine.submit([8, seed], SamplingParams(max_tokens=9, temperature=1.0, seed=seed, frequency_penalty=1.0))
    outputs = [output for output in run(engine) if output.sequence is sequence]
    assert len(sequence.output_ids) == (19 if held else 20)
    assert [told for output in outputs for told in output.logprobs] == sequence.logprobs
    matcher, budget = Quoted(), 20
    for position, (token, told) in enumerate(zip(sequence.output_ids, sequence.logprobs, strict=True)):
        so_far = sequence.output_ids[:position]
        mask = np.zeros(2, dtype=np.int32)
        matcher.fill_mask(mask, budget - position)
        allowed = [token for token in range(VOCAB) if mask.view(np.uint32)[token // 32] >> token % 32 & 1]
        left = twin.edited(prefer_letters([*prompt, *so_far]).astype(np.float64), params, prompt, so_far)
        left = twin.masked(left, allowed if held else None)
        assert token == twin.drawn(left, params, RandomStream(4, 1).at(position))
        assert told.token_id == token
        assert told.logprob == pytest.approx(twin.logprobs(left)[token], abs=1e-4)
        assert len(told.top) == min(2, len(allowed) if held else VOCAB)
        matcher.accept(token)


def test_logprobs_are_kept_for_those_who_ask_only() -> None:
    engine = Engine(FakeRunner())
    asked = engine.submit([5], SamplingParams(max_tokens=5, logprobs="raw"))
    other = engine.submit([5], SamplingParams(max_tokens=5, frequency_penalty=1.0))
    outputs = run(engine)
    assert [len(sequence.logprobs) for sequence in (asked, other)] == [5, 0]
    assert not any(output.logprobs for output in outputs if output.sequence is other)


def test_the_streams_of_one_seed_differ() -> None:
    texts = [alone([5], SamplingParams(max_tokens=8, temperature=1.0, seed=3, stream=stream)) for stream in range(4)]
    assert len(set(map(tuple, texts))) == 4


def test_the_answers_to_one_prompt_share_its_computation() -> None:
    runner = FakeRunner()
    engine = Engine(runner)
    prompt = [5, 6] * 100
    params = [SamplingParams(max_tokens=5, temperature=1.0, seed=3, stream=stream) for stream in range(4)]
    sequences = [engine.submit(prompt, each) for each in params]
    run(engine)
    assert runner.tokens < 200 + 3 * 2 * runner.page_size + 4 * 5
    assert [sequence.output_ids for sequence in sequences] == [alone(prompt, each) for each in params]


def test_a_bias_for_a_token_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^logit_bias"):
        Engine(FakeRunner()).submit([5], SamplingParams(logit_bias={VOCAB: 1.0}))


# -- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(8))
def test_cancel_at_any_stage_ends_one_sequence_and_frees_it(steps: int) -> None:
    """0 steps: waiting. Then prefill chunks in flight, decode in flight, finished."""
    engine = Engine(FakeRunner(), max_batch=2)
    other = engine.submit([5, 4, 3], SamplingParams(max_tokens=12), Quoted(), ENDS)
    sequence = engine.submit([5, 4] * 240, SamplingParams(max_tokens=4), Quoted(), ENDS)
    for _ in range(steps):
        engine.step()
    was_finished = sequence.finished
    engine.cancel(sequence)
    engine.cancel(sequence)
    engine.check_integrity()
    assert sequence.finished
    outputs = run(engine)
    reasons = [output.finish_reason for output in outputs if output.sequence is sequence]
    assert reasons == ([] if was_finished else ["cancelled"])
    assert sequence.pages == []
    assert other.output_ids == alone([5, 4, 3], SamplingParams(max_tokens=12), Quoted())


def test_a_cancelled_sequence_in_flight_keeps_its_pages_until_the_step_is_through() -> None:
    engine = Engine(FakeRunner())
    sequence = engine.submit([5, 4, 3], SamplingParams(max_tokens=12))
    engine.step()
    engine.cancel(sequence)
    assert (sequence.stage, sequence.inflight_refs, bool(sequence.pages)) == (Stage.FINISHED, engine.depth, True)
    tokens = list(sequence.output_ids)
    (output,) = engine.step()
    run(engine)
    assert (output.finish_reason, sequence.pages, sequence.output_ids) == ("cancelled", [], tokens)
    assert not engine.has_work


# -- faults -----------------------------------------------------------------------------------------------------------


def poisoned(tokens: list[int]) -> np.ndarray:
    logits = prefer_letters(tokens)
    if tokens[0] == 13 and len(tokens) > 5:
        logits[LETTERS[4]] = np.nan
    return logits


@pytest.mark.parametrize("fault", ["nan", "empty", "refuse", "fill", "accept"])
def test_a_fault_ends_its_own_sequence_and_no_other(fault: str) -> None:
    runner = FakeRunner(logits=poisoned)
    engine = Engine(runner)
    good = [engine.submit([prompt, 2, 3], SamplingParams(max_tokens=15), Quoted(), ENDS) for prompt in (10, 11, 12)]
    matcher = Quoted() if fault == "nan" else Quoted(fault=fault)
    bad = engine.submit([13 if fault == "nan" else 14, 2, 3], SamplingParams(max_tokens=15), matcher, ENDS)
    outputs = run(engine)
    words = {
        "nan": "finite",
        "empty": "no token",
        "refuse": "refused",
        "fill": "cannot fill",
        "accept": "cannot accept",
    }
    assert bad.finish_reason == "error"
    assert words[fault] in str(bad.error)
    assert len(bad.output_ids) == 3
    assert [output.finish_reason for output in outputs if output.sequence is bad][-1] == "error"
    assert runner.cleared, "what a failed sequence wrote must not be read by a later owner of its pages"
    for sequence, prompt in zip(good, (10, 11, 12), strict=True):
        assert sequence.error is None
        assert sequence.output_ids == alone([prompt, 2, 3], SamplingParams(max_tokens=15), Quoted())


class BrokenRunner(FakeRunner):
    """Fails as a whole whenever a step holds a text that starts with 13."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def check(self, slot: StepSlot, at: str) -> None:
        if at == self.at and any(row.sequence.prompt_ids[0] == 13 for row in slot.plan.rows):
            raise MemoryError("too large")

    def lay_out(self, slot: StepSlot) -> None:
        self.check(slot, "launch")
        super().lay_out(slot)

    def forward(self, slot: StepSlot) -> None:
        self.check(slot, "wait")
        super().forward(slot)


@pytest.mark.parametrize("at", ["launch", "wait"])
def test_a_runner_that_fails_on_one_sequence_still_serves_the_others(at: str) -> None:
    engine = Engine(BrokenRunner(at))
    good = [engine.submit([prompt, 2, 3], SamplingParams(max_tokens=15), Quoted(), ENDS) for prompt in (10, 11, 12)]
    for _ in range(3):
        engine.step()
    bad = engine.submit([13], SamplingParams(max_tokens=15))
    run(engine)
    assert bad.finish_reason == "error"
    assert "too large" in str(bad.error)
    for sequence, prompt in zip(good, (10, 11, 12), strict=True):
        assert sequence.output_ids == alone([prompt, 2, 3], SamplingParams(max_tokens=15), Quoted())


# -- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_keeps_every_promise(seed: int) -> None:
    """Few pages, shared prefixes, cancels and faults at random: integrity at each tick, and texts as if alone."""
    rng = random.Random(seed)
    engine = Engine(FakeRunner(pages=160, logits=poisoned), max_batch=5)
    requests: list[Sequence] = []
    done = 0
    while done < 40 or engine.has_work:
        if done < 40 and rng.random() < 0.4:
            done += 1
            prompt = [rng.choice([5, 6, 13])] * rng.choice([1, 8, 30, 300]) + [rng.choice(LETTERS)]
            params = SamplingParams(
                max_tokens=rng.randrange(3, 40),
                temperature=rng.choice([0.0, 1.0]),
                top_p=rng.choice([1.0, 0.8]),
                frequency_penalty=rng.choice([0.0, 0.5]),
                seed=rng.randrange(9),
                logprobs=rng.choice([None, "masked", "raw"]),
            )
            held = rng.random() < 0.6
            sequence = engine.submit(prompt, params, Quoted() if held else None, ENDS)
            requests.append(sequence)
        if rng.random() < 0.05 and requests:
            engine.cancel(rng.choice(requests))
        engine.step()
        engine.check_integrity()
    for sequence in requests:
        assert sequence.finished
        assert sequence.pages == []
        assert len(sequence.logprobs) == (len(sequence.output_ids) if sequence.params.logprobs else 0)
        if sequence.finish_reason in ("stop", "length"):
            held = sequence.matcher is not None
            assert sequence.output_ids == alone(sequence.prompt_ids, sequence.params, Quoted() if held else None)
            assert not held or is_quoted(sequence.output_ids)
        elif sequence.finish_reason == "error":
            assert sequence.prompt_ids[0] == 13
