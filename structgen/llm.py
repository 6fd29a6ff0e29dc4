"""The Python face: a model, and what it generates under a constraint."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from structgen import extract, models
from structgen.constraint import Constraint, to_constraint
from structgen.errors import GenerationError, OutputError
from structgen.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from structgen.engine import Engine
    from structgen.engine import Sequence as EngineSequence
    from structgen.grammar import CompiledGrammar

T = TypeVar("T")
Prompt = str | Sequence[Message]
DType = Literal["auto", "bfloat16", "float32", "int8"]
KEPT_GRAMMARS = 128


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


@dataclass
class _Request:
    """One prompt on its way through the engine."""

    constraint: Constraint
    sequence: EngineSequence


class LLM:
    """A model: the default one, a known name, a .gguf file or a Hugging Face folder.

    Nothing is read or fetched before the first use. Threads may share one: their requests then run side by side.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: DType = "auto",
        max_batch: int = 8,
        max_context: int | None = None,
        progress: bool = True,
    ) -> None:
        self.model = model
        self.dtype: DType = dtype
        self.max_batch = max_batch
        self.max_context = max_context
        self.progress = progress
        self._busy = threading.Lock()
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()

    @cached_property
    def files(self) -> models.ModelFiles:
        """Where the model lies; fetches it when it is a known one that is not there yet. Raises ModelError."""
        return models.resolve(self.model, progress=self.progress)

    @property
    def name(self) -> str:
        return self.files.name

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_path(self.files.path)

    @cached_property
    def engine(self) -> Engine:
        """Loads the weights. Whoever drives it directly (the server) must not use `generate` at the same time."""
        from structgen.engine import Engine, load_model

        model = load_model(self.files.path, dtype=self.dtype)
        return Engine(model, max_batch=self.max_batch, max_context=self.max_context)

    # -- one answer -------------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: Prompt, output_type: type[T], *, describe: bool = ..., **sampling: Any) -> T: ...

    @overload
    def generate(self, prompt: Prompt, output_type: Any = ..., *, describe: bool = ..., **sampling: Any) -> Any: ...

    def generate(
        self,
        prompt: Prompt,
        output_type: Any = None,
        *,
        describe: bool = True,
        return_result: bool = False,
        **sampling: Any,
    ) -> Any:
        """The answer to a text or a list of messages, in the shape of `output_type`, as a value of that type.

        `describe`: tell the model the schema's fields and their descriptions, in the prompt. `sampling`: max_tokens,
        temperature, top_p, seed. `return_result`: a Result instead of the bare value. Raises BudgetError when
        `max_tokens` is less than any answer needs, OutputError when the type's own validators refuse the answer.
        """
        constraint = to_constraint(output_type)
        return self._answers([self._prompt(prompt, constraint, describe)], [constraint], return_result, sampling)[0]

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        output_type: Any = None,
        *,
        describe: bool = True,
        return_result: bool = False,
        on_finished: Callable[[], None] | None = None,
        **sampling: Any,
    ) -> list[Any]:
        """One answer per prompt, in their order, generated side by side; see `generate`.

        `on_finished` is called once for each that is done.
        """
        constraint = to_constraint(output_type)
        pairs = [(prompt, constraint) for prompt in prompts]
        return self.generate_each(
            pairs, describe=describe, return_result=return_result, on_finished=on_finished, **sampling
        )

    def generate_each(
        self,
        pairs: Iterable[tuple[Prompt, Any]],
        *,
        describe: bool = True,
        return_result: bool = False,
        on_finished: Callable[[], None] | None = None,
        **sampling: Any,
    ) -> list[Any]:
        """Like `generate_batch`, for (prompt, output type) pairs."""
        typed = [(prompt, to_constraint(output_type)) for prompt, output_type in pairs]
        prompts = [self._prompt(prompt, constraint, describe) for prompt, constraint in typed]
        return self._answers(prompts, [constraint for _, constraint in typed], return_result, sampling, on_finished)

    def stream(
        self, prompt: Prompt, output_type: Any = None, *, describe: bool = True, **sampling: Any
    ) -> Iterator[str]:
        """The answer's text in pieces as they come, whole characters only. Closing the iterator frees the request."""
        constraint = to_constraint(output_type)
        messages = self._prompt(prompt, constraint, describe)
        request = self._submit(messages, constraint, sampling)
        sequence, decoder, seen = request.sequence, self.tokenizer.stream(), 0
        try:
            while sequence.finish_reason is None:
                self._step([request])
                new = sequence.output_ids[seen:]
                seen += len(new)
                if piece := decoder.push(new):
                    yield piece
            if piece := decoder.flush():
                yield piece
        finally:
            self._cancel([request])
        _raise_for(sequence)

    # -- extraction -------------------------------------------------------------------------------------------------

    @overload
    def extract(self, text: str, output_type: type[T], instructions: str | None = ..., **options: Any) -> T: ...

    @overload
    def extract(self, text: str, output_type: Any, instructions: str | None = ..., **options: Any) -> Any: ...

    def extract(
        self,
        text: str,
        output_type: Any,
        instructions: str | None = None,
        *,
        describe: bool = True,
        return_result: bool = False,
        **sampling: Any,
    ) -> Any:
        """What `output_type` names, found in `text`; `instructions` are your own words on what to look for."""
        return self.extract_batch(
            [(text, output_type)], instructions, describe=describe, return_result=return_result, **sampling
        )[0]

    def extract_batch(
        self,
        pairs: Iterable[tuple[str, Any]],
        instructions: str | None = None,
        *,
        describe: bool = True,
        return_result: bool = False,
        on_finished: Callable[[], None] | None = None,
        **sampling: Any,
    ) -> list[Any]:
        """One record per (text, output type), side by side and in order; see `extract`."""
        prompts, constraints = [], []
        for text, output_type in pairs:
            constraint = to_constraint(output_type)
            prompts.append(extract.extraction_messages(text, constraint.schema, instructions, describe=describe))
            constraints.append(constraint)
        return self._answers(prompts, constraints, return_result, sampling, on_finished)

    # -- the way through the engine -----------------------------------------------------------------------------------

    @staticmethod
    def _prompt(prompt: Prompt, constraint: Constraint, describe: bool) -> Sequence[Message]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return extract.described_messages(messages, constraint.schema) if describe else messages

    def compile(self, constraint: Constraint) -> CompiledGrammar | None:
        """The constraint's grammar for this model's vocabulary, kept for the next time; None for free text."""
        if constraint.grammar is None:
            return None
        if constraint.key not in self._grammars:
            self._grammars[constraint.key] = constraint.grammar.compile(self.tokenizer.vocabulary)
            if len(self._grammars) > KEPT_GRAMMARS:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(constraint.key)
        return self._grammars[constraint.key]

    def _submit(self, messages: Sequence[Message], constraint: Constraint, sampling: dict[str, Any]) -> _Request:
        from structgen.engine import SamplingParams

        prompt, params, ends = (
            self.tokenizer.chat_prompt(messages),
            SamplingParams(**sampling),
            self.tokenizer.eos_token_ids,
        )
        with self._busy:
            compiled = self.compile(constraint)
            matcher = None if compiled is None else compiled.matcher()
            sequence = self.engine.submit(prompt, params, matcher, ends)
        return _Request(constraint, sequence)

    def _answers(
        self,
        prompts: Sequence[Sequence[Message]],
        constraints: Sequence[Constraint],
        return_result: bool,
        sampling: dict[str, Any],
        on_finished: Callable[[], None] | None = None,
    ) -> list[Any]:
        requests: list[_Request] = []
        try:
            for messages, constraint in zip(prompts, constraints, strict=True):
                requests.append(self._submit(messages, constraint, sampling))
            running = len(requests)
            while running:
                before, running = running, self._step(requests)
                for _ in range(before - running):
                    (on_finished or _nothing)()
        finally:
            self._cancel(requests)
        results = [self._result(request, strict=not return_result) for request in requests]
        return list(results) if return_result else [result.value for result in results]

    def _cancel(self, requests: Iterable[_Request]) -> None:
        """Frees what is still running: after an error, Ctrl-C, or a stream that nobody reads on."""
        with self._busy:
            for request in requests:
                if request.sequence.finish_reason is None:
                    self.engine.cancel(request.sequence)

    def _step(self, requests: Iterable[_Request]) -> int:
        """One tick for every request in the engine, whoever submitted it: threads take turns, and share batches.

        Returns how many of `requests` are still running.
        """
        with self._busy:
            if self.engine.has_work:
                self.engine.step()
            running = sum(request.sequence.finish_reason is None for request in requests)
            assert not running or self.engine.has_work, "the engine lost a request"
        return running

    def _result(self, request: _Request, *, strict: bool) -> Result:
        sequence = request.sequence
        value, error = None, sequence.error
        text = self.tokenizer.decode(sequence.output_ids)
        if strict:
            _raise_for(sequence)
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


def _nothing() -> None:
    pass


def _raise_for(sequence: EngineSequence) -> None:
    if sequence.finish_reason == "error":
        raise GenerationError(f"generation failed: {sequence.error}")
