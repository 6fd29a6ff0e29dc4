"""SamplingParams: how one request picks its tokens and when it stops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from structgen.engine.errors import ParameterError

LogprobKind = Literal["masked", "raw"]
MAX_TOP_LOGPROBS = 20
SMALLEST = math.ulp(0.0)  # the least number above 0


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Checked on construction; ParameterError (a ValueError) tells a bad value, its field's name first.

    max_tokens          tokens that may be generated, EOS included
    temperature         0 is greedy; the masked logits are divided by it otherwise
    top_k               keep the k most likely allowed tokens; 0 keeps all
    top_p               keep the smallest set of most likely allowed tokens whose probability reaches it
    min_p               keep allowed tokens at least this share as likely as the most likely one; 0 keeps all
    repetition_penalty  divides positive logits of tokens in prompt or output, multiplies negative ones; 1 is off
    presence_penalty    taken off the logits of tokens in the output, once
    frequency_penalty   taken off the logits of tokens in the output, for each time they occur
    logit_bias          token -> what is added to its logit, -100 to 100; a bias never lets a masked token through
    seed                the request's own random stream, the same whatever else is in the batch
    stream              which of the streams of `seed`; the n answers to one request take 0 to n - 1
    logprobs            "masked" (or True): of the distribution that the constraint leaves; "raw": of the model's own
    top_logprobs        how many of the most likely tokens are told besides the chosen one, with `logprobs`
    stop_token_ids      generation ends before these (besides EOS); they are not part of the output
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stream: int = 0
    logprobs: LogprobKind | bool | None = None
    top_logprobs: int = 0
    stop_token_ids: frozenset[int] = field(default=frozenset())

    def __post_init__(self) -> None:
        self._check_integer("max_tokens", least=1)
        self._check_number("temperature", 0, math.inf, "a finite number of at least 0")
        self._check_integer("top_k", least=0)
        self._check_number("top_p", SMALLEST, 1, "a number above 0 and at most 1")
        self._check_number("min_p", 0, 1, "a number between 0 and 1")
        self._check_number("repetition_penalty", 0.01, 100, "a number between 0.01 and 100")
        self._check_number("presence_penalty", -2, 2, "a number between -2 and 2")
        self._check_number("frequency_penalty", -2, 2, "a number between -2 and 2")
        self._check_bias()
        if self.seed is not None and not _is_int(self.seed):
            raise ParameterError("seed", f"must be an integer or None, not {self.seed!r}")
        self._check_integer("stream", least=0)
        self._check_logprobs()
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        if not all(_is_int(token) for token in self.stop_token_ids):
            raise ParameterError("stop_token_ids", "must be integers")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken (of equal ones the lowest id), whatever the random stream says."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def edits_logits(self) -> bool:
        """Whether some logits are changed before the mask: then the request needs a TokenHistory."""
        penalised = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalised or bool(self.logit_bias)

    def _check_integer(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if not _is_int(value) or value < least:
            raise ParameterError(name, f"must be an integer of at least {least}, not {value!r}")

    def _check_number(self, name: str, least: float, most: float, words: str) -> None:
        value = getattr(self, name)
        if not _is_number(value) or not least <= value <= most:
            raise ParameterError(name, f"must be {words}, not {value!r}")

    def _check_bias(self) -> None:
        biases: Any = self.logit_bias
        if not isinstance(biases, Mapping):
            raise ParameterError("logit_bias", f"must map token ids to numbers, not be a {type(biases).__name__}")
        for token, bias in biases.items():
            if not _is_int(token) or token < 0:
                raise ParameterError("logit_bias", f"must name tokens by their ids, not by {token!r}")
            if not _is_number(bias) or not -100 <= bias <= 100:
                raise ParameterError("logit_bias", f"must be between -100 and 100, not {bias!r} for token {token}")
        object.__setattr__(self, "logit_bias", dict(biases))

    def _check_logprobs(self) -> None:
        if isinstance(self.logprobs, bool):
            object.__setattr__(self, "logprobs", "masked" if self.logprobs else None)
        if self.logprobs not in (None, "masked", "raw"):
            raise ParameterError("logprobs", f"must be True, 'masked', 'raw' or None, not {self.logprobs!r}")
        self._check_integer("top_logprobs", least=0)
        if self.top_logprobs > MAX_TOP_LOGPROBS:
            raise ParameterError("top_logprobs", f"must be at most {MAX_TOP_LOGPROBS}, not {self.top_logprobs}")
        if self.top_logprobs and self.logprobs is None:
            raise ParameterError("top_logprobs", "must be 0 without logprobs")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """A finite real number; numpy's floats and integers count, since they compare and convert as Python's do."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
