"""What is served, and how it is: models, health, readiness, version."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from structgen.server.errors import ApiError
from structgen.server.state import ServerState, state_of


def _card(state: ServerState) -> dict[str, Any]:
    return {"id": state.llm.name, "object": "model", "created": state.started, "owned_by": "structgen"}


async def list_models(request: Request) -> dict[str, Any]:
    """GET /v1/models"""
    return {"object": "list", "data": [_card(state_of(request))]}


async def get_model(request: Request, model: str) -> dict[str, Any]:
    """GET /v1/models/{model}"""
    state = state_of(request)
    if model != state.llm.name:
        message = f"the model `{model}` is not here; `{state.llm.name}` is"
        raise ApiError(message, code="model_not_found", param="model", status=404)
    return _card(state)


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
