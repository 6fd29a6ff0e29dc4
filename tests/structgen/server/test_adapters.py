"""LoRA adapters over HTTP: a model name selects one, and two endpoints change them where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from structgen.server import ServerSettings, create_app

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def open_client(model: Any) -> Iterator[TestClient]:
    settings = ServerSettings(grace=0.5, validators=0, adapter_updates=True)
    with TestClient(create_app(model, settings=settings), raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient, name: str | None, **fields: Any) -> Any:
    return client.post("/v1/chat/completions", json={**BODY, "model": name, **fields})


def test_the_model_name_selects_the_adapter(client: TestClient, model: Any) -> None:
    model.engine.load_adapter("invoices", "a folder")
    for name, adapter in (("invoices", "invoices"), ("fake-model", None), (None, None)):
        answer = ask(client, name)
        assert answer.status_code == 200
        assert answer.json()["model"] == (adapter or model.name)
        assert model.engine.submitted[-1].adapter == adapter
    assert '"model":"invoices"' in ask(client, "invoices", stream=True).text.replace(" ", "")


def test_models_lists_the_adapters(client: TestClient, model: Any) -> None:
    model.engine.load_adapter("org/invoices", "a folder")
    listed = client.get("/v1/models").json()["data"]
    assert [(card["id"], card.get("parent")) for card in listed] == [
        ("fake-model", None),
        ("org/invoices", "fake-model"),
    ]
    assert client.get("/v1/models/org/invoices").json() == listed[1]


def test_an_unknown_name_tells_what_is_here(client: TestClient, model: Any) -> None:
    model.engine.load_adapter("invoices", "a folder")
    answer = ask(client, "other")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "`fake-model`, `invoices` are" in error["message"]


def test_an_adapter_that_goes_between_the_check_and_the_engine_is_404(client: TestClient, model: Any) -> None:
    model.engine.load_adapter("invoices", "a folder")
    prompt = model.tokenizer.chat_prompt

    def unload_first(messages: Any) -> Any:
        model.engine.unload_adapter("invoices")
        return prompt(messages)

    model.tokenizer.chat_prompt = unload_first
    answer = ask(client, "invoices")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_clients_change_nothing_by_default(client: TestClient, model: Any, path: str) -> None:
    answer = client.post(path, json={"lora_name": "a", "lora_path": "a folder"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "adapter_updates_disabled")
    assert model.engine.adapters == ()


def test_load_use_unload(open_client: TestClient) -> None:
    card = open_client.post(LOAD, json={"lora_name": "a", "lora_path": "a folder"})
    assert (card.status_code, card.json()["id"], card.json()["parent"]) == (200, "a", "fake-model")
    assert ask(open_client, "a").status_code == 200
    gone = open_client.post(UNLOAD, json={"lora_name": "a"})
    assert (gone.status_code, gone.json()) == (200, {"id": "a", "object": "model", "deleted": True})
    assert ask(open_client, "a").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (LOAD, {"lora_name": "a"}, 400, "invalid_value", "lora_path"),
        (LOAD, {"lora_name": 5, "lora_path": "x"}, 400, "invalid_value", "lora_name"),
        (LOAD, {"lora_name": "b", "lora_path": "x", "more": 1}, 400, "unknown_field", "more"),
        (LOAD, {"lora_name": "b", "lora_path": "nowhere"}, 400, "invalid_adapter", "lora_path"),
        (LOAD, {"lora_name": "here", "lora_path": "x"}, 400, "invalid_adapter", "lora_name"),
        (LOAD, {"lora_name": "fake-model", "lora_path": "x"}, 400, "invalid_adapter", "lora_name"),
        (UNLOAD, {"lora_name": "b"}, 404, "model_not_found", "lora_name"),
        (UNLOAD, {}, 400, "invalid_value", "lora_name"),
    ],
)
def test_mistakes_name_their_field(
    open_client: TestClient, model: Any, path: str, body: Any, status: int, code: str, param: str
) -> None:
    model.engine.load_adapter("here", "a folder")
    answer = open_client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert model.engine.adapters == ("here",)
