"""Sequence: one request inside the engine, from submit to its last token."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from structgen.engine.logprobs import TokenLogprob
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream
from structgen.engine.sampler import RowSampling
from structgen.engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]
Mask = npt.NDArray[np.int32]


class MaskSource(Protocol):
    """What the engine uses of a grammar's Matcher; a test may hand in a scripted one."""

    @property
    def is_complete(self) -> bool: ...

    @property
    def is_terminated(self) -> bool: ...

    @property
    def min_tokens_to_complete(self) -> int: ...

    @property
    def mask_was_narrowed(self) -> bool:
        """Whether the last fill_mask with a budget left out a token that the grammar allows."""
        ...

    def fill_mask(self, row: Mask, budget: int | None = None) -> None: ...

    def accept(self, token_id: int) -> bool: ...


class Stage(Enum):
    WAITING = "waiting"  # owns nothing
    RUNNING = "running"  # owns pages, is planned into steps
    FINISHED = "finished"  # final for the user; a zombie while inflight_refs > 0, and owns pages until then


class Sequence:
    """Tokens and state of one request. The engine thread alone changes it; callers read.

    computed       tokens whose keys and values are cached, or will be by a step already in flight
    limit          tokens that may be generated, EOS included (max_tokens, or what the context leaves)
    inflight_refs  steps in flight that hold a row of this sequence
    """

    def __init__(
        self,
        number: int,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        matcher: MaskSource | None,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.number = number
        self.prompt_ids = list(prompt_ids)
        self.params = params
        self.matcher = matcher
        self.eos_token_ids = eos_token_ids
        self.output_ids: list[int] = []
        self.limit = params.max_tokens
        self.stage = Stage.WAITING
        self.pages: list[int] = []
        self.page_keys: list[bytes] = []  # of the full pages that the prefix cache knows, in order
        self.computed = 0
        self.inflight_refs = 0
        self.finish_reason: FinishReason | None = None
        self.closed_early = False
        self.error: str | None = None
        self.random = RandomStream(params.seed, params.stream)
        self.history = TokenHistory(params, self.prompt_ids) if params.edits_logits else None
        self.logprobs: list[TokenLogprob] = []  # one an output token, when params.logprobs asks for them

    @property
    def total(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def pending(self) -> int:
        """Known tokens that no step has taken yet."""
        return self.total - self.computed

    @property
    def budget(self) -> int:
        """Tokens that may still be generated, EOS included."""
        return self.limit - len(self.output_ids)

    @property
    def finished(self) -> bool:
        return self.stage is Stage.FINISHED

    @property
    def sampling(self) -> RowSampling:
        """How its next token is sampled. All earlier ones must have been appended."""
        position = len(self.output_ids)
        uniform = 0.0 if self.params.greedy else self.random.at(position)
        return RowSampling(self.params, uniform, self.history, (self.random.start, position))

    def append(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Add an output token; what its penalties and logprobs keep grows with it.

        Without `logprob` the token was forced: nothing else was possible under the mask.
        """
        self.output_ids.append(token)
        if self.history is not None:
            self.history.append(token)
        if self.params.logprobs:
            self.logprobs.append(logprob or TokenLogprob.certain(token, top=self.params.top_logprobs))

    def tokens(self, start: int, count: int) -> list[int]:
        """`count` tokens from position `start`, across prompt and output."""
        prompt = len(self.prompt_ids)
        if start >= prompt:
            return self.output_ids[start - prompt : start - prompt + count]
        head = self.prompt_ids[start : start + count]
        return head + self.output_ids[: count - len(head)]

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        """Final for the user from here on. Closing early is told as `length`: clients rely on that word."""
        assert not self.finished
        self.stage = Stage.FINISHED
        self.finish_reason = "length" if reason == "stop" and self.closed_early else reason
        self.error = error

    def __repr__(self) -> str:
        return f"<Sequence {self.number} {self.stage.value} {len(self.prompt_ids)}+{len(self.output_ids)} tokens>"
