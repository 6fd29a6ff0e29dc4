"""LoRA adapters at run time: the two endpoints that vLLM has, behind a setting that is off by default."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from structgen.server.body import read_object
from structgen.server.errors import ApiError, api_error
from structgen.server.models import model_card
from structgen.server.state import ServerState, state_of


async def load_adapter(request: Request) -> dict[str, Any]:
    """POST /v1/load_lora_adapter {lora_name, lora_path}: from then on `model` may name it."""
    from structgen.engine.errors import ModelError

    state = _state(request)
    name, path = await _fields(request, state, "lora_name", "lora_path")
    if name == state.llm.name:
        raise ApiError(f"`{name}` is the model's own name", code="invalid_adapter", param="lora_name")
    try:
        await state.engine.load_adapter(name, path)
    except ModelError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise ApiError(f"{error.message}{hint}", code="invalid_adapter", param="lora_path") from None
    except Exception as error:
        raise _named(error) from None
    return model_card(state, name)


async def unload_adapter(request: Request) -> dict[str, Any]:
    """POST /v1/unload_lora_adapter {lora_name}: refused from now on; requests that use it are finished under it."""
    state = _state(request)
    (name,) = await _fields(request, state, "lora_name")
    try:
        await state.engine.unload_adapter(name)
    except Exception as error:
        raise _named(error) from None
    return {"id": name, "object": "model", "deleted": True}


def _state(request: Request) -> ServerState:
    state = state_of(request)
    if not state.settings.adapter_updates:
        message = "adapters are fixed on this server; it must be started with --allow-lora-updates to change them"
        raise ApiError(message, code="adapter_updates_disabled", status=403)
    return state


async def _fields(request: Request, state: ServerState, *names: str) -> list[str]:
    body = await read_object(request, state.settings)
    for name in body:
        if name not in names:
            raise ApiError(f"unknown field `{name}`", code="unknown_field", param=name)
    for name in names:
        if not isinstance(body.get(name), str) or not body[name]:
            raise ApiError(f"`{name}` must be a text", code="invalid_value", param=name)
    return [body[name] for name in names]


def _named(error: Exception) -> Exception:
    """An engine's refusal as the client's error, about the field that these endpoints have."""
    answer = api_error(error)
    if answer is not None and answer.param == "model":
        answer.param = "lora_name"
    return answer or error
