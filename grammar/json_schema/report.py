"""What becomes of every keyword of a schema: enforced, an annotation, or refused, each with its place and reason.

Compiling stops at the first thing that it refuses. To find all of them, what was refused is taken out of a copy of the
schema, and the rest is compiled again, until it compiles or nothing more can be taken out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from structgen.grammar.errors import GrammarError, UnsatisfiableError
from structgen.grammar.json_schema.compile import compile_document
from structgen.grammar.json_schema.document import SchemaDocument
from structgen.grammar.json_schema.edit import without
from structgen.grammar.json_schema.occurrences import Occurrence, Schemas
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.json_schema.schema_text import parse_schema

MAX_ROUNDS = 200  # so many refusals are told one by one

Fate = Literal["enforced", "annotation", "refused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One keyword at one place.

    Attributes:
        pointer: where the keyword is, or what in it is refused.
        keyword: its name; "" when a schema as a whole is refused.
        reason: why it is not enforced; for an enforced one, what is odd about it; may be empty.
        hint: what to change; may be empty.
        code: of a refusal, the code of the error that compiling ends with; else "".
    """

    pointer: str
    keyword: str
    status: Fate
    reason: str = ""
    hint: str = ""
    code: str = ""


@dataclass(frozen=True)
class Report:
    """All findings, in the order of the document. `is_complete`: whether all refusals were found."""

    findings: tuple[Finding, ...]
    is_complete: bool = True

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.status == "refused")

    @property
    def is_enforced(self) -> bool:
        """Whether the schema compiles: nothing is refused."""
        return not self.refused

    @cached_property
    def outcome(self) -> str:
        """ "enforced", or what is worst: "invalid_schema", "unsatisfiable_schema", "schema_too_complex" or
        "unsupported_schema"."""
        codes = {one.code for one in self.refused}
        worst = ("invalid_schema", "invalid_grammar", "unsatisfiable_schema", "schema_too_complex")
        return next((code for code in worst if code in codes), "unsupported_schema" if codes else "enforced")

    def counts(self) -> dict[str, int]:
        """How many keywords are enforced, annotations and refused."""
        found = Counter(one.status for one in self.findings)
        return {status: found[status] for status in ("enforced", "annotation", "refused")}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        keywords = [asdict(one) for one in self.findings]
        return {"outcome": self.outcome, "complete": self.is_complete, **self.counts(), "keywords": keywords}


def report_schema(schema: Any, **options: Any) -> Report:
    """The report on any schema, also on one that `Grammar.from_json_schema` refuses.

    Args:
        schema: a dict, a bool, or the schema as JSON text.
        **options: the fields of `JsonOptions`.
    Raises:
        SchemaError: an unknown option or value.
    """
    settings = JsonOptions.of(options)
    try:
        root = parse_schema(schema) if isinstance(schema, str) else schema
        schemas = Schemas(root, settings)
    except GrammarError as error:
        return Report((_refusal(error, error.pointer or "", ""),))
    refusals, document, is_complete = _refusals(root, schemas, settings)
    if document is not None:
        schemas.add_reached(document)
    return Report(tuple(_findings(schemas, refusals, document)), is_complete)


@dataclass(frozen=True)
class _Refusal:
    """An error, and what was taken out for it: a keyword (`name`), or a schema as a whole (`name` is "")."""

    error: GrammarError
    taken_out: str
    name: str


def _refusals(root: Any, schemas: Schemas, options: JsonOptions) -> tuple[list[_Refusal], SchemaDocument | None, bool]:
    """All refusals, the document that compiled in the end (None when none did), and whether these are all."""
    found: dict[str, _Refusal] = {}
    for _ in range(MAX_ROUNDS):
        try:
            document = SchemaDocument(root, options)
            compile_document(document)
            return list(found.values()), document, True
        except GrammarError as error:
            pointer, name = schemas.owner(error.pointer or "")
            if isinstance(error, UnsatisfiableError) and found:
                break  # perhaps only because of what was taken out
            if isinstance(error, UnsatisfiableError):
                found.setdefault(pointer, _Refusal(error, pointer, name))
                return list(found.values()), None, True
            if pointer in found:  # taken out already, and no better
                pointer, name = schemas.enclosing(pointer)
            if pointer in found:
                break
            found[pointer] = _Refusal(error, pointer, name)
            if not pointer.startswith("/"):  # the whole schema, or another document
                break
            root = without(root, pointer, replace=not name)
    return list(found.values()), None, False


def _findings(schemas: Schemas, refusals: list[_Refusal], document: SchemaDocument | None) -> Iterator[Finding]:
    left = {refusal.taken_out: refusal for refusal in refusals}
    inside = {p: refusal for p, refusal in left.items() if p and not isinstance(refusal.error, UnsatisfiableError)}
    for one in schemas.occurrences():
        refusal = left.pop(one.schema_pointer, None)
        if refusal is not None:  # a schema as a whole comes before its keywords
            yield _refusal(refusal.error, refusal.error.pointer or "", "")
        refusal = left.pop(one.pointer, None)
        if refusal is not None:
            yield _refusal(refusal.error, refusal.error.pointer or "", one.name)
            continue
        around = next((pointer for pointer in _above(one.pointer) if pointer in inside), None)
        yield _fate(one, schemas, document) if around is None else _within(one, inside[around])
    for refusal in left.values():
        yield _refusal(refusal.error, refusal.error.pointer or "", refusal.name)


def _within(one: Occurrence, refusal: _Refusal) -> Finding:
    place = refusal.taken_out or "the root"
    return Finding(one.pointer, one.name, "refused", f"inside {place}, which is refused", "", refusal.error.code)


def _fate(one: Occurrence, schemas: Schemas, document: SchemaDocument | None) -> Finding:
    """What becomes of a keyword that compiling has nothing against."""
    if document is not None and not schemas.is_reached(one.schema_pointer):
        return Finding(one.pointer, one.name, "annotation", "nothing refers to this schema")
    passed_over = schemas.why_annotation(one)
    if passed_over is not None:
        return Finding(one.pointer, one.name, "annotation", *passed_over)
    return Finding(one.pointer, one.name, "enforced", schemas.why_idle(one))


def _refusal(error: GrammarError, pointer: str, name: str) -> Finding:
    return Finding(pointer, name, "refused", error.message, error.hint, error.code)


def _above(pointer: str) -> Iterator[str]:
    """The pointers around one, the innermost first."""
    while pointer:
        pointer = pointer.rpartition("/")[0]
        yield pointer
