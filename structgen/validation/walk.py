"""Where subschemas live in a schema document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from structgen.validation.pointers import join

_ONE = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = ("dependencies", "dependentSchemas", "patternProperties", "properties")
_DEFINITIONS = ("$defs", "definitions")


def children(schema: Any, pointer: str, *, definitions: bool) -> Iterator[tuple[str, Any]]:
    """(pointer, subschema) for each direct subschema; `definitions` says whether `$defs` count."""
    if not isinstance(schema, dict):
        return
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict | bool):
            yield join(pointer, keyword), schema[keyword]
    for keyword in _LIST:
        if isinstance(schema.get(keyword), list):
            at = join(pointer, keyword)
            yield from ((join(at, index), child) for index, child in enumerate(schema[keyword]))
    for keyword in (*_MAP, *(_DEFINITIONS if definitions else ())):
        if isinstance(schema.get(keyword), dict):
            at = join(pointer, keyword)
            for key, child in schema[keyword].items():
                if isinstance(child, dict | bool):
                    yield join(at, key), child


def subschemas(root: Any) -> Iterator[tuple[str, Any]]:
    """(pointer, subschema) of a whole document, itself first, definitions included; no recursion."""
    todo = [("", root)]
    while todo:
        pointer, schema = todo.pop()
        yield pointer, schema
        todo.extend(children(schema, pointer, definitions=True))
