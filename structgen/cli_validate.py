"""The command `validate`: documents against a schema, for people and for CI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from structgen.cli_io import print_line, read_bytes
from structgen.validate import ValidationIssue, Validator

LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Finding:
    """One issue in one document; `line` is 1-based, None when the file is one document."""

    file: str
    line: int | None
    issue: ValidationIssue

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.issue}"

    def as_json(self) -> dict[str, object]:
        return {"file": self.file, "line": self.line, **self.issue._asdict()}


def validate_files(validator: Validator, names: list[str]) -> tuple[int, list[Finding]]:
    """How many documents there were, and all that is wrong with them. Unreadable files end the program."""
    documents, findings = 0, []
    for name in names:
        for line, text in _documents(name, read_bytes(name)):
            documents += 1
            findings += [Finding(name, line, issue) for issue in validator.errors(text)]
    return documents, findings


def report(documents: int, findings: list[Finding], *, as_json: bool) -> None:
    """On stdout: one JSON object, or one line per issue."""
    if as_json:
        issues = [finding.as_json() for finding in findings]
        print_line(json.dumps({"valid": not findings, "documents": documents, "errors": issues}, ensure_ascii=False))
        return
    for finding in findings:
        print_line(str(finding))


def _documents(name: str, data: bytes) -> Iterator[tuple[int | None, bytes]]:
    """(line, text) of every document: one for JSON, one a line for JSONL; blank lines are none."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not (name.lower().endswith(LINES) or (name == "-" and _looks_like_lines(data))):
        yield None, data
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line.strip()


def _looks_like_lines(data: bytes) -> bool:
    """Stdin has no suffix: it is JSONL when it has several lines and each of the first two is JSON by itself."""
    lines = [line for line in data.split(b"\n") if line.strip()][:2]
    return len(lines) == 2 and all(_is_json(line) for line in lines)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
