from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from structgen import cli, cli_io, models
from structgen.cli_io import one_line
from structgen.constraint import Constraint
from structgen.logprobs import Logprob
from structgen.result import Result, Usage

ROOT = Path(__file__).resolve().parent.parent.parent
LANDMARK = str(ROOT / "examples" / "schemas" / "landmark.json")
ANSWER = '{"name": "Château",\n "city": "Füssen", "year": 1.531e3}'

Run = Callable[..., tuple[int, str, str]]


class FakeLLM:
    """Answers everything with `answer`, and remembers what it was asked."""

    def __init__(self, answer: str, finish_reason: str = "stop") -> None:
        self.answer = answer
        self.finish_reason = finish_reason
        self.logprobs: list[Logprob] = []
        self.asked: list[Any] = []
        self.options: dict[str, Any] = {}
        self.name = "fake"
        self.loaded: list[tuple[str, Path]] = []

    def load_adapter(self, name: str, folder: Path) -> None:
        self.loaded.append((name, folder))

    def result(self) -> Result:
        error = "NaN" if self.finish_reason == "error" else None
        usage = Usage(prompt_tokens=1, completion_tokens=2)
        return Result(
            text=self.answer,
            value=None,
            finish_reason=self.finish_reason,
            closed_early=False,
            usage=usage,
            logprobs=self.logprobs,
            error=error,
        )

    def extract_batch(self, pairs: Any, instructions: str | None, **options: Any) -> list[Result]:
        texts = [text for text, _ in pairs]
        self.asked += texts
        self.options = {"instructions": instructions, **options}
        return [self.result() for _ in texts]

    def generate(self, messages: Any, constraint: Constraint, n: int, **options: Any) -> list[Result]:
        self.asked += messages
        self.options = options
        return [self.result()] * n

    def stream(self, messages: Any, constraint: Constraint, **options: Any) -> Iterator[str]:
        self.asked += messages
        self.options = options
        yield from self.answer


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, stdout, stderr."""

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["structgen", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM(ANSWER)
    monkeypatch.setattr(cli, "_llm", lambda *_, **limits: fake.options.update(limits) or fake)
    return fake


# -- serve ----------------------------------------------------------------------------------------------------------


def test_serve_loads_its_adapters_first(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[Any] = []

    def serve(app: Any, **_: Any) -> None:
        settings.append(app.state.server.settings.adapter_updates)
        assert [name for name, _ in llm.loaded] == ["a", "b"]
        sys.exit(0)

    monkeypatch.setattr("uvicorn.run", serve)
    assert (
        run("serve", "--lora", "a=one/folder", "--lora", "b=x=y", "--max-lora-rank", "128", "--allow-lora-updates")[0]
        == 0
    )
    assert llm.loaded == [("a", Path("one/folder")), ("b", Path("x=y"))]
    assert llm.options == {"max_adapters": None, "max_lora_rank": 128}
    assert settings == [True]


# -- extract --------------------------------------------------------------------------------------------------------


def test_extract_prints_one_json_line(run: Run, llm: FakeLLM) -> None:
    code, out, err = run("extract", "--schema", LANDMARK, "--text", "the text")
    assert (code, err) == (0, "")
    assert out == '{"name":"Château","city":"Füssen","year":1.531e3}\n'
    assert llm.asked == ["the text"]


def test_extract_reads_files_and_stdin_in_order(run: Run, llm: FakeLLM, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    (tmp_path / "b.txt").write_text("zwei ä", "utf-8")
    code, out, _ = run(
        "extract", str(tmp_path / "a.txt"), "-", str(tmp_path / "b.txt"), "-s", LANDMARK, "--batch", "2", stdin=b"in"
    )
    assert code == 0
    assert out.count("\n") == 3
    assert llm.asked == ["one", "in", "zwei ä"]


def test_extract_writes_jsonl(run: Run, llm: FakeLLM, tmp_path: Path) -> None:
    code, out, _ = run("extract", "-s", LANDMARK, "-t", "x", "--out", str(tmp_path / "o.jsonl"))
    assert (code, out) == (0, "")
    assert (tmp_path / "o.jsonl").read_text("utf-8") == one_line(ANSWER) + "\n"


def test_options_reach_the_model(run: Run, llm: FakeLLM) -> None:
    run("extract", "-s", LANDMARK, "-t", "x", "-i", "look", "--max-tokens", "9", "--temperature", "0.5", "--seed", "3")
    assert llm.options["instructions"] == "look"
    assert llm.options["describe"] is True
    assert [llm.options[name] for name in ("max_tokens", "temperature", "top_p", "seed")] == [9, 0.5, 1.0, 3]
    run("extract", "-s", LANDMARK, "-t", "x", "--no-describe")
    assert llm.options["describe"] is False


def test_an_invalid_record_is_exit_1(run: Run, llm: FakeLLM) -> None:
    llm.answer = '{"name": "x"}'
    code, out, err = run("extract", "-s", LANDMARK, "-t", "x")
    assert code == 1
    assert out == '{"name":"x"}\n'
    assert "city" in err


def test_a_failed_generation_is_told(run: Run, llm: FakeLLM) -> None:
    llm.finish_reason = "error"
    code, out, err = run("extract", "-s", LANDMARK, "-t", "x")
    assert (code, out) == (2, "")
    assert "NaN" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["extract", "-s", LANDMARK],
        ["extract", "-s", LANDMARK, "-t", "x", "file"],
        ["extract", "-s", LANDMARK, "absent.txt"],
        ["extract", "-s", "absent.json", "-t", "x"],
        ["extract", "-s", str(ROOT), "-t", "x"],
        ["extract", "-s", LANDMARK, "-t", "x", "--out", "absent/folder/o.jsonl"],
        ["extract", "-s", LANDMARK, "-t", "x", "--top-p", "0"],
        ["generate", "x", "--regex", "a", "--choice", "b"],
        ["generate", "x", "--regex", "("],
        ["generate", "x", "--schema", LANDMARK, "--choice", "b"],
        ["serve", "--lora", "no-equals-sign"],
        ["serve", "--lora", "=folder"],
        ["serve", "--lora", "fake=folder"],
    ],
)
def test_wrong_usage_is_two_lines_and_exit_2(run: Run, llm: FakeLLM, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 4  # a caret under the regex takes two
    assert not llm.asked


@pytest.mark.parametrize("arguments", [["extract"], ["nonsense"], ["extract", "--max-tokens", "0"], ["validate"]])
def test_unknown_words_are_exit_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


BAD_SCHEMAS = {
    "broken": ('{"type": ', ""),
    "unknown type": ('{"properties": {"a": {"type": "stringg"}}}', "/properties/a/type"),
    "not enforceable": ('{"properties": {"n": {"$ref": "https://example.com/other"}}}', "/properties/n"),
    "matches nothing": (
        '{"type": "object", "properties": {"n": {"minimum": 5, "maximum": 4, "type": "integer"}}, "required": ["n"]}',
        "",
    ),
    "dangling": ('{"$ref": "#/$defs/absent"}', "$ref"),
    "no schema": ("[1]", ""),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
@pytest.mark.parametrize("command", [["generate", "x"], ["extract", "-t", "x"]])
def test_bad_schemas_are_exit_2_with_a_pointer(
    run: Run, llm: FakeLLM, tmp_path: Path, name: str, command: list[str]
) -> None:
    text, pointer = BAD_SCHEMAS[name]
    (tmp_path / "bad.json").write_text(text)
    code, out, err = run(*command, "--schema", str(tmp_path / "bad.json"))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert pointer in err
    assert len(err.splitlines()) <= 2
    assert not llm.asked


# -- generate -------------------------------------------------------------------------------------------------------


def test_generate_with_a_schema(run: Run, llm: FakeLLM) -> None:
    assert run("generate", "x", "--schema", LANDMARK)[:2] == (0, one_line(ANSWER) + "\n")
    assert llm.asked == [{"role": "user", "content": "x"}]


def test_generate_with_a_regex_or_a_choice(run: Run, llm: FakeLLM) -> None:
    llm.answer = "a  b"
    assert run("generate", "x", "--regex", "a  b")[:2] == (0, "a  b\n")
    assert run("generate", "x", "-c", "a  b", "-c", "c")[:2] == (0, "a  b\n")


def test_generate_free_text_streams(run: Run, llm: FakeLLM) -> None:
    llm.answer = "Grüße"
    assert run("generate", "-", "--system", "be kind", stdin="héllo".encode())[:2] == (0, "Grüße\n")
    assert llm.asked == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "héllo"}]


def test_every_sampling_option_reaches_the_model(run: Run, llm: FakeLLM) -> None:
    options = {"top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": -1.0, "frequency_penalty": 0.5}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--logit-bias", "5=-100", "--logit-bias", "7=1.5"]
    assert run("extract", "-s", LANDMARK, "-t", "x", *words)[0] == 0
    assert {name: llm.options[name] for name in options} == options
    assert run("generate", "x", *words, "--stop", "END", "--stop", "\n")[0] == 0
    assert {name: llm.options[name] for name in options} == options
    assert (llm.options["logit_bias"], llm.options["stop"]) == ({5: -100, 7: 1.5}, ["END", "\n"])


def test_several_answers(run: Run, llm: FakeLLM) -> None:
    assert run("generate", "x", "-n", "3", "--schema", LANDMARK)[:2] == (0, (one_line(ANSWER) + "\n") * 3)
    llm.answer = "free"
    assert run("generate", "x", "-n", "2")[:2] == (0, "free\nfree\n")


def test_logprobs_are_printed_as_json(run: Run, llm: FakeLLM) -> None:
    llm.answer, llm.logprobs = "é", [Logprob("é", 7, -0.5, "é".encode(), (Logprob("<end>", 9, -1.0, None),))]
    code, out, _ = run("generate", "x", "--logprobs", "raw", "--top-logprobs", "1")
    assert code == 0
    other = {"token": "<end>", "logprob": -1.0, "bytes": None}
    entry = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [other]}
    assert json.loads(out) == {"text": "é", "finish_reason": "stop", "logprobs": [entry]}
    assert (llm.options["logprobs"], llm.options["top_logprobs"]) == ("raw", 1)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--logit-bias", "five=1"), "logit_bias is written ID=BIAS"),
        (("--logit-bias", "5=200"), "logit_bias must be between"),
        (("--presence-penalty", "3"), "presence_penalty must be"),
        (("--repetition-penalty", "nan"), "repetition_penalty must be"),
        (("--top-logprobs", "3"), "top_logprobs must be 0 without logprobs"),
        (("--stop", ""), "stop takes at most"),
    ],
)
def test_bad_sampling_options_are_told_in_a_line(run: Run, llm: FakeLLM, option: tuple[str, ...], words: str) -> None:
    code, _, err = run("generate", "x", *option)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not llm.asked


# -- validate -------------------------------------------------------------------------------------------------------


def test_validate_says_where_and_exits_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(ANSWER)
    (tmp_path / "lines.jsonl").write_text(f'{one_line(ANSWER)}\n\n{{"name": "x", "city": 5, "year": 1}}\r\n{{\n')
    assert run("validate", "-s", LANDMARK, str(tmp_path / "good.json"))[:2] == (0, "")
    code, out, err = run("validate", "-s", LANDMARK, str(tmp_path / "good.json"), str(tmp_path / "lines.jsonl"))
    assert code == 1
    assert "lines.jsonl:3: /city" in out
    assert "lines.jsonl:4: " in out
    assert "4 checked, 2 invalid" in err


def test_validate_reports_json(run: Run) -> None:
    code, out, _ = run("validate", "-s", LANDMARK, "-o", "json", "-", stdin=b'{"name": "x", "city": "y"}')
    report = json.loads(out)
    assert code == 1
    assert (report["valid"], report["documents"]) == (False, 1)
    assert report["errors"][0]["file"] == "-"
    assert "year" in report["errors"][0]["message"]


@pytest.mark.parametrize(
    ("stdin", "documents"), [(b'{"a": 1}', 1), (b"{}\n{}\n{}\n", 3), (b"{\n}\n", 1), (b"[1,\n2]", 1), (b"", 1)]
)
def test_stdin_is_one_document_or_lines(run: Run, stdin: bytes, documents: int, tmp_path: Path) -> None:
    (tmp_path / "any.json").write_text("true")
    _, out, _ = run("validate", "-s", str(tmp_path / "any.json"), "-o", "json", "-", stdin=stdin)
    assert json.loads(out)["documents"] == documents


def test_validate_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"type": 5}')
    assert run("validate", "-s", LANDMARK, "absent.json")[0] == 2
    code, out, err = run("validate", "-s", str(tmp_path / "bad.json"), "-")
    assert (code, out) == (2, "")
    assert "/type" in err


# -- models, version, ends ------------------------------------------------------------------------------------------


def test_models(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    assert run("models", "list")[:2] == (0, f"{models.DEFAULT_MODEL}\tnot fetched\n")
    code, out, err = run("models", "path")
    assert (code, out) == (2, "")
    assert "structgen models pull" in err
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert run("models", "path", str(tmp_path / "m.gguf"))[:2] == (0, f"{tmp_path / 'm.gguf'}\n")
    assert run("models", "pull", "unheard-of")[0] == 2


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("structgen ")


def test_interrupts_end_quietly(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "extract_batch", interrupt)
    code, out, err = run("extract", "-s", LANDMARK, "-t", "x")
    assert (code, out, err) == (cli_io.INTERRUPTED, "", "interrupted\n")


def test_a_reader_that_leaves_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("5\n" * 50_000)
    command = [sys.executable, "-m", "structgen", "validate", "-s", LANDMARK, str(tmp_path / "many.jsonl")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == cli_io.BROKEN_PIPE


def test_bugs_keep_their_traceback(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "extract_batch", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["structgen", "extract", "-s", LANDMARK, "-t", "x"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{ "a b" : [ 1.50 ,\n\t"x \\" y" ] }', '{"a b":[1.50,"x \\" y"]}'),
        ('"\\\\" ', '"\\\\"'),
        ("1e400", "1e400"),
    ],
)
def test_one_line_keeps_strings_and_numbers(text: str, line: str) -> None:
    assert one_line(text) == line
