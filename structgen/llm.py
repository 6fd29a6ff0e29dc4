"""The Python face: a model, and what it generates under a constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from structgen import extract
from structgen.constraint import Constraint, to_constraint
from structgen.logprobs import named
from structgen.result import Piece, Result
from structgen.session import Device, DType, Request, Session
from structgen.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from structgen.engine import Engine

T = TypeVar("T")
Prompt = str | Sequence[Message]


class LLM:
    """A model: the default one, a known name, a .gguf file or a Hugging Face folder.

    Nothing is read or fetched before the first use. Threads may share one: their requests then run side by side.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: DType = "auto",
        device: Device = "auto",
        max_batch: int = 8,
        max_context: int | None = None,
        progress: bool = True,
        max_adapters: int | None = None,
        max_lora_rank: int | None = None,
    ) -> None:
        limits = {"max_adapters": max_adapters, "max_lora_rank": max_lora_rank}
        self.session = Session(
            model,
            dtype=dtype,
            device=device,
            max_batch=max_batch,
            max_context=max_context,
            progress=progress,
            adapter_limits={name: limit for name, limit in limits.items() if limit is not None},
        )

    @property
    def name(self) -> str:
        return self.session.files.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.session.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine, loaded. Whoever drives it directly (the server) must not use `generate` at the same time."""
        self.session.load()
        return self.session.engine

    # -- LoRA adapters ------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names that `adapter=` takes now."""
        return self.engine.adapters

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter (a folder that PEFT saved); `generate(..., adapter=name)` then runs under it.

        Raises ModelError when it cannot be used with this model, AdapterError when the name or all slots are taken.
        """
        self.session.load_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. What is being generated with it is finished; its room is free after that."""
        self.session.unload_adapter(name)

    # -- one answer -------------------------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: Prompt, output_type: Any = ..., *, n: int, return_result: Literal[True], **options: Any
    ) -> list[Result]: ...

    @overload
    def generate(
        self, prompt: Prompt, output_type: type[T], *, n: int, return_result: Literal[False] = ..., **options: Any
    ) -> list[T]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        output_type: Any = ...,
        *,
        return_result: Literal[True],
        **options: Any,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        output_type: type[T],
        *,
        return_result: Literal[False] = ...,
        **options: Any,
    ) -> T: ...

    @overload
    def generate(self, prompt: Prompt, output_type: Any = ..., **options: Any) -> Any: ...

    def generate(
        self,
        prompt: Prompt,
        output_type: Any = None,
        *,
        describe: bool = True,
        return_result: bool = False,
        n: int | None = None,
        **sampling: Any,
    ) -> Any:
        """The answer to a text or a list of messages, in the shape of `output_type`, as a value of that type.

        `describe`: tell the model the schema's fields and their descriptions, in the prompt. `return_result`: a Result
        instead of the bare value.
        `n`: so many answers, as a list (of one, for 1); they take the streams 0 to n - 1 of `seed`.
        `sampling`: the fields of SamplingParams (max_tokens, temperature, top_k, top_p, min_p, repetition_penalty,
        presence_penalty, frequency_penalty, logit_bias, seed, logprobs, top_logprobs ...), `stop`: a text, or
        several; the answer ends before the first that appears, with finish_reason "stop"; and `adapter`, the name of a
        loaded adapter.

        Raises BudgetError when `max_tokens` is less than any answer needs, OutputError when the type's own validators
        refuse the answer, or a stop string cut it; AdapterError for an unknown adapter.
        """
        constraint = to_constraint(output_type)
        prompts = [self._prompt(prompt, constraint, describe)]
        return self._answers(prompts, [constraint], return_result, sampling | {"n": n})[0]

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
        """One answer per prompt (a list of them with `n`), in their order, generated side by side; see `generate`.

        `on_finished` is called once for each answer that is done.
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
    ) -> Iterator[Piece]:
        """The answer's text in pieces as they come, whole characters only. Closing the iterator frees the request.

        Each piece is a string; with `logprobs` its attribute of that name holds those of the tokens that begin in it.
        `sampling` is as in `generate`, but for `n`: a stream is one answer.
        """
        if sampling.pop("n", None) not in (None, 1):
            raise ValueError("n must be 1 in a stream")
        constraint = to_constraint(output_type)
        messages = self._prompt(prompt, constraint, describe)
        (request,) = self.session.submit(messages, constraint, sampling)
        seen = told = 0
        try:
            running = 1
            while running:
                running = self.session.step([request])
                text, logprobs = request.answer.text[seen:], request.logprobs[told:]
                seen, told = seen + len(text), told + len(logprobs)
                if text or logprobs:
                    yield Piece(text, named(logprobs, self.tokenizer))
        finally:
            self.session.cancel([request])
        request.raise_if_failed()

    # -- extraction -------------------------------------------------------------------------------------------------

    @overload
    def extract(
        self,
        text: str,
        output_type: Any,
        instructions: str | None = ...,
        *,
        return_result: Literal[True],
        **options: Any,
    ) -> Result: ...

    @overload
    def extract(
        self,
        text: str,
        output_type: type[T],
        instructions: str | None = ...,
        *,
        return_result: Literal[False] = ...,
        **options: Any,
    ) -> T: ...

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

    def _answers(
        self,
        prompts: Sequence[Sequence[Message]],
        constraints: Sequence[Constraint],
        return_result: bool,
        sampling: dict[str, Any],
        on_finished: Callable[[], None] | None = None,
    ) -> list[Any]:
        answers: list[list[Request]] = []  # n to each prompt
        requests: list[Request] = []
        try:
            for messages, constraint in zip(prompts, constraints, strict=True):
                answers.append(self.session.submit(messages, constraint, sampling))
                requests += answers[-1]
            running = len(requests)
            while running:
                before, running = running, self.session.step(requests)
                if on_finished is not None:
                    for _ in range(before - running):
                        on_finished()
        finally:
            self.session.cancel(requests)
        found = [[self._answer(request, return_result) for request in group] for group in answers]
        return found if sampling.get("n") is not None else [answer for (answer,) in found]

    def _answer(self, request: Request, return_result: bool) -> Any:
        result = self.session.result(request, strict=not return_result)
        return result if return_result else result.value
