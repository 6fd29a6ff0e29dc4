"""The command `check`: what of each schema is enforced, an annotation, or refused. For people and for CI."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from structgen import cli_options as option
from structgen.cli_io import SOME_INVALID, USAGE, fail, guarded, note, print_line

if TYPE_CHECKING:
    from structgen.grammar.json_schema.report import Finding, Report

OUTCOMES = {
    "enforced": "enforced",
    "unsupported_schema": "REFUSED",
    "schema_too_complex": "TOO COMPLEX",
    "unsatisfiable_schema": "UNSATISFIABLE",
    "invalid_schema": "INVALID",
    "invalid_grammar": "INVALID",
}
EPILOG = "Example: structgen check schemas/ 'api/**/*.schema.json'   ·   generate | structgen check -   ·   exit 0: all"
EPILOG += " enforced, 1: something is refused, 2: a file could not be read"


class PropertyOrder(StrEnum):
    schema = "schema"
    any = "any"


class Whitespace(StrEnum):
    flexible = "flexible"
    compact = "compact"
    pretty = "pretty"


class Formats(StrEnum):
    asserted = "assert"
    annotate = "annotate"


class UnknownFormats(StrEnum):
    annotate = "annotate"
    refuse = "refuse"


class Integers(StrEnum):
    plain = "1"
    either = "1 or 1.0"


@dataclass(frozen=True)
class Checked:
    """One input: its report, or why it could not be read."""

    file: str
    report: Report | None
    unreadable: str = ""

    def as_json(self) -> dict[str, Any]:
        if self.report is None:
            return {"file": self.file, "outcome": "unreadable", "message": self.unreadable}
        return {"file": self.file, **self.report.as_dict()}


@guarded
def check(
    schemas: Annotated[
        list[str],
        typer.Argument(help="Schema files, folders (all .json in them), patterns like '**/*.json'; - is stdin."),
    ],
    output: Annotated[
        option.Report, typer.Option("--output-format", "-o", help="How to report; json has every keyword.")
    ] = option.Report.text,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="List what is enforced and ignored, too.")] = False,
    property_order: Annotated[
        PropertyOrder, typer.Option(help="Members in the order of the schema, or in any.")
    ] = PropertyOrder.schema,
    whitespace: Annotated[Whitespace, typer.Option(help="Blanks between tokens.")] = Whitespace.flexible,
    format: Annotated[Formats, typer.Option(help="Whether formats are enforced.")] = Formats.asserted,
    unknown_format: Annotated[
        UnknownFormats, typer.Option(help="What to do with formats that no draft knows.")
    ] = UnknownFormats.annotate,
    strict_keywords: Annotated[
        bool, typer.Option("--strict-keywords", help="Refuse keywords that no draft knows: finds misspelled ones.")
    ] = False,
    integers_as: Annotated[Integers, typer.Option(help="How integers may be spelled.")] = Integers.plain,
    documents: Annotated[
        list[str] | None,
        typer.Option("--document", help="URI=FILE: a schema that $ref leads to; may be repeated.", show_default=False),
    ] = None,
    quiet: option.Quiet = False,
) -> None:
    """Say of each keyword of JSON schemas whether it is enforced, only an annotation, or refused, and where and why.

    Nothing is ever weakened in silence: a schema that passes here holds for every output. No model is needed.
    """
    options = {
        "property_order": property_order.value,
        "whitespace": whitespace.value,
        "format": format.value,
        "unknown_format": unknown_format.value,
        "strict_keywords": strict_keywords,
        "integers_as": integers_as.value,
        "documents": dict(_document(one) for one in documents or ()),
    }
    found = [_checked(name, options) for name in _files(schemas)]
    if as_json or output is option.Report.json:
        enforced = all(one.report is not None and one.report.is_enforced for one in found)
        print_line(json.dumps({"enforced": enforced, "schemas": [one.as_json() for one in found]}, ensure_ascii=False))
    else:
        for one in found:
            for line in _lines(one, show_all):
                print_line(line)
    if not quiet:
        note(_summary(found))
    sys.exit(_exit_code(found))


def _document(given: str) -> tuple[str, Any]:
    # A URI may hold "=", a file name hardly does.
    uri, equals, file = given.rpartition("=")
    if not equals or not uri or not file:
        fail(f"--document {given!r} is not URI=FILE", "--document https://example.com/address=address.json")
    try:
        return uri, _read(file)
    except ValueError as error:
        fail(f"{file}: {error}")


def _files(names: Iterable[str]) -> Iterator[str]:
    """The files that are meant, each once, in order; a name that leads nowhere stays, to be told."""
    seen: dict[str, None] = {}
    for name in names:
        path = Path(name)
        if name != "-" and path.is_dir():
            found: list[Path] = sorted(path.rglob("*.json"))
        elif any(mark in name for mark in "*?[") and not path.exists():
            found = sorted(one for one in _anchor(path).glob(_below(path)) if one.is_file())
        else:
            seen[name] = None
            continue
        if not found:
            fail(f"no schema files in {name}", "folders are searched for .json files; patterns may hold * and **")
        seen |= dict.fromkeys(map(str, found))
    return iter(seen)


def _anchor(path: Path) -> Path:
    return Path(path.anchor) if path.is_absolute() else Path()


def _below(path: Path) -> str:
    return str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)


def _read(name: str) -> Any:
    """A JSON value with exact numbers. Raises ValueError with what is wrong, in a line."""
    from structgen.validation.json_text import NotJsonError, parse_json

    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    try:
        value, problems = parse_json(data.removeprefix(b"\xef\xbb\xbf"))
    except NotJsonError as error:
        raise ValueError(f"not JSON: {error.problem.message}") from None
    if problems:
        raise ValueError(f"{problems[0].pointer or 'the root'}: {problems[0].message}")
    return value


def _checked(name: str, options: dict[str, Any]) -> Checked:
    from structgen.grammar import report_schema

    try:
        schema = _read(name)
    except ValueError as error:
        return Checked(name, None, str(error))
    if not isinstance(schema, dict | bool):
        return Checked(name, None, "not a schema: a schema is an object, true or false")
    return Checked(name, report_schema(schema, **options))


def _lines(one: Checked, show_all: bool) -> Iterator[str]:
    if one.report is None:
        yield f"{one.file}: UNREADABLE: {one.unreadable}"
        return
    counts = one.report.counts()
    told = ", ".join(f"{count} {_KINDS[kind]}" for kind, count in counts.items() if count or kind == "enforced")
    yield f"{one.file}: {OUTCOMES[one.report.outcome]} ({told})"
    for finding in one.report.findings:
        if show_all or _matters(finding):
            yield f"  {_finding(finding)}"
    if not one.report.is_complete:
        yield "  there may be more: what is refused here hides the rest"


_KINDS = {"enforced": "enforced", "annotation": "only annotations", "refused": "refused"}


def _matters(finding: Finding) -> bool:
    """Refusals with a reason of their own, and what looks like a mistake."""
    if finding.status == "refused":
        return not finding.reason.startswith("inside ")
    return bool(finding.hint) if finding.status == "annotation" else bool(finding.reason)


def _finding(finding: Finding) -> str:
    status = OUTCOMES[finding.code] if finding.code else finding.status
    reason = f": {finding.reason.splitlines()[0]}" if finding.reason else ""
    hint = f" (hint: {finding.hint})" if finding.hint else ""
    return f"{finding.pointer or 'the root'}: {status}{reason}{hint}"


def _summary(found: list[Checked]) -> str:
    unreadable = sum(one.report is None for one in found)
    enforced = sum(one.report is not None and one.report.is_enforced for one in found)
    refused = len(found) - enforced - unreadable
    end = f", {unreadable} unreadable" if unreadable else ""
    return f"{len(found)} checked: {enforced} enforced, {refused} refused{end}"


def _exit_code(found: list[Checked]) -> int:
    if any(one.report is None for one in found):
        return USAGE
    return 0 if all(one.report is not None and one.report.is_enforced for one in found) else SOME_INVALID
