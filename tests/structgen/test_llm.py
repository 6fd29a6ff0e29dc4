from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, field_validator
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from structgen import Choice, GenerationError, OutputError, Regex, Result
from structgen.engine import BudgetError, TokenLogprob
from structgen.grammar.token_bytes import BYTE_OF_CHARACTER
from structgen.grammar.tokenizer_files import load_tokenizer
from structgen.llm import LLM
from structgen.tokenizer import Tokenizer


class FakeSequence:
    """A request whose tokens are `wish` where the mask allows, else the lowest allowed token."""

    def __init__(self, prompt_ids: list[int], params: Any, matcher: Any, ends: frozenset[int], wish: bytes) -> None:
        self.prompt_ids, self.params, self.matcher, self.ends, self.wish = prompt_ids, params, matcher, ends, wish
        self.output_ids: list[int] = []
        self.finish_reason: str | None = None
        self.closed_early = False
        self.error: str | None = None
        self.logprobs: list[TokenLogprob] = []


class FakeEngine:
    """One token per sequence and step."""

    def __init__(self, wish: str) -> None:
        self.wish = wish.encode()
        self.running: list[FakeSequence] = []
        self.submitted: list[FakeSequence] = []
        self.fail = False

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def submit(
        self, prompt_ids: Iterable[int], params: Any, matcher: Any, ends: frozenset[int], *, adapter: str | None = None
    ) -> FakeSequence:
        if matcher is not None and params.max_tokens < matcher.min_tokens_to_complete:
            raise BudgetError(params.max_tokens, matcher.min_tokens_to_complete)
        sequence = FakeSequence(list(prompt_ids), params, matcher, ends, self.wish)
        self.running.append(sequence)
        self.submitted.append(sequence)
        return sequence

    def step(self) -> list[Any]:
        for sequence in list(self.running):
            if self.fail:
                sequence.error, sequence.finish_reason = "all logits are NaN", "error"
            else:
                self.advance(sequence)
            if sequence.finish_reason:
                self.running.remove(sequence)
        return []

    def advance(self, sequence: FakeSequence) -> None:
        token = self.pick(sequence)
        if token in sequence.ends:
            sequence.finish_reason = "stop"
            return
        sequence.output_ids.append(token)
        if sequence.params.logprobs:
            sequence.logprobs.append(TokenLogprob(token, -0.5, ((token, -0.5), (256, -1.5))))
        if len(sequence.output_ids) == sequence.params.max_tokens:
            sequence.finish_reason = "length"

    @staticmethod
    def pick(sequence: FakeSequence) -> int:
        at = len(sequence.output_ids)
        wanted = sequence.wish[at] if at < len(sequence.wish) else min(sequence.ends)
        if sequence.matcher is None:
            return wanted
        row = np.zeros(9, np.int32)
        sequence.matcher.fill_mask(row, sequence.params.max_tokens - at)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        token = wanted if bits[wanted] else int(np.flatnonzero(bits)[0])
        assert sequence.matcher.accept(token)
        return token

    def cancel(self, sequence: FakeSequence) -> None:
        self.running.remove(sequence)
        sequence.finish_reason = "cancelled"


