"""Schemas on the way in and records on the way out, for the commands."""

from __future__ import annotations

import json
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


def emit(result: Result, validator: Validator | None, target: TextIO | None, *, with_logprobs: bool = False) -> bool:
    """Write one answer; whether it is valid. One that is not is told on stderr, with its reason.

    Without a validator it is any text; with one it is a record, in one line. With logprobs it is an object of both.
    """
    raise_if_failed(result)
    line = result.text if validator is None else one_line(result.text)
    if with_logprobs:
        told = {"text": result.text, "finish_reason": result.finish_reason}
        line = json.dumps(told | {"logprobs": [each.as_dict() for each in result.logprobs]}, ensure_ascii=False)
    if target is None:
        print_line(line)
    else:
        target.write(line + "\n")
        target.flush()
    issues = [] if validator is None else validator.errors(result.text)
    for issue in issues:
        note(f"invalid: {issue}")
    return not issues


def raise_if_failed(result: Result) -> None:
    if result.finish_reason == "error":
        raise GenerationError(result.error or "generation failed")


def sampling_of(*, logit_bias: list[str] | None, stop: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    """Sampling options as `LLM.generate` takes them, checked before a model is read. `fields` are SamplingParams'."""
    from structgen.engine import SamplingParams
    from structgen.stop_strings import checked_stops

    fields["logit_bias"] = dict(map(_bias_of, logit_bias or []))
    try:
        SamplingParams(**fields)
        return fields | ({"stop": checked_stops(stop)} if stop else {})
    except ValueError as error:
        fail(str(error))


def _bias_of(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        fail(f"logit_bias is written ID=BIAS, such as 1234=-100, not {text!r}")
