"""The correctness replay: it sees what it is there to see."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar import Grammar, UnsupportedSchemaError, Vocabulary, bench
from structgen.grammar.bench_corpus import Account, reason, replay

pytestmark = pytest.mark.nojit

TWO = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}
CASES: list[tuple[Any, list[tuple[bool, Any]]]] = [
    ({"type": "integer"}, [(True, 1), (False, "a")]),
    (TWO, [(True, {"b": 1, "a": 2})]),  # not in the schema's order
    ({"type": "integer", "minimum": 3, "maximum": 1}, [(False, 2)]),  # nothing is valid, rightly
    ({"enum": []}, [(True, 2)]),  # nothing is valid: a wrong rejection
    ({"type": "string"}, [(False, "a")]),  # a wrong acceptance
    ({"type": "string"}, [(True, "\ud800")]),  # cannot be written
    ({"type": 5}, []),  # no schema at all
]


def test_every_kind_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    lines = [
        {"id": str(index), "schema": schema, "tests": [{"valid": valid, "data": data} for valid, data in tests]}
        for index, (schema, tests) in enumerate(CASES)
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert bench.main(["corpus", str(path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["schemas"] == len(CASES)
    wrong = {"refused": 1, "wrong_reject": 2, "wrong_accept": 1, "incomplete": 0, "timeout": 0}
    for order, expected in {"any": {"right": 3}, "schema": {"right": 2, "wrong_reject_by_order_alone": 1}}.items():
        assert expected.items() <= result["orders"][order].items()
        assert wrong.items() <= result["orders"][order].items()


def test_a_schema_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, bytes_only: Vocabulary) -> None:
    def forever(*_: Any, **__: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(Grammar, "from_json_schema", forever)
    account = Account()
    assert replay({"id": "a", "schema": {}, "tests": []}, bytes_only, "any", account, None, 0.01) is None
    assert account.timeouts == [("a", "more than 0.01 s")]


def test_reasons_are_grouped() -> None:
    assert reason(UnsupportedSchemaError("branches 0 and 12 may hold")) == "branches N and N may hold"
    assert reason(UnsupportedSchemaError("more than 2,000 parts")) == "more than N parts"
