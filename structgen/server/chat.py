"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from structgen.extract import described_messages
from structgen.server.body import read_object
from structgen.server.compiler import CompiledConstraint
from structgen.server.constraints import FIELDS, find_constraint
from structgen.server.disconnect import until_disconnect
from structgen.server.errors import NO_RETRY, ApiError, api_error
from structgen.server.generation import Answer, Generation
from structgen.server.models import adapter_of
from structgen.server.protocol import ChatRequest, parse_chat_request
from structgen.server.shapes import LogprobsTeller, stop_reason
from structgen.server.sse import ChatStream, EventResponse
from structgen.server.state import ServerState, state_of
from structgen.validation.numbers import plain


async def chat_completions(request: Request) -> Response:
    """One chat answer, whole or as server-sent events."""
    state = state_of(request)
    body = await read_object(request, state.settings)
    chat = parse_chat_request(body, state.settings)
    adapter = adapter_of(state, chat.model)
    constraint, generation = await until_disconnect(request, _start(state, chat, adapter))
    finisher = Finisher(state, constraint)
    tell = LogprobsTeller(state.llm.tokenizer if chat.logprobs else None)
    identity = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": adapter or state.llm.name}
    if chat.stream:
        stream = ChatStream(generation, identity, finisher.check, chat.include_usage, tell)
        return EventResponse(stream, state.settings.keep_alive)
    try:
        return JSONResponse(await until_disconnect(request, _whole(generation, identity, finisher, tell)))
    finally:
        generation.cancel()


async def _start(
    state: ServerState, chat: ChatRequest, adapter: str | None
) -> tuple[CompiledConstraint | None, Generation]:
    """Everything that may refuse the request, before the first byte of an answer."""
    spec = find_constraint({name: getattr(chat, name) for name in FIELDS}, state.settings)
    constraint = None if spec is None else await state.compiler.compile(spec)
    messages: list[Any] = [_message(turn.model_dump(exclude_unset=True)) for turn in chat.messages]
    if state.settings.describe and spec is not None and spec.kind == "json":
        messages = described_messages(messages, plain(spec.payload))
    generation = Generation(state.engine)
    try:
        prompt = await asyncio.to_thread(state.llm.tokenizer.chat_prompt, messages)
        await generation.start(
            prompt,
            _sampling(chat, state),
            None if constraint is None else constraint.compiled.matcher,
            state.llm.tokenizer.eos_token_ids,
            state.llm.tokenizer.stream,
            chat.stops,
            adapter,
        )
    except Exception as error:
        raise api_error(error) or error from None
    return constraint, generation


def _message(turn: dict[str, Any]) -> dict[str, Any]:
    """Templates know `system`, not OpenAI's newer name for it."""
    return turn | {"role": "system"} if turn["role"] == "developer" else turn


def _sampling(chat: ChatRequest, state: ServerState) -> Sequence[Any]:
    """Parameters of each of the n answers: they take the streams 0 to n - 1 of the seed."""
    from structgen.engine.sampling_params import SamplingParams

    settings = state.settings
    first = SamplingParams(
        max_tokens=settings.default_max_tokens if chat.budget is None else chat.budget,
        temperature=settings.default_temperature if chat.temperature is None else chat.temperature,
        top_k=max(chat.top_k or 0, 0),
        top_p=1.0 if chat.top_p is None else chat.top_p,
        min_p=chat.min_p or 0.0,
        frequency_penalty=chat.frequency_penalty or 0.0,
        presence_penalty=chat.presence_penalty or 0.0,
        repetition_penalty=1.0 if chat.repetition_penalty is None else chat.repetition_penalty,
        logit_bias=chat.biases,
        logprobs=chat.logprobs,
        top_logprobs=chat.top_logprobs or 0,
        seed=chat.seed,
    )
    return [replace(first, stream=index) for index in range(chat.n or 1)]


class Finisher:
    """Validates finished structured outputs and counts."""

    def __init__(self, state: ServerState, constraint: CompiledConstraint | None) -> None:
        self._state = state
        self._constraint = constraint

    async def check(self, answer: Answer) -> None:
        """Raises ApiError (500) for an output that is complete and yet breaks its constraint: our own fault."""
        cut = answer.cut is not None or (answer.finish_reason == "length" and not answer.stream.closed_early)
        if self._constraint is None or cut:
            return
        reason = await self._constraint.check(answer.text)
        self._state.validated += 1
        if reason is not None:
            self._state.validation_failures += 1
            message = f"the output does not satisfy its constraint: {reason}"
            raise ApiError(message, code="engine_error", status=500, headers=NO_RETRY)


async def _whole(
    generation: Generation, identity: dict[str, Any], finisher: Finisher, tell: LogprobsTeller
) -> dict[str, Any]:
    try:
        async for _ in generation.pieces():
            pass
    except Exception as error:
        raise api_error(error) or error from None
    for answer in generation.answers:
        await finisher.check(answer)
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": tell(answer.logprobs),
            "finish_reason": answer.finish_reason,
            **stop_reason(answer),
        }
        for index, answer in enumerate(generation.answers)
    ]
    return {**identity, "object": "chat.completion", "choices": choices, "usage": generation.usage}
