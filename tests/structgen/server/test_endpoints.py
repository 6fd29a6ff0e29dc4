"""The small endpoints, and that every error has the one shape."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from structgen import __version__
from structgen.server import ServerSettings, create_app


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake-model"]
    assert client.get("/v1/models/fake-model").json() == listed["data"][0]
    missing = client.get("/v1/models/meta/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_health_ready_version(client: TestClient, model: Any) -> None:
    assert client.get("/health").json() == {
        "status": "ok",
        "requests_in_flight": 0,
        "outputs_validated": 0,
        "validation_failures": 0,
    }
    assert client.get("/ready").json() == {"status": "ready"}
    assert client.get("/version").json() == {"version": __version__}


def test_not_ready_before_the_start(model: Any) -> None:
    client = TestClient(create_app(model, settings=ServerSettings(validators=0)))
    response = client.get("/ready")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert client.get("/health").status_code == 200


def test_not_ready_when_the_engine_is_gone(client: TestClient, model: Any) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    model.engine.step = broken
    for _ in range(3):
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    response = client.get("/ready")
    assert response.status_code == 503
    assert "out of memory" in response.json()["error"]["message"]
    refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    model.engine.running.clear()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
def test_errors_of_the_framework_have_our_shape(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"].startswith("req_")


def test_a_fault_of_ours_is_500_without_details(client: TestClient, model: Any) -> None:
    def broken(messages: Any) -> None:
        raise KeyError("secret")

    model.tokenizer.chat_prompt = broken
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"]


def test_request_ids(client: TestClient) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/health", headers={"x-request-id": "no spaces!"}).headers["x-request-id"].startswith("req_")


def test_compile(client: TestClient) -> None:
    body = client.post("/v1/grammar/compile", json={"schema": {"type": "boolean"}}).json()
    assert (body["enforceable"], body["kind"], body["diagnostics"]) == (True, "json", [])
    assert body["min_tokens"] == 5
    assert body["sizes"]
    body = client.post("/v1/grammar/compile", json={"guided_choice": ["ab"]}).json()
    assert (body["enforceable"], body["kind"], body["min_tokens"]) == (True, "choice", 3)


def test_compile_tells_what_is_wrong(client: TestClient) -> None:
    body = client.post("/v1/grammar/compile", json={"schema": {"items": {"type": "strin"}}}).json()
    assert body["enforceable"] is False
    assert body["diagnostics"][0]["pointer"] == "/items/type"
    assert body["diagnostics"][0]["code"] == "invalid_schema"


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "schema"), ({"schemas": {}}, "schemas"), ({"schema": 5}, "response_format.schema")],
)
def test_compile_mistakes(client: TestClient, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/grammar/compile", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_validate(client: TestClient) -> None:
    schema = {"properties": {"a": {"multipleOf": 0.1}, "d": {"format": "date"}}}
    assert client.post("/v1/validate", json={"schema": schema, "instance": {"a": 0.3}}).json() == {
        "valid": True,
        "issues": [],
    }
    body = client.post("/v1/validate", json={"schema": schema, "text": '{"a": 0.35}'}).json()
    assert body["valid"] is False
    assert body["issues"][0]["pointer"] == "/a"
    assert body["issues"][0]["schema_pointer"] == "/properties/a/multipleOf"
    wrong = {"schema": schema, "instance": {"d": "x"}}
    assert not client.post("/v1/validate", json=wrong).json()["valid"]
    assert client.post("/v1/validate", json={**wrong, "format": "annotate"}).json()["valid"]
    assert not client.post("/v1/validate", json={"schema": True, "text": '{"a": 1, "a": 2}'}).json()["valid"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"instance": 1}, "schema"),
        ({"schema": True}, "instance"),
        ({"schema": True, "instance": 1, "text": "1"}, "instance"),
        ({"schema": True, "text": 1}, "text"),
        ({"schema": True, "text": "1", "format": "maybe"}, "format"),
        ({"schema": True, "text": "1", "extra": 1}, "extra"),
        ({"schema": {"type": "strin"}, "text": "1"}, "/type"),
        ({"schema": {"$ref": "http://example.com"}, "text": "1"}, "/$ref"),
    ],
)
def test_validate_mistakes(client: TestClient, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/validate", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
