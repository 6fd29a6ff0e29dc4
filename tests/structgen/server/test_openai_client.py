"""The official `openai` client over loopback: `.create`, `.parse`, `.stream`, and its errors.

With a fake model always, and with the default model where it has been fetched.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import uvicorn
from pydantic import BaseModel, ConfigDict

from structgen import LLM, ModelError
from structgen.models import resolve
from structgen.server import ServerSettings, create_app

openai = pytest.importorskip("openai", reason="the openai client is not installed")

MESSAGES: Any = [{"role": "user", "content": "The Brandenburg Gate stands in Berlin."}]


class Landmark(BaseModel):
    """What the client parses into."""

    model_config = ConfigDict(extra="forbid")

    name: str
    city: Literal["Berlin", "Paris"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"enum": ["Berlin", "Paris"]}},
    "required": ["name", "city"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "landmark", "schema": SCHEMA, "strict": True}}


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Base URL of a server that runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def connected(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def real_client() -> Iterator[Any]:
    try:
        files = resolve(None, progress=False, offline=True)
    except ModelError as error:
        pytest.skip(f"the default model is not fetched: {error}")
    app = create_app(LLM(files.path, progress=False))
    with serving(app) as base_url, connected(base_url) as client:
        yield client


@pytest.fixture
def fake_client(model: Any) -> Iterator[Any]:
    model.engine.script = '{"name": "Brandenburg Gate", "city": "Berlin"}'
    with (
        serving(create_app(model, settings=ServerSettings(grace=0.5, validators=0))) as base_url,
        connected(base_url) as client,
    ):
        yield client


@pytest.fixture(params=["fake", "default model"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("fake_client" if request.param == "fake" else "real_client")


@pytest.fixture
def name(client: Any) -> str:
    (only,) = client.models.list().data
    assert client.models.retrieve(only.id).id == only.id
    return str(only.id)


def test_create(client: Any, name: str) -> None:
    answer = client.chat.completions.create(
        model=name, messages=MESSAGES, response_format=RESPONSE_FORMAT, max_tokens=100, temperature=0
    )
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert Landmark.model_validate_json(answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_parse(client: Any, name: str) -> None:
    answer = client.chat.completions.parse(model=name, messages=MESSAGES, response_format=Landmark, max_tokens=200)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Landmark)
    assert answer.choices[0].message.refusal is None


def test_stream(client: Any, name: str) -> None:
    with client.chat.completions.stream(
        model=name,
        messages=MESSAGES,
        response_format=Landmark,
        max_tokens=200,
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert isinstance(final.choices[0].message.parsed, Landmark)
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_raw_stream_joins_to_the_answer(client: Any, name: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=name, messages=MESSAGES, response_format=RESPONSE_FORMAT, stream=True, n=2, max_tokens=100
        )
    )
    for index in (0, 1):
        pieces = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        text = "".join(choice.delta.content or "" for choice in pieces)
        assert set(json.loads(text)) == {"name", "city"}
        assert pieces[-1].finish_reason in {"stop", "length"}


def test_logprobs(client: Any, name: str) -> None:
    fields: Any = {"model": name, "messages": MESSAGES, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    fields |= {"frequency_penalty": 0.5, "presence_penalty": 0.1, "logit_bias": {"65": -5}}
    (choice,) = client.chat.completions.create(**fields).choices
    told = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in told).decode("utf-8", "replace") == choice.message.content
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 - (name == "fake-model") for each in told)
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
    streamed = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content]
    assert [each.token for each in streamed] == [each.token for each in told]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content


def test_extra_body(client: Any, name: str) -> None:
    answer = client.chat.completions.create(
        model=name, messages=MESSAGES, extra_body={"structured_outputs": {"choice": ["Paris", "Rome"]}}, max_tokens=20
    )
    assert answer.choices[0].message.content in {"Paris", "Rome"}


def test_a_budget_below_the_shortest_answer_is_refused(client: Any, name: str) -> None:
    class Essay(BaseModel):
        model_config = ConfigDict(extra="forbid")

        text: Literal["a" * 400]  # type: ignore[valid-type]

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.parse(model=name, messages=MESSAGES, response_format=Essay, max_tokens=5)
    assert caught.value.code == "max_tokens_too_small"
    assert caught.value.param == "max_tokens"


def test_a_bad_schema_is_a_bad_request_with_a_pointer(client: Any, name: str) -> None:
    broken: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"items": {"type": "stringg"}}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=name, messages=MESSAGES, response_format=broken, stream=stream)
        assert caught.value.param == "/items/type"
        assert caught.value.code == "invalid_schema"
        assert caught.value.request_id


def test_an_unknown_model_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


def test_closing_a_stream_frees_the_request(fake_client: Any, model: Any) -> None:
    model.engine.script = "x" * 1_000_000
    stream = fake_client.chat.completions.create(
        model="fake-model", messages=MESSAGES, stream=True, max_tokens=1_000_000
    )
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.close()
    deadline = time.monotonic() + 20
    while model.engine.running:
        assert time.monotonic() < deadline, "the request is still running"
        time.sleep(0.01)
    assert model.engine.cancelled == 1


def test_many_clients_at_once(fake_client: Any) -> None:
    answers: list[str] = []

    def ask(index: int) -> None:
        choices = [f"option {index}", f"other {index}"]
        answer = fake_client.chat.completions.create(
            model="fake-model", messages=MESSAGES, extra_body={"guided_choice": choices}
        )
        answers.append(answer.choices[0].message.content)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(f"option {index}" for index in range(16))
