"""A loaded model and the requests that run on it: tokenizer, engine and compiled grammars under one lock."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from structgen import models
from structgen.answer_text import AnswerText
from structgen.constraint import Constraint
from structgen.errors import GenerationError, ModelError, OutputError
from structgen.logprobs import named
from structgen.result import Result, Usage
from structgen.stop_strings import checked_stops
from structgen.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from structgen.engine import Engine, TokenLogprob
    from structgen.engine import Sequence as EngineSequence
    from structgen.grammar import CompiledGrammar

DType = Literal["auto", "bfloat16", "float32", "int8"]
Device = Literal["auto", "cpu", "cuda"]
KEPT_GRAMMARS = 128
MOST_ANSWERS = 1024  # to one prompt


@dataclass
class Request:
    """One prompt on its way through the engine.

    Attributes:
        answer: the text so far. `Session.step` keeps it up with the sequence.
        logprobs: the engine's, of the tokens that are shown in `answer`.
    """

    constraint: Constraint
    sequence: EngineSequence
    answer: AnswerText
    logprobs: list[TokenLogprob] = field(default_factory=list)
    taken: int = 0

    @property
    def is_running(self) -> bool:
        return self.sequence.finish_reason is None

    @property
    def finish_reason(self) -> str:
        return "stop" if self.answer.stop is not None else str(self.sequence.finish_reason)

    def follow(self) -> None:
        """Bring `answer` up to the sequence's tokens. Once more after the last: that shows what was held back."""
        sequence, was = self.sequence, self.taken
        self.taken = len(sequence.output_ids)
        if self.taken > was:
            shown = self.answer.push(sequence.output_ids[was:], sequence.logprobs[was:])
            self.logprobs += shown.logprobs
        if not self.is_running:
            self.logprobs += self.answer.flush().logprobs

    def raise_if_failed(self) -> None:
        if self.finish_reason == "error":
            raise GenerationError(f"generation failed: {self.sequence.error}")


