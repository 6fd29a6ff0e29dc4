"""How a JSON schema is read and how its values are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from structgen.grammar.errors import SchemaError


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOptions:
    """Options of `Grammar.from_json_schema`; the first named value is the default.

    Attributes:
        property_order: "schema": keys come in the order in which the schema names them, extra keys after; "any".
        whitespace: "flexible": up to 16 blanks between tokens; "compact": none; "pretty": as json.dumps with a
            two-space indent.
        format: "assert" formats in every draft, or "annotate".
        unknown_format: "annotate" or "refuse" formats that no draft knows.
        strict_keywords: refuse keywords that no draft knows, but for extensions (`x-...`) and OpenAPI's.
        integers_as: spell integers as "1", or accept "1 or 1.0".
        documents: other schemas that `$ref` may lead to, by URI; each a dict, a bool or JSON text. Metaschemas are
            known. Nothing is fetched.
    """

    property_order: Literal["schema", "any"] = "schema"
    whitespace: Literal["flexible", "compact", "pretty"] = "flexible"
    format: Literal["assert", "annotate"] = "assert"
    unknown_format: Literal["annotate", "refuse"] = "annotate"
    strict_keywords: bool = False
    integers_as: Literal["1", "1 or 1.0"] = "1"
    documents: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> JsonOptions:
        """Checked options.

        Raises:
            SchemaError: an unknown option or value.
        """
        allowed = _allowed_values()
        for name, value in given.items():
            if name == "documents":
                _check_documents(value)
                continue
            if name not in allowed:
                raise SchemaError(
                    f"unknown option {name!r}", hint=f"known options: {', '.join((*allowed, 'documents'))}"
                )
            if not any(type(value) is type(one) and value == one for one in allowed[name]):
                raise SchemaError(f"{name} is {value!r}", hint=f"one of {', '.join(map(repr, allowed[name]))}")
        return cls(**given)


@cache
def _allowed_values() -> dict[str, tuple[Any, ...]]:
    """From the types of the fields, so that each value is written once."""
    hints = get_type_hints(JsonOptions)
    names = [one.name for one in fields(JsonOptions) if one.name != "documents"]
    return {name: get_args(hints[name]) or (True, False) for name in names}


def _check_documents(given: Any) -> None:
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(uri, str) for uri in given)):
        raise SchemaError("documents is no mapping from URIs to schemas", hint="documents={'https://...': {...}}")
