"""The official JSON Schema test suite as a ratchet: what the grammar gets right stays right, and nothing is weakened.

`STRUCTGEN_RECORD=1 pytest tests/grammar/test_official_suite.py` writes `tests/data/grammar_suite.toml` anew. A group of
tests has one schema, which is compiled or refused as a whole; instances are judged one by one.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar import CompiledGrammar, Grammar, GrammarError, UnsatisfiableError, Vocabulary

RATCHET = Path(__file__).parents[1] / "data" / "grammar_suite.toml"
COMMAND = "STRUCTGEN_RECORD=1 pytest tests/grammar/test_official_suite.py"
HEAD = f"""\
# What the grammar does not get right in the official JSON Schema test suite: required tests and optional/format of five
# drafts, property_order="any". `accepts invalid` is always empty. Written by: {COMMAND}
"""


@dataclass
class Outcome:
    """Per instance, by draft and part: counts. Refused groups with their reason, wrong answers one by one."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    rejects_valid: list[str] = field(default_factory=list)
    accepts_invalid: list[str] = field(default_factory=list)

    def as_toml(self) -> str:
        lines = [HEAD, "[counts]"]
        for name, counts in sorted(self.counts.items()):
            share = 100 * counts["right"] / counts.total()
            told = ", ".join(f"{counts[kind]} {kind}" for kind in ("right", "refused", "rejects valid"))
            lines.append(f"{json.dumps(name)} = {json.dumps(f'{told} ({share:.1f} % right)')}")
        lines += ["", "[wrong]", "accepts_invalid = []", "rejects_valid = ["]
        lines += [f"    {json.dumps(one)}," for one in sorted(self.rejects_valid)]
        lines += ["]", "", "[refused]"]
        lines += [f"{json.dumps(name)} = {json.dumps(reason)}" for name, reason in sorted(self.refused.items())]
        return "\n".join(lines) + "\n"


def part_of(path: str) -> str | None:
    """Which part of the suite counts a file; None for other optional tests."""
    if "/optional/" not in path:
        return "required"
    return "format" if "/optional/format/" in path else None


def compiled(schema: Any, path: str, uri: str, remotes: Any, vocabulary: Vocabulary) -> CompiledGrammar | None:
    """None: the schema is said to be satisfied by nothing."""
    if isinstance(schema, dict) and "$schema" not in schema:
        schema = {"$schema": uri, **schema}
    draft = path.partition("/")[0]
    try:
        return Grammar.from_json_schema(
            schema,
            property_order="any",
            integers_as="1" if draft == "draft4" else "1 or 1.0",
            format="annotate" if path == f"{draft}/format.json" else "assert",
            documents=remotes,
        ).compile(vocabulary)
    except UnsatisfiableError:
        return None


def accepts(grammar: CompiledGrammar | None, value: Any) -> bool:
    if grammar is None:
        return False
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    matcher = grammar.matcher()
    return matcher.accept_string(text) and matcher.is_complete


def judge(outcome: Outcome, suite: Any, draft: str, uri: str, remotes: Any, vocabulary: Vocabulary) -> None:
    for path, group in suite.groups(draft):
        part = part_of(path)
        if part is None:
            continue
        counts = outcome.counts.setdefault(f"{draft} {part}", Counter())
        name = f"{path} :: {group['description']}"
        try:
            grammar = compiled(group["schema"], path, uri, remotes, vocabulary)
        except GrammarError as error:
            counts["refused"] += len(group["tests"])
            outcome.refused[name] = str(error)
            continue
        for test in group["tests"]:
            accepted = accepts(grammar, test["data"])
            kind = "right" if accepted == test["valid"] else "accepts invalid" if accepted else "rejects valid"
            counts[kind] += 1
            if kind != "right":
                (outcome.accepts_invalid if accepted else outcome.rejects_valid).append(
                    f"{name} :: {test['description']}"
                )


def test_official_suite(official_suite: Any, drafts: dict[str, str], bytes_only: Vocabulary) -> None:
    outcome = Outcome()
    for draft, uri in drafts.items():
        judge(outcome, official_suite, draft, uri, official_suite.remotes(), bytes_only)
    assert not outcome.accepts_invalid
    if os.environ.get("STRUCTGEN_RECORD"):
        RATCHET.write_text(outcome.as_toml(), encoding="utf-8")
    recorded = tomllib.loads(RATCHET.read_text(encoding="utf-8"))
    wrong, refused = set(recorded["wrong"]["rejects_valid"]), set(recorded["refused"])
    worse = [one for one in outcome.rejects_valid if one not in wrong]
    worse += [f"{one}: {why}" for one, why in outcome.refused.items() if one not in refused]
    assert not worse
    better = len(wrong - set(outcome.rejects_valid)) + len(refused - set(outcome.refused))
    if better:
        pytest.skip(f"{better} entries are better than recorded; record them: {COMMAND}")


def test_the_ratchet_is_sorted_and_promises_no_wrong_acceptance() -> None:
    recorded = tomllib.loads(RATCHET.read_text(encoding="utf-8"))
    assert recorded["wrong"]["accepts_invalid"] == []
    assert recorded["wrong"]["rejects_valid"] == sorted(recorded["wrong"]["rejects_valid"])
    assert list(recorded["refused"]) == sorted(recorded["refused"])