def make_llm(wish: str) -> tuple[LLM, FakeEngine]:
    """An LLM over bytes (256 is the end) that would like to answer `wish`."""
    backend = Backend(models.BPE(vocab=dict(BYTE_OF_CHARACTER), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|im_end|>"])
    llm, engine = LLM(), FakeEngine(wish)
    llm.session.__dict__ |= {"tokenizer": Tokenizer(load_tokenizer(backend)), "engine": engine}
    return llm, engine


def prompt_of(engine: FakeEngine, index: int = 0) -> str:
    return bytes(engine.submitted[index].prompt_ids).decode()


class Landmark(BaseModel):
    name: str = Field(description="what it is called")
    year: int


LANDMARK = '{"name": "Château d\'If", "year": 1531}'


def test_a_typed_object_comes_back() -> None:
    llm, _ = make_llm(LANDMARK)
    assert llm.generate("x", Landmark) == Landmark(name="Château d'If", year=1531)
    assert llm.extract("x", Landmark) == Landmark(name="Château d'If", year=1531)


@pytest.mark.parametrize(
    ("wish", "output_type", "value"),
    [
        ("free", None, "free"),
        ("maybe", Literal["no", "yes"], "no"),
        ("12 or so", Regex("[0-9]{2}"), "12"),
        ("yes", Choice(["no", "yes"]), "yes"),
        ("[1, 2]", list[int], [1, 2]),
        ('{"a": null}', {"type": "object"}, {"a": None}),
    ],
)
def test_answers_take_the_shape_that_was_asked_for(wish: str, output_type: Any, value: Any) -> None:
    llm, _ = make_llm(wish)
    assert llm.generate("x", output_type) == value


def test_compiled_functions_are_made_before_a_request_can_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache they take so long that a first mask would count as one of a grammar that hangs."""
    submitted_before: list[int] = []
    llm, engine = make_llm("12 or so")
    monkeypatch.setattr("structgen.grammar.warm_up.warm_up", lambda: submitted_before.append(len(engine.submitted)))
    llm.generate("x")
    assert submitted_before == []
    for _ in range(2):
        llm.generate("x", Regex("[0-9]{2}"))
    assert submitted_before == [1]


def test_descriptions_reach_the_model_unless_switched_off() -> None:
    llm, engine = make_llm(LANDMARK)
    llm.generate("question", Landmark)
    llm.generate("question", Landmark, describe=False)
    llm.extract("document", Landmark, "find it")
    llm.extract("document", Landmark, describe=False)
    assert "what it is called" in prompt_of(engine, 0)
    assert prompt_of(engine, 1) == "question"
    assert "what it is called" in prompt_of(engine, 2)
    assert "find it" in prompt_of(engine, 2)
    assert "what it is called" not in prompt_of(engine, 3)


def test_messages_are_a_prompt_too() -> None:
    llm, engine = make_llm("free")
    assert llm.generate([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == "free"
    assert prompt_of(engine) == "s\n\nu"


def test_results_carry_how_it_ended() -> None:
    llm, _ = make_llm("free text")
    result = llm.generate("abc", return_result=True)
    assert isinstance(result, Result)
    assert (result.text, result.value, result.finish_reason, result.error) == ("free text", "free text", "stop", None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (3, 9, 12)
    assert llm.generate("abc", max_tokens=4, return_result=True).finish_reason == "length"


def test_a_tight_budget_still_gives_a_whole_value() -> None:
    llm, _ = make_llm('"' + "x" * 100)
    assert llm.generate("x", str, max_tokens=10) == "x" * 7


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    llm, engine = make_llm(LANDMARK)
    with pytest.raises(BudgetError):
        llm.generate_batch(["x", "y"], Landmark, max_tokens=5)
    assert not engine.running


def test_bad_sampling_is_refused_before_the_model_is_asked() -> None:
    llm, engine = make_llm("x")
    with pytest.raises(ValueError, match="temperature"):
        llm.generate("x", temperature=-1)
    with pytest.raises(TypeError):
        llm.generate("x", tempreature=1)
    assert not engine.submitted


def test_batches_keep_their_order_and_report_each_end() -> None:
    llm, engine = make_llm("12345")
    ends: list[int] = []
    prompts = ["a", "b", "c"]
    found = llm.generate_batch(prompts, Regex("[0-9]{1,5}"), on_finished=lambda: ends.append(1))
    assert found == ["12345"] * 3
    assert len(ends) == 3
    assert [prompt_of(engine, index) for index in range(3)] == prompts
    assert llm.generate_each([("a", int), ("b", None)]) == [12345, "12345"]
    assert llm.extract_batch([("a", int), ("b", Regex("[0-9]"))]) == [12345, "1"]


def test_streams_come_in_whole_characters() -> None:
    llm, _ = make_llm('"é漢"')
    assert list(llm.stream("x", str)) == ['"', "é", "漢", '"']


def test_n_answers_take_the_streams_of_one_seed() -> None:
    llm, engine = make_llm("12")
    assert llm.generate("x", int, n=3, seed=5) == [12, 12, 12]
    assert llm.generate("x", int, n=1) == [12]
    assert llm.generate_batch(["x", "y"], n=2) == [["12", "12"], ["12", "12"]]
    assert [(one.params.seed, one.params.stream) for one in engine.submitted[:3]] == [(5, 0), (5, 1), (5, 2)]
    assert [prompt_of(engine, index)[0] for index in range(-4, 0)] == ["x", "x", "y", "y"]
    results = llm.generate("x", n=2, return_result=True, max_tokens=1)
    assert [(result.text, result.finish_reason) for result in results] == [("1", "length")] * 2


@pytest.mark.parametrize(
    "options",
    [{"n": 0}, {"n": True}, {"n": 1 << 20}, {"stop": ""}, {"stop": ["x"] * 17}, {"stop": [5]}, {"top_k": -1}],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    llm, engine = make_llm("x")
    with pytest.raises(ValueError, match=f"^{next(iter(options))}"):
        llm.generate("x", **options)
    assert not engine.submitted
    with pytest.raises(ValueError, match=r"^n must be 1"):
        list(llm.stream("x", n=2))


@pytest.mark.parametrize("stop", ["END", ["never", "END"]])
def test_a_stop_string_ends_the_answer_and_frees_its_request(stop: Any) -> None:
    llm, engine = make_llm("one E two" + "END" + "x" * 1000)
    result = llm.generate("x", stop=stop, max_tokens=2000, return_result=True)
    assert (result.text, result.value, result.finish_reason, result.stop) == ("one E two", "one E two", "stop", "END")
    assert not engine.running
    assert len(engine.submitted[0].output_ids) == 12
    assert "".join(llm.stream("x", stop=stop, max_tokens=2000)) == "one E two"
    assert not engine.running


def test_text_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    llm, _ = make_llm("one EN")
    assert llm.generate("x", stop="END") == "one EN"
    assert "".join(llm.stream("x", stop="END")) == "one EN"


def test_a_value_that_a_stop_string_cuts_is_told() -> None:
    llm, _ = make_llm(LANDMARK)
    result = llm.generate("x", Landmark, stop="153", return_result=True)
    assert (result.text, result.value, result.finish_reason) == (LANDMARK.split("153")[0], None, "stop")
    assert "'153' cut the value" in str(result.error)
    with pytest.raises(OutputError, match="'153' cut the value"):
        llm.generate("x", Landmark, stop="153")


def test_what_a_stop_string_leaves_may_be_whole() -> None:
    llm, _ = make_llm("123 and more")
    pattern = Regex("[0-9]+( and more)?")
    assert llm.generate("x", pattern, stop=" and") == "123"
    with pytest.raises(OutputError, match="'more' cut the value"):
        llm.generate("x", pattern, stop="more")


def test_logprobs_come_with_results_and_pieces() -> None:
    llm, _ = make_llm("é!stop")
    result = llm.generate("x", logprobs=True, top_logprobs=2, stop="stop", return_result=True)
    assert result.text == "é!"
    assert [(each.token_id, each.bytes) for each in result.logprobs] == [(195, b"\xc3"), (169, b"\xa9"), (33, b"!")]
    assert [(other.token, other.bytes) for other in result.logprobs[2].top] == [("!", b"!"), ("<|im_end|>", None)]
    assert result.logprobs[2].as_dict() == {
        "token": "!",
        "logprob": -0.5,
        "bytes": [33],
        "top_logprobs": [
            {"token": "!", "logprob": -0.5, "bytes": [33]},
            {"token": "<|im_end|>", "logprob": -1.5, "bytes": None},
        ],
    }
    pieces = list(llm.stream("x", logprobs="raw"))
    assert "".join(pieces) == "é!stop"
    assert [[each.token_id for each in piece.logprobs] for piece in pieces][:2] == [[195, 169], [33]]
    assert llm.generate("x", return_result=True).logprobs == []


def test_closing_a_stream_frees_its_request() -> None:
    llm, engine = make_llm("a long answer")
    stream = llm.stream("x")
    assert next(iter(stream)) == "a"
    stream.close()  # type: ignore[attr-defined]
    assert not engine.running
    assert engine.submitted[0].finish_reason == "cancelled"


def test_generating_inside_a_stream_works() -> None:
    llm, _ = make_llm("abc")
    pieces = [(piece, llm.generate("y")) for piece in llm.stream("x")]
    assert "".join(piece for piece, _ in pieces) == "abc"
    assert {answer for _, answer in pieces} == {"abc"}


def test_threads_may_share_one() -> None:
    llm, engine = make_llm("abcdefgh")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(llm.generate("x"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["abcdefgh"] * 4
    assert not engine.running


def test_an_error_of_the_engine_is_told() -> None:
    llm, engine = make_llm("x")
    engine.fail = True
    with pytest.raises(GenerationError, match="NaN"):
        llm.generate("x")
    with pytest.raises(GenerationError, match="NaN"):
        list(llm.stream("x"))
    result = llm.generate("x", return_result=True)
    assert (result.finish_reason, result.value, result.error) == ("error", None, "all logits are NaN")


def test_a_validator_that_refuses_is_told() -> None:
    class Picky(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def refuse(cls, value: int) -> int:
            raise ValueError("never")

    llm, _ = make_llm('{"n": 1}')
    with pytest.raises(OutputError, match="never"):
        llm.generate("x", Picky)
    result = llm.generate("x", Picky, return_result=True)
    assert result.value is None
    assert "never" in (result.error or "")
    assert result.text == '{"n": 1}'


def test_compiled_grammars_are_kept() -> None:
    llm, _ = make_llm(LANDMARK)
    llm.generate("x", Landmark)
    llm.generate("y", Landmark)
    llm.generate("y", Landmark.model_json_schema() | {"additionalProperties": False})
    assert len(llm.session._grammars) <= 2


def test_an_llm_costs_nothing_until_it_is_used(tmp_path: Any) -> None:
    llm = LLM(tmp_path / "absent")
    assert "files" not in vars(llm.session)
