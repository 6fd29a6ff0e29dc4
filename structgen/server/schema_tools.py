"""POST /v1/grammar/compile and /v1/validate: what a schema can do, without a model's answer."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from structgen.errors import GrammarError
from structgen.server.body import read_object
from structgen.server.constraints import FIELDS, ConstraintSpec, find_constraint, schema_payload
from structgen.server.disconnect import until_disconnect
from structgen.server.errors import ApiError, api_error
from structgen.server.state import ServerState, state_of
from structgen.validate import FormatPolicy
from structgen.validation.json_text import dump


async def compile_grammar(request: Request) -> dict[str, Any]:
    """Whether a constraint can be enforced. Takes any spelling of the chat API, or a plain `schema`.

    Answers 200 with `enforceable`; what is wrong with it stands in `diagnostics`, each with a JSON pointer.
    """
    state = state_of(request)
    body = await read_object(request, state.settings)
    spec = _spec(body, state)
    try:
        constraint = await state.compiler.compile(spec)
    except ApiError as error:
        diagnostic = {"code": error.code, "message": error.message, "pointer": error.param}
        return {"enforceable": False, "kind": spec.kind, "diagnostics": [diagnostic]}
    return {
        "enforceable": True,
        "kind": spec.kind,
        "diagnostics": [],
        "min_tokens": constraint.least,
        "sizes": constraint.compiled.stats(),
    }


def _spec(body: dict[str, Any], state: ServerState) -> ConstraintSpec:
    _refuse_unknown(body, frozenset(FIELDS) | {"schema", "model"})
    fields = {name: value for name, value in body.items() if name in FIELDS}
    if "schema" in body:
        fields["response_format"] = {"type": "json_schema", "schema": body["schema"]}
    spec = find_constraint(fields, state.settings)
    if spec is None:
        message = "give a `schema`, or a constraint as the chat API takes it"
        raise ApiError(message, code="missing_field", param="schema")
    return spec


async def validate(request: Request) -> dict[str, Any]:
    """Check an `instance` (a JSON value) or a `text` (JSON text) against a `schema`.

    `format` is "assert" (the default) or "annotate".
    """
    state = state_of(request)
    body = await read_object(request, state.settings)
    _refuse_unknown(body, frozenset({"schema", "instance", "text", "format"}))
    if "schema" not in body:
        raise ApiError("`schema` is missing", code="missing_field", param="schema")
    if ("instance" in body) == ("text" in body):
        raise ApiError("give `instance` or `text`, one of them", code="missing_field", param="instance")
    if not isinstance(body.get("text", ""), str):
        raise ApiError("`text` must be a string", code="invalid_value", param="text")
    if body.get("format", "assert") not in ("assert", "annotate"):
        raise ApiError('`format` must be "assert" or "annotate"', code="invalid_value", param="format")
    schema = schema_payload(body["schema"], "schema", state.settings)
    policy: FormatPolicy = "annotate" if body.get("format") == "annotate" else "assert"
    text = body["text"] if "text" in body else dump(body["instance"])
    try:
        issues = await until_disconnect(request, state.validators.schema_issues(dump(schema), text, policy))
    except GrammarError as error:
        raise api_error(error, field="schema") or error from None
    return {"valid": not issues, "issues": [issue._asdict() for issue in issues]}


def _refuse_unknown(body: dict[str, Any], known: frozenset[str]) -> None:
    for name in body:
        if name not in known:
            raise ApiError(f"unknown field `{name}`", code="unknown_field", param=name)
