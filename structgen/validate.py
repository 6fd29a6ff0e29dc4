"""The one exact JSON Schema validator: the tests, the command line and the server all ask this one.

Exact means: numbers are never rounded, equality is JSON's, patterns are ECMA-262, formats are asserted strictly,
nothing is fetched, and a text that spells a key twice or holds NaN is not JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from referencing.exceptions import Unresolvable

from structgen.grammar.errors import GrammarLimitError, SchemaError
from structgen.validation.dialects import UNDECLARED, FormatPolicy, is_known, normal_uri
from structgen.validation.issues import describe
from structgen.validation.json_text import NotJsonError, Problem, TooDeepError, from_python, parse_json
from structgen.validation.pointers import from_path
from structgen.validation.schema_check import checked_validator, make_registry

__all__ = ["FormatPolicy", "ValidationIssue", "Validator"]


class ValidationIssue(NamedTuple):
    """One reason why an instance is not valid.

    Attributes:
        pointer: JSON pointer into the instance ("" is the root).
        message: one sentence.
        schema_pointer: JSON pointer into the schema, through `$ref`s; None when the text is not JSON at all.
    """

    pointer: str
    message: str
    schema_pointer: str | None

    def __str__(self) -> str:
        return f"{self.pointer or 'the root'}: {self.message}"


class Validator:
    """Checks instances against one schema.

    Args:
        schema: a JSON Schema as Python object (dict or bool) or JSON text; drafts 4, 6, 7, 2019-09, 2020-12 by its
            `$schema`, 2020-12 with the older spellings understood when it has none.
        format: "assert" checks the standard formats in every draft; "annotate" ignores `format`.
        registry: further documents that `$ref` may reach: URI -> schema, or a `referencing.Registry`.
        default_dialect: URI of the draft that a schema without `$schema` is read as.

    Raises:
        SchemaError: the schema is not valid, or refers to a document that was not given.
        GrammarLimitError: it is nested too deeply.
    """

    def __init__(
        self,
        schema: Any,
        *,
        format: FormatPolicy = "assert",
        registry: Mapping[str, Any] | Any = None,
        default_dialect: str | None = None,
    ) -> None:
        if format not in ("assert", "annotate"):
            raise ValueError(f'format must be "assert" or "annotate", not {format!r}')
        dialect = UNDECLARED if default_dialect is None else normal_uri(default_dialect)
        if not is_known(dialect):
            raise ValueError(f"default_dialect is not a known draft: {default_dialect!r}")
        self._validator = checked_validator(_read_schema(schema), make_registry(registry), format, dialect)

    def errors(self, text_or_value: Any) -> list[ValidationIssue]:
        """Everything wrong with an instance; str and bytes are JSON text, anything else a Python value."""
        if isinstance(text_or_value, str | bytes):
            return self.errors_in_text(text_or_value)
        return self.errors_in_value(text_or_value)

    def is_valid(self, text_or_value: Any) -> bool:
        return not self.errors(text_or_value)

    def errors_in_text(self, json_text: str | bytes) -> list[ValidationIssue]:
        try:
            value, problems = parse_json(json_text)
        except NotJsonError as error:
            return [_issue(error.problem)]
        if problems:
            return [_issue(problem) for problem in problems]
        return self._check(value)

    def errors_in_value(self, value: Any) -> list[ValidationIssue]:
        """Like `errors`, for a value that may itself be a string."""
        try:
            exact = from_python(value)
        except NotJsonError as error:
            return [_issue(error.problem)]
        return self._check(exact)

    def _check(self, value: Any) -> list[ValidationIssue]:
        try:
            return list(self._issues(value))
        except RecursionError:
            return [_too_deep()]
        except Unresolvable as error:
            raise SchemaError(f"the reference {error.ref!r} does not resolve", pointer="") from None
        except BaseException as error:
            # Where Python's stack ends inside of `rpds`, that panics, and its panics are no exceptions.
            if type(error).__name__ != "PanicException":
                raise
            return [_too_deep()]

    def _issues(self, value: Any) -> Iterator[ValidationIssue]:
        for error in self._validator.iter_errors(value):
            yield ValidationIssue(
                from_path(error.absolute_path), describe(error), from_path(error.absolute_schema_path)
            )


def _too_deep() -> ValidationIssue:
    return ValidationIssue("", "nested too deeply to be checked, or the schema refers to itself forever", None)


def _issue(problem: Problem) -> ValidationIssue:
    return ValidationIssue(problem.pointer, problem.message, None)


def _read_schema(schema: Any) -> Any:
    try:
        if not isinstance(schema, str | bytes):
            return from_python(schema)
        value, problems = parse_json(schema)
    except TooDeepError as error:
        raise GrammarLimitError(error.problem.message, pointer="", hint="flatten it with `$defs`") from None
    except NotJsonError as error:
        raise SchemaError(error.problem.message, pointer=error.problem.pointer) from None
    if problems:
        raise SchemaError(problems[0].message, pointer=problems[0].pointer)
    return value
