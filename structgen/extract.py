"""Prompts: how a model is told what is wanted. Short, since every prompt token costs a small model attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from structgen.tokenizer import Message

SYSTEM = "You extract facts from a text and answer with one JSON object."
DEPTH = 4
MOST_FIELDS = 80


def extraction_messages(
    text: str, schema: dict[str, Any] | bool | None, instructions: str | None = None, *, describe: bool = True
) -> list[Message]:
    """The conversation that asks for what `schema` names in `text`.

    `describe`: name the schema's fields, with their descriptions. `instructions`: the caller's own words.
    """
    fields = describe_schema(schema) if describe else ""
    parts = [instructions.strip()] if instructions else []
    parts.append(f"Extract as JSON:\n{fields}" if fields else "Extract as JSON.")
    # The text comes last: the small model copies best from what it has just read.
    parts.append(f"Text:\n{text.strip()}")
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n\n".join(parts)}]


def described_messages(messages: Sequence[Message], schema: dict[str, Any] | bool | None) -> list[Message]:
    """The messages, with the schema's fields added to the last one of the user."""
    fields = describe_schema(schema)
    last = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if not fields or last is None or not isinstance(messages[last].get("content"), str):
        return list(messages)
    told = dict(messages[last]) | {"content": f"{messages[last]['content']}\n\nAnswer as JSON:\n{fields}"}
    return [*messages[:last], told, *messages[last + 1 :]]


def describe_schema(schema: dict[str, Any] | bool | None) -> str:
    """The fields of an object schema, one a line: `- name (type): description`, nested ones indented."""
    if not isinstance(schema, dict):
        return ""
    lines: list[str] = []
    _describe(schema, schema, lines, ())
    return "\n".join(lines[:MOST_FIELDS])


def _describe(schema: Any, root: dict[str, Any], lines: list[str], above: tuple[int, ...]) -> None:
    """`above`: identities of the objects this one lies in; a recursive schema is opened once."""
    target = _object_of(schema, root)
    if target is None or len(above) >= DEPTH or id(target["properties"]) in above or len(lines) > MOST_FIELDS:
        return
    for name, field in target["properties"].items():
        field = _resolve(field, root)
        words = field.get("description") or ""
        kind = _kind(field, root)
        indent = "  " * len(above)
        lines.append(f"{indent}- {name}" + (f" ({kind})" if kind else "") + (f": {words}" if words else ""))
        _describe(field, root, lines, (*above, id(target["properties"])))


def _object_of(schema: Any, root: dict[str, Any]) -> dict[str, Any] | None:
    """The object schema in or below `schema`: itself, its items, or the first such branch."""
    for _ in range(DEPTH):
        schema = _resolve(schema, root)
        if "properties" in schema:
            return schema if isinstance(schema["properties"], dict) else None
        if isinstance(schema.get("items"), dict):
            schema = schema["items"]
        else:
            branches = [_resolve(branch, root) for branch in _branches(schema)]
            schema = next((branch for branch in branches if "properties" in branch or "items" in branch), {})
    return None


def _resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """What a local `$ref` points to, its siblings kept; {} for what is no object."""
    seen: dict[str, Any] = {}
    for _ in range(DEPTH):
        if not isinstance(schema, dict):
            return seen
        seen = schema | seen
        reference = seen.pop("$ref", None)
        if not isinstance(reference, str) or not reference.startswith("#"):
            return seen
        schema = root
        for part in reference.split("/")[1:]:
            schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return seen


def _branches(schema: dict[str, Any]) -> list[Any]:
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    return branches if isinstance(branches, list) else []


def _kind(field: dict[str, Any], root: dict[str, Any]) -> str:
    """A word or two on the values of a field."""
    if "const" in field:
        return json.dumps(field["const"], ensure_ascii=False)
    if isinstance(field.get("enum"), list):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in field["enum"][:12])
    if branches := _branches(field):
        kinds = [_kind(_resolve(branch, root), root) for branch in branches]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = field.get("format") or field.get("type") or ""
    if kind == "array" and isinstance(field.get("items"), dict):
        inner = _kind(_resolve(field["items"], root), root)
        return f"list of {inner}" if inner else "list"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
