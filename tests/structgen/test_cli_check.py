from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from structgen import cli

Run = Callable[..., tuple[int, str, str]]

GOOD = '{"type": "object", "title": "t", "properties": {"n": {"type": "integer"}}}'
BAD = '{"items": {"pattern": "(?<=a)"}, "minlength": 2, "properties": {"a": {"type": "strin"}}}'


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["structgen", "check", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "good.json").write_text(GOOD)
    (tmp_path / "deep" / "bad.json").write_text(BAD)
    (tmp_path / "deep" / "notes.txt").write_text("no schema")
    return tmp_path


def test_a_schema_that_is_enforced(run: Run, folder: Path) -> None:
    code, out, err = run(str(folder / "good.json"))
    assert code == 0
    assert out == f"{folder / 'good.json'}: enforced (3 enforced, 1 only annotations)\n"
    assert err == "1 checked: 1 enforced, 0 refused\n"


def test_all_that_is_refused_is_told_with_its_place(run: Run, folder: Path) -> None:
    code, out, _ = run(str(folder / "deep" / "bad.json"), "--quiet")
    lines = out.splitlines()
    assert code == 1
    assert lines[0].endswith("bad.json: INVALID (2 enforced, 1 only annotations, 2 refused)")
    assert any(line.startswith("  /items/pattern: INVALID: lookbehind") and "hint:" in line for line in lines)
    assert any(line.startswith("  /properties/a/type: INVALID: type: 'strin' is no type") for line in lines)
    assert "  /minlength: annotation: no draft knows this keyword (hint: did you mean 'minLength'?)" in lines
    assert len(lines) == 4


def test_everything_can_be_listed(run: Run, folder: Path) -> None:
    _, out, _ = run(str(folder / "good.json"), "--all")
    assert out.splitlines()[1:] == [
        "  /type: enforced",
        "  /title: annotation: an annotation",
        "  /properties: enforced",
        "  /properties/n/type: enforced",
    ]


@pytest.mark.parametrize("name", ["", "**/*.json", "*", "deep/../**/[bg]*.json"])
def test_folders_and_patterns(run: Run, folder: Path, name: str) -> None:
    code, _, err = run(str(folder / name))
    assert code == (1 if name != "*" else 0)
    assert err.startswith("2 checked: 1 enforced, 1 refused" if name != "*" else "1 checked")


def test_each_file_once(run: Run, folder: Path) -> None:
    _, _, err = run(str(folder / "good.json"), str(folder), str(folder / "g*.json"))
    assert err.startswith("2 checked")


@pytest.mark.parametrize("arguments", [["--json"], ["-o", "json"]])
def test_for_programs(run: Run, folder: Path, arguments: list[str]) -> None:
    code, out, _ = run(str(folder), "-", *arguments, stdin='{"type": "integer", "minimum": 2, "maximum": 1}')
    found = json.loads(out)
    assert code == 1
    assert found["enforced"] is False
    outcomes = {Path(one["file"]).name: one["outcome"] for one in found["schemas"]}
    assert outcomes == {"bad.json": "invalid_schema", "good.json": "enforced", "-": "unsatisfiable_schema"}
    keyword = next(one for one in found["schemas"][0]["keywords"] if one["keyword"] == "minlength")
    assert keyword == {
        "pointer": "/minlength", "keyword": "minlength", "status": "annotation", "code": "",
        "reason": "no draft knows this keyword", "hint": "did you mean 'minLength'?",
    }  # fmt: skip


def test_what_nothing_satisfies(run: Run) -> None:
    code, out, _ = run("-", stdin='{"enum": []}')
    assert code == 1
    assert out.startswith("-: UNSATISFIABLE")
    assert "the root: UNSATISFIABLE" in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":', "not JSON"),
        ("[1]", "not a schema"),
        ('{"type": "null", "type": "null"}', "twice"),
        ("NaN", "not JSON"),
    ],
)
def test_what_cannot_be_read(run: Run, folder: Path, text: str, told: str) -> None:
    code, out, err = run("-", str(folder / "good.json"), stdin=text)
    assert code == 2
    assert out.startswith("-: UNREADABLE: ")
    assert told in out
    assert "good.json: enforced" in out  # the others are checked all the same
    assert err == "2 checked: 1 enforced, 0 refused, 1 unreadable\n"
    found = json.loads(run("-", "--json", stdin=text)[1])["schemas"][0]
    assert found["outcome"] == "unreadable"
    assert told in found["message"]


@pytest.mark.parametrize("name", ["absent.json", "empty/", "no*match.json"])
def test_names_that_lead_nowhere(run: Run, folder: Path, name: str) -> None:
    (folder / "empty").mkdir()
    code, out, err = run(str(folder / name))
    assert code == 2
    assert "Traceback" not in out + err
    assert "absent.json" in out or "no schema files in" in err


@pytest.mark.parametrize(
    ("schema", "option", "without", "with_it"),
    [
        ('{"minlength": 1}', ["--strict-keywords"], 0, 1),
        ('{"format": "colour"}', ["--unknown-format", "refuse"], 0, 1),
        ('{"format": "date", "const": "x"}', ["--format", "annotate"], 1, 0),
        ("{}", ["--property-order", "any", "--whitespace", "compact", "--integers-as", "1 or 1.0"], 0, 0),
    ],
)
def test_options(run: Run, schema: str, option: list[str], without: int, with_it: int) -> None:
    assert run("-", stdin=schema)[0] == without
    assert run("-", *option, stdin=schema)[0] == with_it


def test_other_documents(run: Run, folder: Path) -> None:
    schema = '{"$ref": "https://e.org/a?b=c"}'
    assert run("-", stdin=schema)[0] == 1
    assert run("-", "--document", f"https://e.org/a?b=c={folder / 'good.json'}", stdin=schema)[0] == 0
    code, _, err = run("-", "--document", "https://e.org/a", stdin=schema)
    assert code == 2
    assert "URI=FILE" in err
    assert run("-", "--document", "https://e.org/a=absent.json", stdin=schema)[0] == 2


def test_wrong_usage(run: Run) -> None:
    assert run()[0] == 2
    assert run("-", "--whitespace", "tight")[0] == 2
    code, out, _ = run("--help")
    assert code == 0
    assert "exit 0" in out
