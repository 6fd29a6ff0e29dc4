"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Report(StrEnum):
    """How `validate` reports."""

    text = "text"
    json = "json"


class LogprobKind(StrEnum):
    """Of which distribution: what the constraint leaves, or the model's own."""

    masked = "masked"
    raw = "raw"


class DType(StrEnum):
    """In what precision the weights are kept."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"
    int8 = "int8"


class Device(StrEnum):
    """Where the model lies and is computed."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Schema = Annotated[Path, typer.Option("--schema", "-s", help="File with a JSON schema.")]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Known name, .gguf file or Hugging Face folder.", show_default=False)
]
Place = Annotated[Device, typer.Option("--device", help="Where to compute; auto takes a GPU when there is one.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="Write where each step's time went, for chrome://tracing.", show_default=False),
]
Precision = Annotated[DType, typer.Option("--dtype", help="Precision of the weights.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Budget of an answer; it is always whole.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Sample from this share of likelihood.")]
TopK = Annotated[int, typer.Option("--top-k", min=0, help="Sample from so many of the likeliest tokens; 0: all.")]
MinP = Annotated[
    float, typer.Option("--min-p", min=0.0, max=1.0, help="Sample from tokens this share as likely as the likeliest.")
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1: what prompt and answer hold becomes less likely.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="-2 to 2: off the logits of tokens that the answer holds.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="-2 to 2: the same, for each time that it holds them.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="ID=BIAS", help="Added to a token's logit; repeat it.", show_default=False),
]
Answers = Annotated[int, typer.Option("-n", min=1, max=1024, help="So many answers; with --temperature they differ.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="Text to end before; repeat it.", show_default=False)]
Logprobs = Annotated[
    LogprobKind | None,
    typer.Option("--logprobs", help="Print JSON with the logprobs of each token.", show_default=False),
]
TopLogprobs = Annotated[int, typer.Option("--top-logprobs", min=0, max=20, help="And of so many likely others.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Describe = Annotated[bool, typer.Option(help="Tell the model the schema's fields and descriptions.")]
