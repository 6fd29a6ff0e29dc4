"""What OpenAPI 3.0 and Kubernetes write beside JSON Schema; it counts only where no draft is declared.

`nullable: true` adds null to the `type` beside it; a list of values stays as it is, as OpenAPI 3.0.3 makes clear. The
extensions of Kubernetes that assert something stand for schemas, which hold beside what else is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_STANDS_FOR: dict[str, dict[str, Any]] = {
    "x-kubernetes-int-or-string": {"type": ["integer", "string"]},
    "x-kubernetes-embedded-resource": {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "minLength": 1},
            "kind": {"type": "string", "minLength": 1},
            "metadata": {"type": "object"},
        },
        "required": ["apiVersion", "kind"],
    },
}


def types_of(schema: dict[str, Any], declared_draft: int | None) -> frozenset[str] | None:
    """The types that `type` allows, and null where OpenAPI says so; None when there is no `type`."""
    given = schema.get("type")
    if given is None:
        return None
    types = frozenset([given] if isinstance(given, str) else given)
    nullable = declared_draft is None and schema.get("nullable") is True
    return types | {"null"} if nullable else types


def extensions(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(keyword, the schema that it stands for), for what a schema without a declared draft extends JSON Schema with."""
    for name, meaning in _STANDS_FOR.items():
        if schema.get(name) is True:
            nullable = schema.get("nullable") is True
            yield name, {"anyOf": [{"type": "null"}, meaning]} if nullable else meaning
