"""Request bodies: read within a size, parsed within a depth."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from structgen.server.errors import ApiError
from structgen.server.settings import ServerSettings
from structgen.validation.json_text import NotJsonError, parse_json


async def read_object(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object of a request's body; numbers with a fraction are Decimals, and nothing was rounded.

    Raises:
        ApiError: 413 too large, 400 not JSON, nested too deeply, or not an object.
    """
    raw = await _read(request, settings.max_body)
    try:
        value, problems = parse_json(raw)
    except NotJsonError as error:
        raise ApiError(f"the body is {error.problem.message}", code="invalid_json") from None
    if problems:
        raise ApiError(
            f"the body is not strict JSON: {problems[0].message}", code="invalid_json", param=problems[0].pointer
        )
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object", code="invalid_json")
    if _is_deeper(value, settings.max_body_depth):
        raise ApiError(f"the body is nested more than {settings.max_body_depth} deep", code="body_too_deep")
    return value


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    received = bytearray()
    if not (announced.isdigit() and int(announced) > limit):
        async for chunk in request.stream():
            received += chunk
            if len(received) > limit:
                break
        else:
            return bytes(received)
    raise ApiError(f"the body is larger than {limit} bytes", code="body_too_large", status=413)


def _is_deeper(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
