"""Output types: what a caller may ask for, as a grammar and a way back from text to a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import ValidationError

from structgen.errors import OutputError, OutputTypeError, SchemaError
from structgen.grammar import Grammar
from structgen.pydantic_schema import adapter_of, json_schema_of


@dataclass(frozen=True)
class Regex:
    """A text that matches `pattern` from its first to its last character (ECMA-262 syntax)."""

    pattern: str


@dataclass(frozen=True, init=False)
class Choice:
    """One of several texts."""

    options: tuple[str, ...]

    def __init__(self, options: Iterable[str]) -> None:
        if isinstance(options, str):
            raise OutputTypeError("Choice takes several texts, not one", hint='Choice(["yes", "no"])')
        object.__setattr__(self, "options", tuple(options))


@dataclass(frozen=True)
class Constraint:
    """What the output must look like.

    Attributes:
        grammar: None for free text.
        schema: the JSON schema behind the grammar, for prompts and validation; None for regexes, choices, free text.
        parse: finished text -> value; raises OutputError when the type's own validators refuse it.
        key: equal keys mean equal grammars: compiled ones are shared by it.
    """

    grammar: Grammar | None
    schema: dict[str, Any] | bool | None
    parse: Callable[[str], Any]
    key: str = field(default="")


def to_constraint(output_type: Any, **options: Any) -> Constraint:
    """The constraint of an output type: None (free text), a pydantic model, dataclass, TypedDict, Literal, Enum, union,
    list[...], primitive, Regex, Choice, Grammar, or a JSON schema as dict, JSON text or Path.

    `options` go to Grammar.from_json_schema. Raises OutputTypeError, or GrammarError for a schema that is not valid or
    cannot be enforced.
    """
    if output_type is None:
        return Constraint(None, None, str)
    if isinstance(output_type, Constraint):
        return output_type
    if isinstance(output_type, Grammar):
        return Constraint(output_type, None, str, f"grammar {id(output_type)}")
    if isinstance(output_type, Regex):
        return Constraint(Grammar.from_regex(output_type.pattern), None, str, f"regex {output_type.pattern}")
    if isinstance(output_type, Choice):
        options_text = list(output_type.options)
        return Constraint(Grammar.from_choices(options_text), None, str, f"choice {json.dumps(options_text)}")
    if isinstance(output_type, dict | bool | str | Path):
        return _from_schema(load_schema(output_type), json.loads, options)
    return _from_type(output_type, options)


def load_schema(source: dict[str, Any] | bool | str | Path) -> dict[str, Any] | bool:
    """A JSON schema given as such, as JSON text, or as the Path of a file. Raises SchemaError, OSError."""
    if isinstance(source, dict | bool):
        return source
    text = source.read_bytes().decode("utf-8-sig", "replace") if isinstance(source, Path) else source
    where = f"{source} is" if isinstance(source, Path) else "the schema is"
    try:
        schema = json.loads(text, object_pairs_hook=_no_duplicates)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        raise SchemaError(
            f"{where} not JSON: {reason}", hint="a text as output type is read as a JSON schema; see Regex and Choice"
        ) from None
    if not isinstance(schema, dict | bool):
        raise SchemaError(f"{where} a JSON {type(schema).__name__}", pointer="", hint="a schema is an object or a bool")
    return schema


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"the key {twice!r} appears twice in one object", hint="remove one of the two")
    return found


def _from_schema(schema: dict[str, Any] | bool, parse: Callable[[str], Any], options: dict[str, Any]) -> Constraint:
    grammar = Grammar.from_json_schema(schema, **options)
    return Constraint(grammar, schema, parse, f"schema {json.dumps([schema, options])}")


def _from_type(output_type: Any, options: dict[str, Any]) -> Constraint:
    name = getattr(output_type, "__name__", None) or re.sub(r"\btyping\.", "", repr(output_type))
    if isinstance(output_type, FunctionType):
        raise OutputTypeError(f"the function {name} is not an output type", hint="give the type of what it takes")
    if isinstance(output_type, list | tuple | set):
        raise OutputTypeError(f"a {type(output_type).__name__} is not an output type", hint="Choice([...]), list[...]")
    adapter = adapter_of(output_type, name)

    def parse(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "/".join(map(str, first["loc"])) or "the value"
            raise OutputError(
                f"{name} refuses what was generated: {place}: {first['msg']}",
                text=text,
                hint="its validators ask for more than its JSON schema says",
            ) from None

    return _from_schema(json_schema_of(adapter, name), parse, options)
