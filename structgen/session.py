"""A loaded model and the requests that run on it: tokenizer, engine and compiled grammars under one lock."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from structgen import models
from structgen.constraint import Constraint
from structgen.errors import GenerationError, ModelError, OutputError
from structgen.result import Result, Usage
from structgen.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from structgen.engine import Engine
    from structgen.engine import Sequence as EngineSequence
    from structgen.grammar import CompiledGrammar

DType = Literal["auto", "bfloat16", "float32", "int8"]
KEPT_GRAMMARS = 128


@dataclass
class Request:
    """One prompt on its way through the engine."""

    constraint: Constraint
    sequence: EngineSequence

    @property
    def is_running(self) -> bool:
        return self.sequence.finish_reason is None

    def raise_if_failed(self) -> None:
        if self.sequence.finish_reason == "error":
            raise GenerationError(f"generation failed: {self.sequence.error}")


class Session:
    """Everything is read at first use. Threads may share one: they take turns at the engine, and share its batches."""

    def __init__(
        self,
        model: str | Path | None,
        *,
        dtype: DType,
        max_batch: int,
        max_context: int | None,
        progress: bool,
        adapter_limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.dtype: DType = dtype
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
            model = engine.load_model(self.files.path, dtype=self.dtype)
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
        with self._busy:
            if constraint.key not in self._grammars:
                self._grammars[constraint.key] = constraint.grammar.compile(self.tokenizer.vocabulary)
                if len(self._grammars) > KEPT_GRAMMARS:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(constraint.key)
            return self._grammars[constraint.key]

    def submit(self, messages: Sequence[Message], constraint: Constraint, sampling: dict[str, Any]) -> Request:
        """Start a request. Raises ValueError for bad sampling, MessagesError, GrammarError, BudgetError, AdapterError.

        `sampling` may name the adapter to run it under as well: `adapter`.
        """
        from structgen.engine import SamplingParams

        adapter = sampling.get("adapter")
        params = SamplingParams(**{name: value for name, value in sampling.items() if name != "adapter"})
        self.load()
        prompt = self.tokenizer.chat_prompt(messages)
        compiled = self.compile(constraint)
        matcher = None if compiled is None else compiled.matcher()
        with self._busy:
            sequence = self.engine.submit(prompt, params, matcher, self.tokenizer.eos_token_ids, adapter=adapter)
        return Request(constraint, sequence)

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

    def step(self, requests: Iterable[Request]) -> int:
        """One tick for every request in the engine, whoever submitted it; how many of `requests` still run."""
        with self._busy:
            if self.engine.has_work:
                self.engine.step()
            running = sum(request.is_running for request in requests)
            assert not running or self.engine.has_work, "the engine lost a request"
        return running

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
        text = self.tokenizer.decode(sequence.output_ids)
        if strict:
            request.raise_if_failed()
        if sequence.finish_reason != "error":
            try:
                value = request.constraint.parse(text)
            except OutputError as refusal:
                if strict:
                    raise
                error = refusal.message
        return Result(
            text=text,
            value=value,
            finish_reason=str(sequence.finish_reason),
            closed_early=sequence.closed_early,
            usage=Usage(prompt_tokens=len(sequence.prompt_ids), completion_tokens=len(sequence.output_ids)),
            error=error,
        )
