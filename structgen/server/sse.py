"""Server-sent events of the chat API, in the order that OpenAI's client expects."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from structgen.server.errors import NO_RETRY, ApiError, api_error
from structgen.server.generation import Answer, Generation, Piece
from structgen.server.shapes import LogprobsTeller, stop_reason

log = logging.getLogger("structgen.server")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def data(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventResponse(StreamingResponse):
    """A stream of events that frees its request when it ends, also when the client left before the first byte."""

    def __init__(self, stream: ChatStream, keep_alive: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(stream.events(keep_alive), media_type="text/event-stream", headers=headers)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.cancel()


class ChatStream:
    """Chunks of one generation.

    Order: a role chunk for every answer, by index; text as it comes; for each answer a chunk with its finish reason and
    no text; the usage, when asked for; [DONE]. After the headers an error can only be an event, and ends the stream.
    """

    def __init__(
        self,
        generation: Generation,
        identity: dict[str, Any],
        check: Callable[[Answer], Awaitable[None]],
        include_usage: bool,
        tell: LogprobsTeller,
    ) -> None:
        self._generation = generation
        self._head = {**identity, "object": "chat.completion.chunk"}
        self._check = check
        self._include_usage = include_usage
        self._tell = tell

    def cancel(self) -> None:
        self._generation.cancel()

    async def events(self, keep_alive: float) -> AsyncIterator[bytes]:
        try:
            for index in range(len(self._generation.answers)):
                yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
            async for piece in self._generation.pieces(keep_alive):
                if piece is None:
                    yield KEEP_ALIVE
                    continue
                async for event in self._events_of(piece):
                    yield event
            if self._include_usage:
                yield data({**self._head, "choices": [], "usage": self._generation.usage})
            yield DONE
        except Exception as error:
            yield data(_told(error).body)
        finally:
            self.cancel()

    async def _events_of(self, piece: Piece) -> AsyncIterator[bytes]:
        if piece.text or piece.logprobs:
            yield self._chunk(piece.choice, {"content": piece.text}, logprobs=self._tell(piece.logprobs))
        if piece.finish_reason is not None:
            answer = self._generation.answers[piece.choice]
            await self._check(answer)
            yield self._chunk(piece.choice, {}, finish_reason=piece.finish_reason, **stop_reason(answer))

    def _chunk(self, index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        usage = {"usage": None} if self._include_usage else {}
        return data({**self._head, "choices": [choice], **usage})


def _told(error: Exception) -> ApiError:
    answer = api_error(error)
    if answer is None:
        log.error("a stream failed: %s", error, exc_info=error)
        message = "the server failed at this request; its log has the reason"
        answer = ApiError(message, code="internal_error", status=500, headers=NO_RETRY)
    return answer
