"""Sequence: one request inside the engine, from submit to its last token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from enum import Enum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from structgen.engine.adapters import Adapter
from structgen.engine.logprobs import TokenLogprob
from structgen.engine.mask_residency import SharedMask
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.step_sampling import SamplingSource

FinishReason = Literal["stop", "length", "cancelled", "error"]
Mask = npt.NDArray[np.int32]


class MaskSource(Protocol):
    """What the engine uses of a grammar's Matcher; a test may hand in a scripted one.

    It may also have `known_mask(budget) -> SharedMask | None`: the mask that `fill_known_mask` would copy, as it is, to
    be read until the matcher gives another; None where that would copy none. It must be the same object whenever the
    matcher stands in the same state.
    """

    @property
    def state(self) -> Hashable:
        """Where the matcher stands: in equal states much the same follows. For statistics."""
        ...

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

    def fill_known_mask(self, row: Mask, budget: int | None = None) -> bool:
        """`fill_mask` where that is a mere copy; False, and nothing done, where there is something to compute."""
        ...

    def accept(self, token_id: int) -> bool: ...

    def rollback(self, count: int) -> None: ...

    def forced_tokens(self) -> list[int]: ...


class Stage(Enum):
    WAITING = "waiting"  # owns nothing
    RUNNING = "running"  # owns pages and a lane, is planned into steps
    PREEMPTED = "preempted"  # planned no more; gives its pages back when no step in flight holds it, then waits again
    FINISHED = "finished"  # final for the user; a zombie while inflight_refs > 0, and owns pages until then


RUNNING = Stage.RUNNING  # looking a member up in its class takes longer than comparing it


class Sequence:
    """Tokens and state of one request. The engine thread alone changes it; callers read.

    computed       tokens whose keys and values are cached, or will be by a step already in flight
    unknown        1 while a step in flight samples its next token: it exists on the device, and not here
    epoch          raised when what steps in flight sample for it is void, and when it ends; a row of an older epoch
                   is ignored
    lane           where the runner keeps its last sampled token and its page table, while it runs
    limit          tokens that may be generated, EOS included (max_tokens, or what the context leaves)
    inflight_refs  steps in flight that hold a row of this sequence
    adapter        the LoRA adapter it runs under; held from `submit` until its pages are given up
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
        self.prompt_length = len(self.prompt_ids)
        self.params = params
        self.matcher = matcher
        self.known_mask: Callable[[int], SharedMask | None] | None = getattr(matcher, "known_mask", None)
        self.eos_token_ids = eos_token_ids
        self.output_ids: list[int] = []
        self.limit = params.max_tokens
        self.stage = Stage.WAITING
        self.finished = False  # whether that is the stage; asked for several times a step
        self.pages: list[int] = []
        self.page_keys: list[bytes] = []  # of the full pages that the prefix cache knows, in order
        self.prompt_is_known = False  # to the prefix cache
        self.computed = 0
        self.unknown = 0
        self.epoch = 0
        self.lane = -1
        self.inflight_refs = 0
        self.adapter: Adapter | None = None
        self.mask_job: Future[Mask] | None = None  # computes its next mask, and came too late for a step
        self.mask_deadline = 0.0  # `time.perf_counter` after which that job counts as hanging
        self.jump_state: Hashable = None  # of the matcher, if the engine has asked since its last token
        self.finish_reason: FinishReason | None = None
        self.closed_early = False
        self.error: str | None = None
        self.history = TokenHistory(params, self.prompt_ids) if params.edits_logits else None
        self.sampling = SamplingSource(params, RandomStream(params.seed, params.stream), self.history)
        self.logprobs: list[TokenLogprob] = []  # one an output token, when params.logprobs asks for them

    @property
    def adapter_slot(self) -> int:
        return self.adapter.slot if self.adapter else 0

    @property
    def page_seed(self) -> bytes:
        """What the keys of its pages depend on besides its tokens."""
        return self.adapter.page_seed if self.adapter else b""

    @property
    def total(self) -> int:
        """Tokens known so far, prompt and output."""
        return self.prompt_length + len(self.output_ids)

    @property
    def pending(self) -> int:
        """Tokens, the unknown one included, that no step has taken yet."""
        return self.total + self.unknown - self.computed

    @property
    def budget(self) -> int:
        """Tokens that may still be generated, EOS included, after those that are known."""
        return self.limit - len(self.output_ids)

    @property
    def plannable(self) -> int:
        """Tokens a step could take of it now: none while its mask is waited for, or when its budget is used up."""
        known = len(self.output_ids) + self.unknown
        if known >= self.limit or self.stage is not RUNNING:
            return 0
        if self.mask_job is not None and not self.mask_job.done():
            return 0
        return self.prompt_length + known - self.computed

    def append(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Add an output token; what its penalties and logprobs keep grows with it."""
        self.output_ids.append(token)
        if self.history is not None:
            self.history.append(token)
        if self.params.logprobs and logprob is not None:
            self.logprobs.append(logprob)

    def tokens(self, start: int, count: int) -> list[int]:
        """At most `count` known tokens from position `start`, across prompt and output."""
        prompt = self.prompt_length
        if start >= prompt:
            return self.output_ids[start - prompt : start - prompt + count]
        head = self.prompt_ids[start : start + count]
        return head + self.output_ids[: count - len(head)]

    def void(self, computed: int) -> None:
        """Ignore what steps in flight sample for it, and go on from `computed` cached tokens."""
        self.epoch += 1
        self.unknown = 0
        self.computed = computed

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        """Final for the user from here on. Closing early is told as `length`: clients rely on that word."""
        assert not self.finished
        self.stage, self.finished = Stage.FINISHED, True
        self.epoch += 1
        self.finish_reason = "length" if reason == "stop" and self.closed_early else reason
        self.error = error
        if self.mask_job is not None:
            self.mask_job.cancel()  # or its turn would come, though nobody waits for it
        self.mask_job = None

    def __repr__(self) -> str:
        return f"<Sequence {self.number} {self.stage.value} {len(self.prompt_ids)}+{len(self.output_ids)} tokens>"