class Session:
    """Everything is read at first use. Threads may share one: they take turns at the engine, and share its batches."""

    def __init__(
        self,
        model: str | Path | None,
        *,
        dtype: DType,
        device: Device = "auto",
        max_batch: int,
        max_context: int | None,
        progress: bool,
        adapter_limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.dtype: DType = dtype
        self.device: Device = device
        self.max_batch = max_batch
        self.max_context = max_context
        self.progress = progress
        self.adapter_limits = dict(adapter_limits or {})
        self._busy = threading.RLock()
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()

    @cached_property
    def files(self) -> models.ModelFiles:
        """Where the model lies; fetches it when it is a known one that is not there yet. Raises ModelError."""
        return models.resolve(self.model, progress=self.progress)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_path(self.files.path)

    @cached_property
    def engine(self) -> Engine:
        from structgen import engine

        try:
            model = engine.load_model(self.files.path, dtype=self.dtype, device=self.device)
        except engine.ModelError as error:
            raise ModelError(error.message, hint=error.hint) from error
        return engine.Engine(model, max_batch=self.max_batch, max_context=self.max_context, **self.adapter_limits)

    def load(self) -> None:
        """Read the model now, so that two threads that come first do not read it twice."""
        with self._busy:
            _ = self.tokenizer, self.engine

    def compile(self, constraint: Constraint) -> CompiledGrammar | None:
        """The constraint's grammar for this model's vocabulary, kept for the next time; None for free text."""
        if constraint.grammar is None:
            return None
        from structgen.grammar.warm_up import warm_up

        with self._busy:
            if constraint.key not in self._grammars:
                if not self._grammars:
                    warm_up()  # where nothing is compiled yet, a first mask would take so long that it seems to hang
                self._grammars[constraint.key] = constraint.grammar.compile(self.tokenizer.vocabulary)
                if len(self._grammars) > KEPT_GRAMMARS:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(constraint.key)
            return self._grammars[constraint.key]

    def submit(self, messages: Sequence[Message], constraint: Constraint, sampling: dict[str, Any]) -> list[Request]:
        """Start the `n` answers to one prompt. Raises ValueError for bad sampling, MessagesError, GrammarError,
        BudgetError, AdapterError; nothing has been started then.

        `sampling`: fields of SamplingParams, `n`, `stop` and `adapter`, the name of the one to run under.
        """
        from structgen.engine import SamplingParams

        fields = dict(sampling)
        count, stops = _checked_count(fields.pop("n", None)), checked_stops(fields.pop("stop", None))
        adapter = fields.pop("adapter", None)
        params = SamplingParams(**fields)
        self.load()
        prompt = self.tokenizer.chat_prompt(messages)
        compiled = self.compile(constraint)
        requests: list[Request] = []
        with self._busy:
            try:
                for stream in range(count):
                    matcher = None if compiled is None else compiled.matcher()
                    one = replace(params, stream=params.stream + stream)
                    sequence = self.engine.submit(prompt, one, matcher, self.tokenizer.eos_token_ids, adapter=adapter)
                    requests.append(Request(constraint, sequence, AnswerText(self.tokenizer.stream(), stops)))
            except BaseException:
                self.cancel(requests)
                raise
        return requests

    def load_adapter(self, name: str, folder: str | Path) -> None:
        """Make a LoRA adapter known as `name`. Raises ModelError for its files, AdapterError for its name."""
        from structgen import engine

        self.load()
        try:
            weights = self.engine.read_adapter(folder)  # outside the lock: others go on meanwhile
            with self._busy:
                self.engine.load_adapter(name, weights)
        except engine.ModelError as error:
            raise ModelError(error.message, hint=error.hint) from error

    def unload_adapter(self, name: str) -> None:
        """Forget it; requests that use it are finished under it. Raises AdapterError when it is not loaded."""
        self.load()
        with self._busy:
            self.engine.unload_adapter(name)

    def step(self, requests: Sequence[Request]) -> int:
        """One tick for every request in the engine, whoever submitted it; how many of `requests` still run."""
        with self._busy:
            if self.engine.has_work:
                self.engine.step()
            for request in requests:
                self._follow(request)
            running = sum(request.is_running for request in requests)
            assert not running or self.engine.has_work, "the engine lost a request"
        return running

    def _follow(self, request: Request) -> None:
        """Show what is new, and end the request where it meets a stop string."""
        request.follow()
        if request.answer.stop is not None and request.is_running:
            self.engine.cancel(request.sequence)

    def cancel(self, requests: Iterable[Request]) -> None:
        """Free what is still running: after an error, Ctrl-C, or a stream that nobody reads on."""
        with self._busy:
            for request in requests:
                if request.is_running:
                    self.engine.cancel(request.sequence)

    def result(self, request: Request, *, strict: bool) -> Result:
        """A finished request's answer. With `strict`, what has no value raises GenerationError or OutputError."""
        sequence = request.sequence
        value, error = None, sequence.error
        text = request.answer.text
        if strict:
            request.raise_if_failed()
        if request.finish_reason != "error":
            try:
                self._check_whole(request)
                value = request.constraint.parse(text)
            except OutputError as refusal:
                if strict:
                    raise
                error = refusal.message
        return Result(
            text=text,
            value=value,
            finish_reason=request.finish_reason,
            closed_early=sequence.closed_early,
            usage=Usage(prompt_tokens=len(sequence.prompt_ids), completion_tokens=len(sequence.output_ids)),
            stop=request.answer.stop,
            logprobs=named(request.logprobs, self.tokenizer),
            error=error,
        )

    def _check_whole(self, request: Request) -> None:
        """Raises OutputError when a stop string left less than a whole value of the constraint."""
        if request.answer.stop is None or (compiled := self.compile(request.constraint)) is None:
            return
        text, matcher = request.answer.text, compiled.matcher()
        if not (matcher.accept_string(text) and matcher.is_complete):
            message = f"the stop string {request.answer.stop!r} cut the value"
            raise OutputError(message, text=text, hint="leave out `stop`, or the constraint")


def _checked_count(n: int | None) -> int:
    if n is None:
        return 1
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_ANSWERS:
        raise ValueError(f"n must be an integer between 1 and {MOST_ANSWERS}, not {n!r}")
    return n
