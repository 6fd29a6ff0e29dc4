"""The table of keywords in the README says what the code does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from structgen.grammar.json_schema import keyword_table
from structgen.grammar.json_schema.keyword_table import CORPUS, README, shares_of, updated, written_shares
from structgen.grammar.json_schema.keywords import KEYWORDS

pytestmark = pytest.mark.nojit

COMMAND = "stale: python -m structgen.grammar.json_schema.keyword_table"


def test_the_table_is_not_stale() -> None:
    text = README.read_text(encoding="utf-8")
    assert updated(text, None) == text, COMMAND


@pytest.mark.skipif(not CORPUS.exists(), reason="MaskBench is not beside this checkout: shares are not checked")
def test_the_shares_are_not_stale() -> None:
    text = README.read_text(encoding="utf-8")
    assert updated(text, CORPUS) == text, COMMAND


def test_every_keyword_is_in_the_table() -> None:
    assert written_shares(README.read_text(encoding="utf-8")).keys() >= KEYWORDS.keys()


def test_shares_count_schemas(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl.gz"
    schemas = [{"items": {"items": True}, "default": {"not": 1}}, {"properties": {"not": {"format": "date"}}}, True, {}]
    corpus.write_bytes(gzip.compress("\n".join(json.dumps({"schema": one}) for one in schemas).encode()))
    shares = shares_of(corpus)
    assert shares["items"] == "25.0 %"
    assert shares["format: date"] == "25.0 %"
    assert "not" not in shares


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "README.md"
    text = README.read_text(encoding="utf-8")
    copy.write_text(text.replace("| `type` | all |", "| `type` | none |"), encoding="utf-8")
    monkeypatch.setattr(keyword_table, "README", copy)
    monkeypatch.setattr(keyword_table, "CORPUS", tmp_path / "absent")
    assert keyword_table.main([]) == 0
    assert copy.read_text(encoding="utf-8") == text
    assert keyword_table.main(["absent.gz"]) == 2
