"""POST /v1/chat/completions against a fake model: shapes, streams, constraints, limits and errors."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from structgen.server import ServerSettings
from structgen.validate import ValidationIssue

URL = "/v1/chat/completions"
SAY_HI = [{"role": "user", "content": "Say hi"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["age", "name"],
    "additionalProperties": False,
}


def ask(client: TestClient, **fields: Any) -> Any:
    return client.post(URL, json={"messages": SAY_HI, **fields})


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


def events(client: TestClient, **fields: Any) -> list[Any]:
    response = ask(client, stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_free_text(client: TestClient) -> None:
    response = ask(client, model="fake-model", user="someone", metadata={"a": "b"}, frequency_penalty=0)
    body = response.json()
    assert response.status_code == 200
    assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
    assert (body["object"], body["model"]) == ("chat.completion", "fake-model")
    message = {"role": "assistant", "content": "Hello, wörld 🙂", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 6, "completion_tokens": 18, "total_tokens": 24}


def test_stream(client: TestClient) -> None:
    chunks = events(client, stream_options={"include_usage": True})
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 6, "completion_tokens": 18, "total_tokens": 24}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [*chunks, usage]}) == 1
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(choice["delta"].get("content", "") for choice in deltas) == "Hello, wörld 🙂"
    assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)
    assert [choice["finish_reason"] for choice in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert deltas[-1]["delta"] == {}


def test_stream_without_usage(client: TestClient) -> None:
    chunks = events(client)
    assert chunks[-1] == "[DONE]"
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks[:-1])


def test_several_answers(client: TestClient, model: Any) -> None:
    choices = ask(client, n=3, seed=5).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [(one.params.seed, one.params.stream) for one in model.engine.submitted] == [(5, 0), (5, 1), (5, 2)]
    chunks = events(client, n=3)[:-1]
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks[:3])
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Hello, wörld 🙂"
        assert mine[-1]["finish_reason"] == "stop"


def test_sampling_reaches_the_engine(client: TestClient, model: Any) -> None:
    ask(client, temperature=0.5, top_p=0.25, max_tokens=3)
    ask(client, max_completion_tokens=4, max_tokens=4)
    ask(client)
    first, second, third = (sequence.params for sequence in model.engine.submitted)
    assert (first.temperature, first.top_p, first.max_tokens) == (0.5, 0.25, 3)
    assert (second.max_tokens, third.max_tokens) == (4, 512)
    assert (third.temperature, third.top_p, third.seed) == (0.0, 1.0, None)


def test_every_sampling_field_reaches_the_engine(client: TestClient, model: Any) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.25,
        "repetition_penalty": 1.5,
    }
    ask(client, **fields, logit_bias={"5": -100, "256": 1.5}, logprobs="raw", top_logprobs=3)
    ask(client, top_k=-1, logit_bias=None, logprobs=False, top_logprobs=0, presence_penalty=0, repetition_penalty=1)
    ask(client, logprobs=True, top_k=1 << 40)
    first, second, third = (sequence.params for sequence in model.engine.submitted)
    assert {name: getattr(first, name) for name in fields} == fields
    assert (dict(first.logit_bias), first.logprobs, first.top_logprobs) == ({5: -100, 256: 1.5}, "raw", 3)
    assert (second.top_k, second.logprobs, second.edits_logits) == (0, None, False)
    assert (third.logprobs, third.top_k) == ("masked", 1 << 40)


def test_logprobs(client: TestClient, model: Any) -> None:
    model.engine.script = "é!"
    choice = ask(client, logprobs=True, top_logprobs=2).json()["choices"][0]
    assert choice["message"]["content"] == "é!"
    assert set(choice["logprobs"]) == {"content", "refusal"}
    first, second, third = choice["logprobs"]["content"]
    assert first == {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3]},
            {"token": "<end>", "logprob": -1.5, "bytes": None},
        ],
    }
    assert (second["bytes"], third["token"]) == ([0xA9], "!")
    assert ask(client, logprobs=True).json()["choices"][0]["logprobs"]["content"][2]["top_logprobs"] == []
    assert ask(client).json()["choices"][0]["logprobs"] is None


def test_streamed_logprobs_go_with_their_text(client: TestClient, model: Any) -> None:
    model.engine.script = "né!\nx\n\n"
    chunks = [chunk["choices"][0] for chunk in events(client, logprobs=True, top_logprobs=1)[:-1]]
    told = [(chunk["delta"].get("content"), chunk["logprobs"]) for chunk in chunks]
    assert told[0] == ("", None)
    spelled = [
        (text, bytes(byte for each in logprobs["content"] for byte in each["bytes"]).decode())
        for text, logprobs in told[1:-1]
    ]
    assert all(text == tokens for text, tokens in spelled)
    assert "".join(text for text, _ in spelled) == model.engine.script
    chunks = [chunk["choices"][0] for chunk in events(client, logprobs=True, stop="\n\n")[:-1]]
    tokens = [each["token"] for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert "".join(tokens[3:]) == "!\nx", "tokens of the stop string are not told"


def test_a_cut_answer_says_length_and_ends_with_whole_characters(client: TestClient) -> None:
    choice = ask(client, max_tokens=9).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "Hello, w\ufffd"


def test_stop_strings_end_the_answer_and_free_the_request(client: TestClient, model: Any) -> None:
    model.engine.script += "x" * 100_000
    choice = ask(client, stop=["wör", "never"], max_tokens=100_000).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello, ", "stop")
    assert choice["stop_reason"] == "wör"
    chunks = events(client, stop=", w", max_tokens=100_000)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "Hello"
    assert chunks[-2]["choices"][0]["stop_reason"] == ", w"
    while client.get("/health").json()["requests_in_flight"]:
        pass
    assert model.engine.cancelled == 2


def test_json_schema(client: TestClient, model: Any) -> None:
    model.engine.script = '{"name": "Ann", "age": 41}'
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": False}}
    choice = ask(client, response_format=response_format).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]) == {"name": "Ann", "age": 41}
    assert list(json.loads(choice["message"]["content"])) == ["name", "age"]
    assert client.get("/health").json()["outputs_validated"] == 1
    assert client.get("/health").json()["validation_failures"] == 0


def test_a_stop_string_may_cut_a_value_and_says_so(client: TestClient, model: Any) -> None:
    model.engine.script = '{"name": "Ann", "age": 41}'
    for fields in ({"guided_json": PERSON}, {"guided_regex": ".*"}):
        choice = ask(client, **fields, stop='", "').json()["choices"][0]
        assert choice["message"]["content"] == '{"name": "Ann'
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", '", "')
    choice = ask(client, guided_json=PERSON, stop="never").json()["choices"][0]
    assert "stop_reason" not in choice
    health = client.get("/health").json()
    assert (health["outputs_validated"], health["validation_failures"]) == (1, 0)


def test_a_model_that_wants_otherwise_still_obeys(client: TestClient, model: Any) -> None:
    model.engine.script = "Sure! Here is your JSON:"
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    chunks = events(client, response_format={"type": "json_schema", "schema": schema})
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert isinstance(json.loads(text)["ok"], bool)


def test_the_budget_closes_early_and_says_length(client: TestClient, model: Any) -> None:
    model.engine.script = '{"name": "' + "x" * 500
    choice = ask(client, max_tokens=40, response_format={"type": "json_schema", "schema": PERSON}).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert set(json.loads(choice["message"]["content"])) == {"name", "age"}


@pytest.mark.parametrize(
    ("fields", "script", "text"),
    [
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "xyz", "aaa"),
        ({"guided_regex": "(?P<word>b)c"}, "bc", "bc"),
        ({"guided_choice": ["yes", "no"]}, "no", "no"),
        ({"structured_outputs": {"choice": ["é", "à"]}}, "à", "à"),
    ],
)
def test_other_constraints(client: TestClient, model: Any, fields: dict[str, Any], script: str, text: str) -> None:
    model.engine.script = script
    assert ask(client, **fields).json()["choices"][0]["message"]["content"] == text


def test_json_object(client: TestClient, model: Any) -> None:
    model.engine.script = '{"a": [1, {"b": null}]}'
    choice = ask(client, response_format={"type": "json_object"}).json()["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"a": [1, {"b": None}]}


def test_the_schema_is_described_in_the_prompt(client: TestClient, model: Any) -> None:
    model.engine.script = '{"name": "Ann", "age": 41}'
    ask(client, response_format={"type": "json_schema", "schema": PERSON})
    assert "- age (integer)" in model.tokenizer.seen[-1][-1]["content"]
    ask(client)
    assert model.tokenizer.seen[-1] == [{"role": "user", "content": "Say hi"}]


def test_developer_messages_become_system_messages(client: TestClient, model: Any) -> None:
    client.post(URL, json={"messages": [{"role": "developer", "content": "x"}, *SAY_HI]})
    assert [message["role"] for message in model.tokenizer.seen[-1]] == ["system", "user"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "conflicting_fields"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 10**9}, "n", "n_too_large"),
        ({"stop": ["x"] * 10_000}, "stop", "invalid_stop"),
        ({"stop": ""}, "stop", "invalid_stop"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"257": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "logit_bias_too_large"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_value"),
        ({"presence_penalty": -2.5}, "presence_penalty", "invalid_value"),
        ({"presence_penalty": "1"}, "presence_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"top_k": 2.5}, "top_k", "invalid_value"),
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"logprobs": 5}, "logprobs", "invalid_value"),
        ({"logprobs": "both"}, "logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "conflicting_fields"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_field"),
        ({"guided_yaml": "x"}, "guided_yaml", "unknown_field"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "conflicting_constraints"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "unsupported_constraint",
        ),
        (
            {"guided_json": {"type": "object", "properties": {"a": {"type": "stringg"}}}},
            "/properties/a/type",
            "invalid_schema",
        ),
        ({"guided_json": {"$ref": "http://example.com/x"}}, "/$ref", None),
        ({"guided_json": {"$ref": "file:///etc/passwd"}}, "/$ref", None),
        ({"guided_regex": "("}, "guided_regex", "invalid_grammar"),
        ({"guided_json": PERSON, "max_tokens": 3}, "max_tokens", "max_tokens_too_small"),
    ],
)
def test_mistakes_are_400_and_name_the_field(
    client: TestClient, fields: dict[str, Any], param: str, code: str | None
) -> None:
    response = ask(client, **fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert ask(client).status_code == 200


def test_an_unsatisfiable_schema_is_refused(client: TestClient) -> None:
    response = ask(client, guided_json={"type": "integer", "minimum": 5, "maximum": 4})
    assert response.status_code == 400
    assert error_of(response)["code"] == "unsatisfiable_schema"


def test_another_model_is_not_found(client: TestClient) -> None:
    response = ask(client, model="gpt-9")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_tools_that_are_switched_off_do_no_harm(client: TestClient) -> None:
    assert ask(client, tools=[{"type": "function"}], tool_choice="none").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'{"temperature": NaN}', 400, "invalid_json"),
        (b'{"n": 1, "n": 2}', 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"a":' + b"[" * 100_000, 400, "invalid_json"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 400, "body_too_deep"),
        (b'{"a": "' + b"x" * (9 << 20) + b'"}', 413, "body_too_large"),
    ],
)
def test_bodies(client: TestClient, body: bytes, status: int, code: str) -> None:
    response = client.post(URL, content=body)
    assert response.status_code == status
    assert error_of(response)["code"] == code


def test_a_body_without_a_length_is_limited_too(client: TestClient) -> None:
    response = client.post(URL, content=(b" " * (1 << 20) for _ in range(9)))
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"


def test_an_engine_fault_is_told_and_the_next_request_works(client: TestClient, model: Any) -> None:
    model.engine.fault = RuntimeError("NaN logits")
    response = ask(client)
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert error_of(response)["code"] == "engine_error"
    assert "NaN logits" in error_of(response)["message"]
    assert ask(client).status_code == 200


def test_a_fault_after_the_headers_is_an_event(client: TestClient, model: Any) -> None:
    model.engine.fault = RuntimeError("NaN logits")
    chunks = events(client)
    assert chunks[-1]["error"]["code"] == "engine_error"
    assert "[DONE]" not in chunks


def test_an_output_that_breaks_its_constraint_is_never_sent_as_good(
    client: TestClient, model: Any, monkeypatch: Any
) -> None:
    model.engine.script = "no"

    async def refuse(self: Any, pattern: str, text: str) -> list[ValidationIssue]:
        return [ValidationIssue("", "made up", "")]

    monkeypatch.setattr("structgen.server.validation_pool.ValidationPool.pattern_issues", refuse)
    response = ask(client, guided_regex="yes|no")
    assert response.status_code == 500
    assert "made up" in error_of(response)["message"]
    assert client.get("/health").json()["validation_failures"] == 1
    assert events(client, guided_regex="yes|no")[-1]["error"]["code"] == "engine_error"


class TestWhenBusy:
    @pytest.fixture
    def settings(self) -> ServerSettings:
        return ServerSettings(max_pending=2, grace=0.5, validators=0)

    def test_too_many_are_refused_with_retry_after(self, client: TestClient, model: Any) -> None:
        model.engine.gate.clear()
        threading.Timer(0.1, model.engine.gate.set).start()
        response = ask(client, n=3)
        assert response.status_code == 429
        assert response.headers["retry-after"]
        assert error_of(response)["code"] == "overloaded"
        assert error_of(response)["type"] == "rate_limit_error"
        while client.get("/health").json()["requests_in_flight"]:
            pass
        assert ask(client, n=2).status_code == 200


class TestWhenSlow:
    @pytest.fixture
    def settings(self) -> ServerSettings:
        return ServerSettings(keep_alive=0.01, grace=0.5, validators=0)

    def test_silence_is_filled_with_comments(self, client: TestClient, model: Any) -> None:
        model.engine.gate.clear()
        threading.Timer(0.1, model.engine.gate.set).start()
        text = ask(client, stream=True).text
        assert ": keep-alive\n\n" in text
        assert text.endswith("data: [DONE]\n\n")
