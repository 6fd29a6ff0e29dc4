"""The command `structgen`. Results go to stdout, everything else to stderr.

Exit codes: 0 all is well, 1 some output or document is invalid, 2 wrong usage, a bad schema or an unreadable file.
Imports inside the commands keep `structgen --help` free of torch and numba.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from structgen import __version__
from structgen import cli_options as option
from structgen.cli_check import EPILOG as CHECK_EPILOG
from structgen.cli_check import check
from structgen.cli_inspect import inspect
from structgen.cli_io import (
    INTERRUPTED,
    SOME_INVALID,
    fail,
    guarded,
    note,
    print_line,
    print_piece,
    read_text,
)
from structgen.cli_models import models_app

if TYPE_CHECKING:
    from structgen.llm import LLM

app = typer.Typer(
    name="structgen",
    help="Text in, JSON out that always matches your schema.",
    epilog="structgen extract mail.txt --schema invoice.json   ·   structgen serve   ·   structgen models pull",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models_app, name="models")


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
    schema: option.Schema,
    text: Annotated[str | None, typer.Option("--text", "-t", help="The document itself.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSONL file to write.", show_default=False)] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", help="What to look for, in your words.", show_default=False)
    ] = None,
    model: option.Model = None,
    max_tokens: option.MaxTokens = 512,
    temperature: option.Temperature = 0.0,
    top_k: option.TopK = 0,
    top_p: option.TopP = 1.0,
    min_p: option.MinP = 0.0,
    repetition_penalty: option.RepetitionPenalty = 1.0,
    presence_penalty: option.PresencePenalty = 0.0,
    frequency_penalty: option.FrequencyPenalty = 0.0,
    logit_bias: option.LogitBias = None,
    seed: option.Seed = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Documents side by side.")] = 8,
    dtype: option.Precision = option.DType.auto,
    device: option.Place = option.Device.auto,
    describe: option.Describe = True,
    trace: option.Trace = None,
    quiet: option.Quiet = False,
) -> None:
    """Find what a schema names in documents: one JSON line for each, in their order."""
    from structgen.cli_records import constraint_of_file, emit, open_out, sampling_of
    from structgen.cli_trace import traced
    from structgen.progress import count_progress
    from structgen.validate import Validator

    if (text is None) == (not files):
        fail("give documents or --text, one of them", "structgen extract mail.txt --schema invoice.json")
    constraint = constraint_of_file(schema)
    validator = Validator(constraint.schema)
    texts = [text] if text is not None else [read_text(name) for name in files or []]
    llm = _llm(model, dtype, device, batch, quiet)
    sampling = sampling_of(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        seed=seed,
    )
    invalid = 0
    with (
        traced(llm, trace),
        open_out(out) as target,
        count_progress("Extracting", len(texts), enabled=not quiet) as advance,
    ):
        for start in range(0, len(texts), batch):
            pairs = [(one, constraint) for one in texts[start : start + batch]]
            for result in llm.extract_batch(
                pairs, instructions, describe=describe, return_result=True, on_finished=advance, **sampling
            ):
                invalid += not emit(result, validator, target)
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
    model: option.Model = None,
    max_tokens: option.MaxTokens = 512,
    temperature: option.Temperature = 0.0,
    top_k: option.TopK = 0,
    top_p: option.TopP = 1.0,
    min_p: option.MinP = 0.0,
    repetition_penalty: option.RepetitionPenalty = 1.0,
    presence_penalty: option.PresencePenalty = 0.0,
    frequency_penalty: option.FrequencyPenalty = 0.0,
    logit_bias: option.LogitBias = None,
    seed: option.Seed = None,
    n: option.Answers = 1,
    stop: option.Stop = None,
    logprobs: option.Logprobs = None,
    top_logprobs: option.TopLogprobs = 0,
    dtype: option.Precision = option.DType.auto,
    device: option.Place = option.Device.auto,
    describe: option.Describe = True,
    trace: option.Trace = None,
    quiet: option.Quiet = False,
) -> None:
    """Answer a prompt in the shape of a schema, a regex or a choice; as free text without one."""
    from structgen.cli_records import constraint_of_file, emit, sampling_of
    from structgen.cli_trace import traced
    from structgen.constraint import Choice, Regex, to_constraint
    from structgen.validate import Validator

    if sum(constraint is not None for constraint in (schema, regex, choice or None)) > 1:
        fail("give one of --schema, --regex and --choice")
    if schema is not None:
        constraint = constraint_of_file(schema)
    else:
        constraint = to_constraint(Regex(regex) if regex is not None else Choice(choice) if choice else None)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": read_text("-") if prompt == "-" else prompt})
    llm = _llm(model, dtype, device, min(n, 8), quiet)
    sampling = sampling_of(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        seed=seed,
        stop=stop,
        logprobs=logprobs and logprobs.value,
        top_logprobs=top_logprobs,
    )
    if constraint.grammar is None and n == 1 and logprobs is None:
        with traced(llm, trace):
            for piece in llm.stream(messages, constraint, **sampling):
                print_piece(piece)
        print_line("")
        return
    validator = Validator(constraint.schema) if schema is not None else None
    with traced(llm, trace):
        results = llm.generate(messages, constraint, describe=describe, n=n, return_result=True, **sampling)
    valid = [emit(result, validator, None, with_logprobs=logprobs is not None) for result in results]
    sys.exit(0 if all(valid) else SOME_INVALID)


@app.command(epilog="Example: structgen validate --schema invoice.json invoices.jsonl")
@guarded
def validate(
    files: Annotated[list[str], typer.Argument(help="JSON or JSONL (.jsonl, .ndjson) files; - is stdin.")],
    schema: option.Schema,
    output: Annotated[option.Report, typer.Option("--output-format", "-o", help="How to report.")] = option.Report.text,
    quiet: option.Quiet = False,
) -> None:
    """Check documents against a schema: exit 0 when all are valid, 1 when some are not."""
    from structgen.cli_records import read_schema
    from structgen.cli_validate import report, validate_files
    from structgen.validate import Validator

    documents, findings = validate_files(Validator(read_schema(schema)), files)
    report(documents, findings, as_json=output is option.Report.json)
    invalid = len({(finding.file, finding.line) for finding in findings})
    if not quiet:
        note(f"{documents} checked, {invalid} invalid")
    sys.exit(SOME_INVALID if findings else 0)


app.command(epilog=CHECK_EPILOG)(check)
app.command(epilog="Example: structgen inspect --schema invoice.json --tokens '{\"total\": 3}'")(inspect)


@app.command(epilog="Example: structgen serve --port 8000   then   OpenAI(base_url='http://127.0.0.1:8000/v1')")
@guarded
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    model: option.Model = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Requests side by side.")] = 8,
    dtype: option.Precision = option.DType.auto,
    device: option.Place = option.Device.auto,
    lora: Annotated[
        list[str] | None, typer.Option("--lora", help="A LoRA adapter, NAME=FOLDER; repeat it.", show_default=False)
    ] = None,
    max_loras: Annotated[int | None, typer.Option(min=1, help="Adapters at a time.", show_default="8")] = None,
    max_lora_rank: Annotated[
        int | None, typer.Option(min=1, help="Largest rank of an adapter.", show_default="64")
    ] = None,
    allow_lora_updates: Annotated[
        bool, typer.Option("--allow-lora-updates", help="Let clients load adapters from paths on this machine.")
    ] = False,
    quiet: option.Quiet = False,
) -> None:
    """Serve the OpenAI API: chat completions with response_format, streaming, models, LoRA adapters by model name."""
    import uvicorn

    from structgen.server import create_app
    from structgen.server.settings import ServerSettings

    adapters = [_named_folder(text) for text in lora or []]
    llm = _llm(model, dtype, device, batch, quiet, max_adapters=max_loras, max_lora_rank=max_lora_rank)
    if llm.name in dict(adapters):  # a model that cannot be found ends the command here, in one line
        fail(f"{llm.name} is the model's own name", "give the adapter another one")
    note(f"Loading {llm.name}")
    for name, folder in adapters:
        llm.load_adapter(name, folder)
    settings = ServerSettings(adapter_updates=allow_lora_updates)
    uvicorn.run(
        create_app(llm, settings=settings),
        host=host,
        port=port,
        log_level="warning" if quiet else "info",
        timeout_graceful_shutdown=int(settings.grace),
    )


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        fail(f"--lora {text} is not NAME=FOLDER", "structgen serve --lora invoices=adapters/invoices")
    return name, Path(folder)


def _llm(
    model: str | None, dtype: option.DType, device: option.Device, batch: int, quiet: bool, **limits: int | None
) -> LLM:
    from structgen.llm import LLM

    return LLM(model, dtype=dtype.value, device=device.value, max_batch=batch, progress=not quiet, **limits)


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="structgen")
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(INTERRUPTED)
