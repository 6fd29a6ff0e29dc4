"""One constraint, several spellings: which one a request asks for, and which field it came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from structgen.server.errors import ApiError
from structgen.server.settings import ServerSettings
from structgen.validation.json_text import NotJsonError, dump, parse_json

Kind = Literal["json", "regex", "choice"]
# Where a request may spell its constraint.
FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


class ConstraintSpec(NamedTuple):
    """What the output must look like, before any grammar is built.

    Attributes:
        payload: schema (dict or bool), pattern (str), or choices (list of str).
        field: the request's field, for errors.
        key: the same for equal constraints.
    """

    kind: Kind
    payload: Any
    field: str
    key: str


def find_constraint(fields: dict[str, Any], settings: ServerSettings) -> ConstraintSpec | None:
    """The one constraint among a request's fields; None for free text.

    Raises:
        ApiError: malformed, too large, unknown, or two that differ; `param` names the field.
    """
    found: ConstraintSpec | None = None
    for kind, payload, field in _spellings(fields):
        spec = _checked(kind, payload, field, settings)
        if found is not None and spec.key != found.key:
            message = f"`{found.field}` and `{field}` are two constraints; give one"
            raise ApiError(message, code="conflicting_constraints", param=field)
        found = found or spec
    return found


def _spellings(fields: dict[str, Any]) -> Iterator[tuple[Kind, Any, str]]:
    if fields.get("response_format") is not None:
        yield from _response_format(fields["response_format"])
    if fields.get("structured_outputs") is not None:
        yield from _structured_outputs(fields["structured_outputs"])
    kinds: tuple[Kind, ...] = ("json", "regex", "choice")
    for kind in kinds:
        if fields.get(f"guided_{kind}") is not None:
            yield kind, fields[f"guided_{kind}"], f"guided_{kind}"


def _response_format(value: Any) -> Iterator[tuple[Kind, Any, str]]:
    if not isinstance(value, dict):
        raise _malformed("response_format", "must be an object with a `type`")
    kind = value.get("type")
    if kind == "json_object":
        yield "json", {"type": "object"}, "response_format"
    elif kind == "json_schema":
        yield "json", *_schema_of(value)
    elif kind != "text":
        raise _malformed("response_format.type", "must be text, json_object or json_schema")


def _schema_of(value: dict[str, Any]) -> tuple[Any, str]:
    """The schema of a json_schema format: nested as OpenAI has it, or beside `type`. `strict` is always on."""
    nested = value.get("json_schema")
    if isinstance(nested, dict) and "schema" in nested:
        return nested["schema"], "response_format.json_schema.schema"
    if nested is None and "schema" in value:
        return value["schema"], "response_format.schema"
    if nested is not None and not isinstance(nested, dict):
        raise _malformed("response_format.json_schema", "must be an object with a `schema`")
    raise _malformed("response_format.json_schema.schema", "is missing")


def _structured_outputs(value: Any) -> Iterator[tuple[Kind, Any, str]]:
    if not isinstance(value, dict):
        raise _malformed("structured_outputs", "must be an object")
    for name, payload in value.items():
        field = f"structured_outputs.{name}"
        if payload is None:
            continue
        if name == "json" or name == "regex" or name == "choice":
            yield name, payload, field
        elif name == "json_object" and payload is True:
            yield "json", {"type": "object"}, field
        else:
            message = f"`{field}` is not supported; json, regex and choice are"
            raise ApiError(message, code="unsupported_constraint", param=field)


def _checked(kind: Kind, payload: Any, field: str, settings: ServerSettings) -> ConstraintSpec:
    if kind == "json":
        schema = schema_payload(payload, field, settings)
        return ConstraintSpec(kind, schema, field, f"json {dump(schema)}")
    if kind == "regex":
        if not isinstance(payload, str):
            raise _malformed(field, "must be a string")
        _limit(len(payload), settings.max_regex, field, "characters of pattern")
        return ConstraintSpec(kind, payload, field, f"regex {payload}")
    if not isinstance(payload, list) or not payload or not all(isinstance(text, str) for text in payload):
        raise _malformed(field, "must be a list of strings, with at least one")
    _limit(len(payload), settings.max_choices, field, "choices")
    _limit(max(map(len, payload)), settings.max_choice, field, "characters in a choice")
    return ConstraintSpec(kind, payload, field, f"choice {json.dumps(payload)}")


def schema_payload(payload: Any, field: str, settings: ServerSettings) -> Any:
    """A schema given as JSON or as JSON text, within the size limit. Raises ApiError."""
    if isinstance(payload, str):
        try:
            payload, problems = parse_json(payload)
        except NotJsonError as error:
            raise _malformed(field, error.problem.message) from None
        if problems:
            raise _malformed(field, problems[0].message)
    if not isinstance(payload, dict | bool):
        raise _malformed(field, "must be a JSON schema: an object or a boolean")
    _limit(len(dump(payload)), settings.max_schema, field, "bytes of schema")
    return payload


def _limit(size: int, limit: int, field: str, unit: str) -> None:
    if size > limit:
        message = f"`{field}` has {size} {unit}, at most {limit} are allowed"
        raise ApiError(message, code="schema_too_complex", param=field, headers={"x-should-retry": "false"})


def _malformed(field: str, reason: str) -> ApiError:
    return ApiError(f"`{field}` {reason}", code="invalid_constraint", param=field)
