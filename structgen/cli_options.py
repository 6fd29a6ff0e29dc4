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


class DType(StrEnum):
    """In what precision the weights are kept."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"
    int8 = "int8"


Schema = Annotated[Path, typer.Option("--schema", "-s", help="File with a JSON schema.")]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Known name, .gguf file or Hugging Face folder.", show_default=False)
]
Precision = Annotated[DType, typer.Option("--dtype", help="Precision of the weights.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Budget of an answer; it is always whole.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Sample from this share of likelihood.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Describe = Annotated[bool, typer.Option(help="Tell the model the schema's fields and descriptions.")]
