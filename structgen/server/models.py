"""What is served, and how it is: models, health, readiness, version."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from structgen.server.errors import ApiError
from structgen.server.state import ServerState, state_of


def adapter_of(state: ServerState, model: str | None) -> str | None:
    """Which adapter a request's `model` means: none for the model's own name. Raises ApiError for an unknown name."""
    if not model or model == state.llm.name:
        return None
    if model in state.adapters:
        return model
    here = ", ".join(f"`{name}`" for name in (state.llm.name, *state.adapters))
    message = f"the model `{model}` is not here; {here} {'are' if state.adapters else 'is'}"
    raise ApiError(message, code="model_not_found", param="model", status=404)


def model_card(state: ServerState, adapter: str | None = None) -> dict[str, Any]:
    card = {"id": state.llm.name, "object": "model", "created": state.started, "owned_by": "structgen"}
    return card if adapter is None else card | {"id": adapter, "parent": state.llm.name}


async def list_models(request: Request) -> dict[str, Any]:
    """GET /v1/models: the model, then its LoRA adapters."""
    state = state_of(request)
    return {"object": "list", "data": [model_card(state, name) for name in (None, *state.adapters)]}


async def get_model(request: Request, model: str) -> dict[str, Any]:
    """GET /v1/models/{model}"""
    state = state_of(request)
    return model_card(state, adapter_of(state, model))


async def health(request: Request) -> dict[str, Any]:
    """GET /health: the process answers. The counters are public; `validation_failures` must be 0."""
    state = state_of(request)
    return {
        "status": "ok",
        "requests_in_flight": state.running.pending if state.running else 0,
        "outputs_validated": state.validated,
        "validation_failures": state.validation_failures,
    }


async def ready(request: Request) -> dict[str, Any]:
    """GET /ready: the model is loaded and the engine makes progress; else 503."""
    running = state_of(request).running
    if running is None or not running.is_making_progress():
        reason = running.failure if running is not None and running.failure else "the engine makes no progress"
        raise ApiError(reason, code="not_ready", status=503, headers={"Retry-After": "5"})
    return {"status": "ready"}


async def version() -> dict[str, str]:
    """GET /version"""
    from structgen import __version__

    return {"version": __version__}
