"""The command `inspect`: what a grammar is made of, and what its masks are like along an example output."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from structgen import cli_options as option
from structgen.cli_io import SOME_INVALID, fail, guarded, print_line, read_text

if TYPE_CHECKING:
    from structgen.grammar import Vocabulary
    from structgen.grammar.inspector import Inspection, Step
    from structgen.grammar.program_rules import Rule

MOST_RULES = 30  # shown as text; JSON has them all


@guarded
def inspect(
    schema: Annotated[
        Path | None, typer.Option("--schema", "-s", help="File with a JSON schema.", show_default=False)
    ] = None,
    regex: Annotated[
        str | None, typer.Option("--regex", "-r", help="A pattern for the whole text.", show_default=False)
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", "-t", help="An output to follow; - is stdin.", show_default=False)
    ] = None,
    model: option.Model = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer file or folder.", show_default=False)
    ] = None,
    output: Annotated[option.Report, typer.Option("--output-format", "-o", help="How to report.")] = option.Report.text,
    quiet: option.Quiet = False,
) -> None:
    """Take a grammar apart: its size and rules, and along a text its masks, their cost, and where it is refused."""
    if (schema is None) == (regex is None):
        fail("give --schema or --regex, one of them", "structgen inspect --schema invoice.json")
    if model is not None and tokenizer is not None:
        fail("give --model or --tokenizer, not both")
    text = read_text("-") if tokens == "-" else tokens
    found = _inspect(schema, regex, text, lambda: _vocabulary(model, tokenizer, quiet))
    if output is option.Report.json:
        print_line(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
    else:
        for line in report(found):
            print_line(line)
    sys.exit(SOME_INVALID if found.complete is False else 0)


def _inspect(schema: Path | None, regex: str | None, text: str | None, vocabulary: Any) -> Inspection:
    from structgen.cli_records import read_schema
    from structgen.grammar import Grammar
    from structgen.grammar.inspector import inspect_grammar
    from structgen.grammar.json_schema.options import JsonOptions
    from structgen.grammar.program_rules import pointers_of_schema

    if schema is None:
        Grammar.from_regex(regex or "")  # a fault in it is told before a model is looked for
        return inspect_grammar(lambda: Grammar.from_regex(regex or ""), vocabulary(), text)
    document = read_schema(schema)
    Grammar.from_json_schema(document)
    pointers = pointers_of_schema(document, JsonOptions.of({}))
    return inspect_grammar(lambda: Grammar.from_json_schema(document), vocabulary(), text, pointers)


def _vocabulary(model: str | None, tokenizer: Path | None, quiet: bool) -> Vocabulary:
    from structgen import models
    from structgen.grammar import Vocabulary
    from structgen.grammar.token_bytes import TokenizerFileError

    path = models.resolve(model, progress=not quiet).path if tokenizer is None else tokenizer
    try:
        return Vocabulary.from_tokenizer(path)
    except TokenizerFileError as error:
        fail(error.message, error.hint)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror or error}")


def report(found: Inspection) -> list[str]:
    """For people."""
    ops = ", ".join(f"{count:,} {name}" for name, count in found.ops.items())
    lines = [
        f"{found.kind}: {found.states:,} states ({ops}), {found.edges:,} edges",
        f"built in {found.build_us:,.0f} us, compiled for {found.tokens:,} tokens in {found.compile_us:,.0f} us",
        f"the shortest output takes {found.min_tokens:,} tokens, its end included",
        f"{len(found.rules):,} rules:",
        *(_rule_line(rule) for rule in found.rules[:MOST_RULES]),
    ]
    if len(found.rules) > MOST_RULES:
        lines.append(f"  and {len(found.rules) - MOST_RULES:,} more: -o json")
    if found.complete is None:
        return lines
    lines += ["", "offset   token  allowed  density  mask us  again  needed  forced  text"]
    lines += [_step_line(step) for step in found.steps]
    masks = [step.first_us for step in found.steps]
    if masks:
        lines.append(f"{len(masks)} masks: {sum(masks) / len(masks):,.1f} us on average, at most {max(masks):,.1f} us")
    stats = found.stats
    lines.append(", ".join(f"{value:,} {name}" for name, value in stats.items() if name != "states"))
    if found.refusal is not None:
        instead = f"; allowed: {', '.join(found.refusal.instead)}" if found.refusal.instead else ""
        lines.append(f"refused at byte {found.refusal.offset}: {found.refusal.text!r}{instead}")
    else:
        lines.append("accepted, complete" if found.complete else "accepted so far, not complete")
    return lines


def _rule_line(rule: Rule) -> str:
    place = "" if rule.pointer is None else f"  {rule.pointer or 'the root'}"
    states = "" if rule.states is None else f"{rule.states:,} states, "
    shortest = "nothing matches" if rule.shortest_bytes is None else f"at least {rule.shortest_bytes:,} bytes"
    return f"  {rule.state:>7}: {states}{rule.calls:,} calls, {shortest}{place}"


def _step_line(step: Step) -> str:
    token = "" if step.token_id is None else str(step.token_id)
    text = "(end)" if step.token_id is None else repr(step.text)
    return (
        f"{step.offset:>6} {token:>7} {step.allowed:>8,} {step.density:>8.2%} {step.first_us:>8,.1f}"
        f" {step.again_us:>6.1f} {step.min_tokens:>7,} {step.forced:>7}  {text}"
    )
