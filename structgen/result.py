"""What comes back from a generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        error: why there is no value, else None.
    """

    text: str
    value: Any
    finish_reason: str
    closed_early: bool
    usage: Usage
    error: str | None = None
