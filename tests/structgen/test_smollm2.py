"""The whole path on the default model: text in, the right values out."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from structgen import LLM, Choice, Regex, cli
from structgen.models import DEFAULT_MODEL, KNOWN, is_present
from structgen.validate import Validator

ROOT = Path(__file__).resolve().parent.parent.parent
LANDMARK = ROOT / "examples" / "schemas" / "landmark.json"
GATE = "The Brandenburg Gate in Berlin was built in 1791."

pytestmark = pytest.mark.skipif(
    not is_present(KNOWN[DEFAULT_MODEL]), reason="the default model is not in the cache: structgen models pull"
)


class Landmark(BaseModel):
    name: str = Field(description="name of the landmark")
    city: str = Field(description="city it stands in")
    year: int = Field(description="year it was built")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


@pytest.mark.parametrize(
    ("text", "word", "city", "year"),
    [
        (GATE, "Gate", "Berlin", 1791),
        ("The Eiffel Tower, finished in 1889, is the most visited monument of Paris.", "Eiffel", "Paris", 1889),
        ("In 1973 the Opera House of Sydney was opened.", "Opera", "Sydney", 1973),
    ],
)
def test_extraction_is_right(llm: LLM, text: str, word: str, city: str, year: int) -> None:
    landmark = llm.extract(text, Landmark)
    assert (landmark.city, landmark.year) == (city, year)
    assert word in landmark.name


def test_the_shell_gets_name_city_and_year_right(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["structgen", "extract", "--schema", str(LANDMARK), "--text", GATE])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capfd.readouterr()
    assert ended.value.code == 0, told.err
    assert told.out.count("\n") == 1
    record = json.loads(told.out)
    assert Validator(json.loads(LANDMARK.read_text())).is_valid(told.out)
    assert record["name"].removeprefix("The ") == "Brandenburg Gate"
    assert (record["city"], record["year"]) == ("Berlin", 1791)


def test_the_shell_writes_where_the_time_of_each_step_went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    monkeypatch.setattr("sys.argv", ["structgen", "generate", "Blue?", "--regex", "y[ae]+s", "--trace", str(out)])
    with pytest.raises(SystemExit):
        cli.main()
    spans = json.loads(out.read_text())["traceEvents"]
    assert {"forward", "sample", "fill", "commit", "launch"} <= {span["name"] for span in spans}
    assert all(span["dur"] >= 0 for span in spans)


def test_other_shapes(llm: LLM) -> None:
    assert llm.generate("Is the sky blue?", Choice(["yes", "no"])) in ("yes", "no")
    assert llm.generate("Is the sky blue?", Literal["yes", "no"]) in ("yes", "no")
    assert 0 <= int(llm.generate("Give a number of two digits.", Regex("[0-9]{2}"))) < 100
    assert all(isinstance(item, str) for item in llm.generate("Name three rivers.", list[str], max_tokens=80))


def test_a_stream_is_the_answer(llm: LLM) -> None:
    pieces = list(llm.stream("Name two cities.", list[str], max_tokens=60))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.generate("Name two cities.", list[str], max_tokens=60, return_result=True).text


def test_seeds_repeat_and_differ(llm: LLM) -> None:
    def story(seed: int) -> str:
        return str(llm.generate("Tell a story.", str, temperature=1.0, seed=seed, max_tokens=40))

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_a_batch_answers_like_one_by_one_in_shape(llm: LLM) -> None:
    results = llm.extract_batch([(GATE, Landmark), (GATE, list[str]), (GATE, Regex("[A-Z][a-z]+"))], max_tokens=60)
    assert isinstance(results[0], Landmark)
    assert isinstance(results[1], list)
    assert results[2].isalpha()


def test_an_interrupt_ends_the_command_in_one_line() -> None:
    command = [sys.executable, "-m", "structgen", "generate", "Write a novel.", "--max-tokens", "4000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert (process.returncode, told) == (130, b"interrupted\n")


def test_logprobs_say_how_much_the_constraint_changed(llm: LLM) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "seed": 1, "top_logprobs": 20, "return_result": True}
    masked, raw = (
        llm.generate("Is fire hot?", Choice(["yes", "no"]), logprobs=kind, **options) for kind in ("masked", "raw")
    )
    assert masked.text == raw.text
    assert "".join(each.token for each in masked.logprobs) == masked.text
    assert {other.token for other in masked.logprobs[0].top} <= {"yes", "no", "y", "n", "ye"}
    assert sum(math.exp(other.logprob) for other in masked.logprobs[0].top) == pytest.approx(1, abs=1e-4)
    assert raw.logprobs[0].logprob < masked.logprobs[0].logprob
    assert len(raw.logprobs[0].top) == 20


def test_penalties_and_biases_change_what_is_said(llm: LLM) -> None:
    plain = llm.generate("Say ha ten times.", max_tokens=30, return_result=True)
    held = llm.generate("Say ha ten times.", max_tokens=30, frequency_penalty=2.0, return_result=True)
    assert held.text != plain.text
    first = llm.generate("Say ha ten times.", max_tokens=1, logprobs=True, return_result=True).logprobs[0].token_id
    other = llm.generate("Say ha ten times.", max_tokens=1, logit_bias={first: -100}, logprobs=True, return_result=True)
    assert other.logprobs[0].token_id != first


def test_n_answers_differ_and_repeat(llm: LLM) -> None:
    def stories(**options: int) -> list[str]:
        found = llm.generate("Tell a story.", str, temperature=1.0, max_tokens=20, seed=3, **options)
        return found if isinstance(found, list) else [found]

    assert len(set(stories(n=3))) == 3
    assert stories(n=1) == stories()
