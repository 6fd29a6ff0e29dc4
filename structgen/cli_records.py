"""Schemas on the way in and records on the way out, for the commands."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from structgen.cli_io import fail, note, one_line, print_line
from structgen.constraint import Constraint, load_schema, to_constraint
from structgen.errors import GenerationError, GrammarError
from structgen.result import Result
from structgen.validate import Validator


def read_schema(path: Path) -> Any:
    try:
        return load_schema(path)
    except OSError as error:
        fail(
            f"cannot read {path}: {error.strerror or error}",
            hint="check the path and its permissions; - is standard input",
        )
    except GrammarError as error:
        fail(error.message, error.hint)


def constraint_of_file(path: Path) -> Constraint:
    """The constraint of a schema file; a schema that cannot be enforced ends the program before any model is read."""
    schema = read_schema(path)
    try:
        return to_constraint(schema)
    except GrammarError as error:
        fail(f"{path}: {error}", error.hint)


def open_out(out: Path | None) -> AbstractContextManager[TextIO | None]:
    """The file to write records to; None (stdout) without a path."""
    try:
        return nullcontext() if out is None else out.open("w", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}")


def emit(result: Result, validator: Validator, target: TextIO | None) -> bool:
    """Write one record; whether it is valid. An answer that is not is told on stderr, with its reason."""
    raise_if_failed(result)
    line = one_line(result.text)
    if target is None:
        print_line(line)
    else:
        target.write(line + "\n")
        target.flush()
    issues = validator.errors(result.text)
    for issue in issues:
        note(f"invalid: {issue}")
    return not issues


def raise_if_failed(result: Result) -> None:
    if result.finish_reason == "error":
        raise GenerationError(result.error or "generation failed")


def sampling_of(max_tokens: int, temperature: float, top_p: float, seed: int | None) -> dict[str, Any]:
    """Sampling options, checked before a model is read."""
    from structgen.engine import SamplingParams

    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    try:
        SamplingParams(**options)
    except ValueError as error:
        fail(str(error))
    return options
