"""Logprobs for people: the engine's token ids and numbers, with the text of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LEAST = -9999.0  # what OpenAI's API says for a probability of 0, which JSON has no number for


class TokenLogprobLike(Protocol):
    """What is read of `structgen.engine.TokenLogprob`."""

    @property
    def token_id(self) -> int: ...

    @property
    def logprob(self) -> float: ...

    @property
    def top(self) -> Sequence[tuple[int, float]]: ...


class TokenNames(Protocol):
    """What is used of `structgen.tokenizer.Tokenizer`."""

    def token_name(self, token_id: int, /) -> tuple[str, bytes | None]: ...


@dataclass(frozen=True)
class Logprob:
    """One token and the natural logarithm of its probability.

    Attributes:
        token: its text; U+FFFD where it is a part of a character, the name of a special token.
        bytes: what it spells; None for a special token.
        top: the most likely tokens in its place, most likely first; the chosen one may be among them.
    """

    token: str
    token_id: int
    logprob: float
    bytes: bytes | None
    top: tuple[Logprob, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """In the shape of OpenAI's chat API."""
        return {**self._alone(), "top_logprobs": [other._alone() for other in self.top]}

    def _alone(self) -> dict[str, Any]:
        spelled = None if self.bytes is None else list(self.bytes)
        return {"token": self.token, "logprob": max(self.logprob, LEAST), "bytes": spelled}


def named(told: Iterable[TokenLogprobLike], names: TokenNames) -> list[Logprob]:
    """The engine's entries, with the tokens' texts."""
    return [
        _named(each.token_id, each.logprob, names, tuple(_named(token, value, names) for token, value in each.top))
        for each in told
    ]


def _named(token_id: int, logprob: float, names: TokenNames, top: tuple[Logprob, ...] = ()) -> Logprob:
    text, spelled = names.token_name(token_id)
    return Logprob(text, token_id, logprob, spelled, top)
