"""What comes back from a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from structgen.logprobs import Logprob


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens, the end-of-answer token not included."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True)
class Result:
    """One answer.

    Attributes:
        text: as generated.
        value: parsed into the output type; None when `error` is set.
        finish_reason: "stop", "length" (the budget ended it, or narrowed it: `closed_early`), "cancelled" or "error".
        closed_early: the value is complete and valid, but near the end of the budget it was steered to its end.
        stop: the stop string that ended it (and is not part of `text`), else None.
        logprobs: one entry for each token of `text` when they were asked for, else none.
        error: why there is no value, else None.
    """

    text: str
    value: Any
    finish_reason: str
    closed_early: bool
    usage: Usage
    stop: str | None = None
    logprobs: list[Logprob] = field(default_factory=list)
    error: str | None = None


class Piece(str):
    """A part of an answer's text as it streams; `logprobs` of the tokens that begin in it, when they were asked for."""

    __slots__ = ("logprobs",)

    logprobs: list[Logprob]

    def __new__(cls, text: str, logprobs: list[Logprob]) -> Piece:
        piece = super().__new__(cls, text)
        piece.logprobs = logprobs
        return piece
