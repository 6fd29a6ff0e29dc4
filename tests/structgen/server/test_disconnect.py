"""A client that leaves frees its request, at whatever stage; spoken in raw ASGI, where leaving is a message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from structgen.server import ServerSettings, create_app

FOREVER = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1_000_000}


class Client:
    """One request; `gone` is when the client hangs up."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.gone = asyncio.Event()
        self.sent: list[Message] = []
        self._body: bytes | None = json.dumps(body).encode()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/chat/completions",
    "raw_path": b"/v1/chat/completions",
    "query_string": b"",
    "root_path": "",
    "scheme": "http",
    "headers": [],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 2),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_leaving_frees_the_request(model: Any, stream: bool, at_once: bool) -> None:
    model.engine.script = "x" * 1_000_000
    app = create_app(model, settings=ServerSettings(grace=0.5, validators=0))

    async def scenario() -> list[Message]:
        async with app.router.lifespan_context(app):
            client = Client({**FOREVER, "stream": stream})
            if at_once:
                client.gone.set()
            request = asyncio.create_task(app({**SCOPE}, client.receive, client.send))
            if not at_once:
                while not model.engine.running:
                    await asyncio.sleep(0.001)
            client.gone.set()
            await asyncio.wait_for(request, 10)
            engine = app.state.server.engine
            while engine.pending:
                await asyncio.sleep(0.001)
            return client.sent

    sent = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert not model.engine.running
    assert not any(b"[DONE]" in message.get("body", b"") for message in sent)
