from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from structgen import cli
from structgen.grammar.token_bytes import BYTE_OF_CHARACTER
from structgen.models import DEFAULT_MODEL, KNOWN, is_present

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["structgen", "inspect", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """The 256 bytes, and an end."""
    made = Tokenizer(models.BPE(vocab=BYTE_OF_CHARACTER, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    return str(path)


def test_a_report_for_people(run: Run, tokenizer: str, schema: str) -> None:
    code, out, err = run("--schema", schema, "--tokenizer", tokenizer, "--tokens", '{"n": 12}')
    assert (code, err) == (0, "")
    assert "json_schema:" in out
    assert "/properties/n" in out
    assert "accepted, complete" in out
    assert out.count("\n") > 15


def test_a_report_for_programs(run: Run, tokenizer: str, schema: str) -> None:
    code, out, _ = run("--schema", schema, "--tokenizer", tokenizer, "--tokens", "-", "-o", "json", stdin=b'{"n": x}')
    found = json.loads(out)
    assert code == 1
    assert found["refusal"]["offset"] == 6
    assert found["complete"] is False
    assert found["ops"]["BYTE"] > 0
    assert len(found["steps"]) == 7


def test_without_a_text(run: Run, tokenizer: str) -> None:
    code, out, _ = run("--regex", "a{1,5000}", "--tokenizer", tokenizer)
    assert code == 0
    assert "regex:" in out
    assert "offset" not in out


def test_where_a_text_is_refused(run: Run, tokenizer: str) -> None:
    code, out, _ = run("--regex", "ab|ac", "--tokenizer", tokenizer, "--tokens", "ad")
    assert code == 1
    assert "refused at byte 1: 'd'; allowed: 'b', 'c'" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give --schema or --regex"),
        (["--regex", "a", "--schema", "x.json"], "give --schema or --regex"),
        (["--regex", "a", "--model", "m", "--tokenizer", "t"], "not both"),
        (["--regex", "("], "error:"),
        (["--schema", "absent.json"], "cannot read"),
        (["--regex", "a", "--tokenizer", "absent.json"], "cannot read"),
    ],
)
def test_wrong_usage_is_told_in_a_line(run: Run, arguments: list[str], told: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert told in err
    assert out == ""
    assert "Traceback" not in err


def test_a_real_model(run: Run, schema: str) -> None:
    if not is_present(KNOWN[DEFAULT_MODEL]):
        pytest.skip("the default model is not in the cache: structgen models pull")
    code, out, _ = run("--schema", schema, "--tokens", '{"n": 12}')
    assert code == 0
    assert "49,152 tokens" in out
