"""The application: routes, errors, and the life of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from structgen.server import adapters, chat, models, schema_tools
from structgen.server.compiler import GrammarCompiler
from structgen.server.errors import install_error_handlers
from structgen.server.model import ModelLike
from structgen.server.request_id import RequestIdMiddleware
from structgen.server.settings import ServerSettings
from structgen.server.state import ServerState
from structgen.server.validation_pool import ValidationPool


def create_app(llm: ModelLike, *, settings: ServerSettings | None = None) -> FastAPI:
    """An ASGI application that serves one model; loading it is part of the application's start.

    Args:
        llm: a `structgen.LLM`; from then on only the server may use its engine.
    """
    chosen = settings or ServerSettings()
    validators = ValidationPool(size=chosen.validators, timeout=chosen.validate_timeout)
    compiler = GrammarCompiler(lambda: llm.tokenizer.vocabulary, validators, chosen)
    state = ServerState(llm, chosen, validators, compiler)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await state.start()
        try:
            yield
        finally:
            await state.stop()

    # The framework's own pages load scripts from elsewhere; the schema at /openapi.json needs none.
    app = FastAPI(title="structgen", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = state
    app.add_middleware(RequestIdMiddleware)
    install_error_handlers(app)
    app.post("/v1/chat/completions", response_model=None)(chat.chat_completions)
    app.post("/v1/grammar/compile")(schema_tools.compile_grammar)
    app.post("/v1/validate")(schema_tools.validate)
    app.get("/v1/models")(models.list_models)
    app.get("/v1/models/{model:path}")(models.get_model)
    app.post("/v1/load_lora_adapter")(adapters.load_adapter)
    app.post("/v1/unload_lora_adapter")(adapters.unload_adapter)
    app.get("/health")(models.health)
    app.get("/ready")(models.ready)
    app.get("/version")(models.version)
    return app
