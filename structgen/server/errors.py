"""Every error in the shape OpenAI's clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from structgen.errors import GrammarError, GrammarLimitError, MessagesError
from structgen.server.disconnect import ClientGoneError
from structgen.token_stream import EngineBusyError, EngineFailedError, EngineStoppedError

log = logging.getLogger("structgen.server")

NO_RETRY = {"x-should-retry": "false"}
_CLIENT_GONE = 499  # nobody reads it; it marks the access log
_CODES = {404: "not_found", 405: "method_not_allowed"}


class ApiError(Exception):
    """What a client is told.

    Attributes:
        param: the field at fault; for a schema the JSON pointer into it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = status
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception, *, field: str | None = None) -> ApiError | None:
    """The answer to an exception of the grammar or the engine; None for one that is our own fault.

    Args:
        field: the request's field that holds the constraint, for errors without a JSON pointer.
    """
    # The engine's errors are imported here: that package loads torch.
    from structgen.engine.errors import AdapterError, BudgetError, ContextLengthError, ParameterError

    if isinstance(error, ApiError):
        return error
    if isinstance(error, GrammarError):
        return _grammar_error(error, field)
    if isinstance(error, BudgetError):
        return ApiError(_sentence(error), code="max_tokens_too_small", param="max_tokens")
    if isinstance(error, ContextLengthError):
        return ApiError(_sentence(error), code="context_length_exceeded", param="messages")
    if isinstance(error, AdapterError):
        code, status = ("model_not_found", 404) if error.unknown else ("invalid_adapter", 400)
        return ApiError(_sentence(error), code=code, param="model", status=status)
    if isinstance(error, ParameterError):
        return ApiError(f"`{error.field}` {error.reason}", code="invalid_value", param=error.field)
    if isinstance(error, MessagesError):
        return ApiError(str(error), code="invalid_messages", param="messages")
    if isinstance(error, EngineBusyError):
        return ApiError(str(error), code="overloaded", status=429, headers={"Retry-After": "1"})
    if isinstance(error, EngineStoppedError):
        return ApiError(str(error), code="overloaded", status=503, headers={"Retry-After": "5"})
    if isinstance(error, EngineFailedError):
        return ApiError(f"generation failed: {error}", code="engine_error", status=500, headers=NO_RETRY)
    return None


def _grammar_error(error: GrammarError, field: str | None) -> ApiError:
    place = f" at position {error.position}" if error.position is not None else ""
    hint = f" ({error.hint})" if error.hint else ""
    return ApiError(
        f"{error}{place}{hint}",
        code=error.code,
        param=error.pointer if error.pointer is not None else field,
        headers=NO_RETRY if isinstance(error, GrammarLimitError) else None,
    )


def _sentence(error: Any) -> str:
    return f"{error.message} ({error.hint})" if error.hint else str(error.message)


def error_response(request: Request, error: ApiError) -> Response:
    headers = dict(error.headers)
    if request_id := request.scope.get("structgen.request_id"):
        headers["x-request-id"] = request_id
    return JSONResponse(error.body, status_code=error.status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every way to fail end in the one shape, the framework's own included."""

    async def known(request: Request, error: Exception) -> Response:
        answer = api_error(error)
        assert answer is not None, "registered for exceptions that have an answer"
        return error_response(request, answer)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "http_error")
        message = f"{error.detail}: {request.method} {request.url.path}"
        headers = error.headers or {}
        return error_response(request, ApiError(message, code=code, status=error.status_code, headers=headers))

    async def unknown(request: Request, error: Exception) -> Response:
        log.error("a request failed: %s", error, exc_info=error)
        message = "the server failed at this request; its log has the reason"
        return error_response(request, ApiError(message, code="internal_error", status=500, headers=NO_RETRY))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_GONE)

    app.add_exception_handler(ClientGoneError, gone)
    for kind in (ApiError, GrammarError, MessagesError, EngineBusyError, EngineStoppedError, EngineFailedError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unknown)
