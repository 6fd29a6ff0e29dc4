"""A JSON Schema document: parsed, checked, with its references resolved.

A `Place` is a schema at a JSON pointer; the same pointer is always the same object, so places can be compared and
hashed by identity. Nothing is ever fetched: a reference leads into this document, or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urljoin

from structgen.grammar.errors import GrammarError, GrammarLimitError, SchemaError, UnsupportedSchemaError
from structgen.grammar.json_schema.keywords import LATEST, hint_for, known, problem_with
from structgen.grammar.json_schema.options import JsonOptions

MAX_SCHEMAS = 200_000
MAX_DEPTH = 3_000
_DRAFTS = {
    "draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020,
}  # fmt: skip


class Place:
    """A schema at a pointer."""

    __slots__ = ("pointer", "resource", "schema")

    def __init__(self, schema: Any, pointer: str, resource: str) -> None:
        self.schema = schema
        self.pointer = pointer
        self.resource = resource  # pointer of the nearest enclosing schema with an `$id`

    def __repr__(self) -> str:
        return f"Place({self.pointer!r})"


def escape(name: str) -> str:
    """A name as one segment of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class SchemaDocument:
    """A checked schema and its places.

    Args:
        schema: a dict, a bool, or JSON text (in which numbers keep their exact value).
    Raises:
        SchemaError: not JSON, or a keyword with a value of the wrong kind.
    """

    def __init__(self, schema: Any, options: JsonOptions) -> None:
        self.options = options
        self.root = parse_schema(schema) if isinstance(schema, str) else schema
        if not isinstance(self.root, dict | bool):
            raise SchemaError(
                f"a schema is an object, true or false, not {type(self.root).__name__}",
                pointer="",
                hint="pass a dict, or JSON text",
            )
        # Without `$schema`: the newest draft, with the older spellings understood.
        self.declared_draft = self._declared_draft()
        self.draft = self.declared_draft or LATEST
        self._places: dict[str, Place] = {}
        self._uris: dict[str, str] = {}  # absolute URI of each resource -> pointer
        self._resource_uri: dict[str, str] = {"": ""}
        self._anchors: dict[tuple[str, str], str] = {}
        self._check(self.root, "", "")

    def _declared_draft(self) -> int | None:
        uri = self.root.get("$schema") if isinstance(self.root, dict) else None
        if not isinstance(uri, str):
            return None
        draft = next((number for name, number in _DRAFTS.items() if name in uri), None)
        if draft == 3:
            raise UnsupportedSchemaError("draft-03 is not supported", pointer="/$schema", hint="move to a later draft")
        return draft

    def knows(self, name: str) -> bool:
        """Whether a keyword means something in this document."""
        return name in _ALL_SPELLINGS if self.declared_draft is None else known(name, self.draft) is not None

    def place(self, schema: Any, pointer: str, resource: str) -> Place:
        found = self._places.get(pointer)
        if found is None:
            if isinstance(schema, dict) and pointer and self._starts_resource(schema):
                resource = pointer
            found = self._places[pointer] = Place(schema, pointer, resource)
        return found

    def child(self, parent: Place, *path: str | int) -> Place:
        """The schema below a place, by keyword and name or index."""
        schema = parent.schema
        pointer = parent.pointer
        for step in path:
            schema = schema[step]
            pointer += "/" + (escape(step) if isinstance(step, str) else str(step))
        return self.place(schema, pointer, parent.resource)

    def _starts_resource(self, schema: dict[str, Any]) -> bool:
        uri = schema.get("$id", schema.get("id") if self.draft == 4 else None)
        return isinstance(uri, str) and not uri.startswith("#")

    def _check(self, schema: Any, pointer: str, resource: str) -> None:
        """Check all schemas below a pointer, and note their identifiers."""
        todo = [(schema, pointer, resource, 0)]
        count = 0
        while todo:
            schema, pointer, resource, depth = todo.pop()
            count += 1
            if depth > MAX_DEPTH:
                raise GrammarLimitError(f"schemas are nested more than {MAX_DEPTH:,} deep", pointer="")
            if count > MAX_SCHEMAS:
                raise GrammarLimitError(f"more than {MAX_SCHEMAS:,} schemas in one document", pointer=pointer)
            if isinstance(schema, bool):
                continue
            resource = self._note_identifiers(schema, pointer, resource)
            for name, value in schema.items():
                keyword = known(name, self.draft) if self.declared_draft else _ALL_SPELLINGS.get(name)
                if keyword is None:
                    if self.options.strict_keywords and name not in _ALL_SPELLINGS:
                        raise UnsupportedSchemaError(
                            f"unknown keyword {name!r}",
                            pointer=f"{pointer}/{escape(name)}",
                            hint="correct its spelling, or leave strict_keywords off",
                        )
                    continue
                problem = problem_with(keyword.value, value)
                if problem is not None:
                    raise SchemaError(
                        f"{name}: {problem}", pointer=f"{pointer}/{escape(name)}", hint=hint_for(keyword.value, value)
                    )
                if "schema" in keyword.value or keyword.value == "dependencies":
                    path = f"{pointer}/{escape(name)}"
                    found = _subschemas(value, keyword.value)
                    todo += ((sub, path + below, resource, depth + 1) for below, sub in found)

    def _note_identifiers(self, schema: dict[str, Any], pointer: str, resource: str) -> str:
        uri = schema.get("$id", schema.get("id") if self.draft == 4 else None)
        if isinstance(uri, str):
            if uri.startswith("#"):
                self._anchors[resource, uri[1:]] = pointer
            else:
                absolute = urljoin(self._resource_uri[resource], uri).partition("#")[0]
                resource = pointer
                self._resource_uri[resource] = absolute
                self._uris.setdefault(absolute, pointer)
        for name in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(name)
            if isinstance(anchor, str):
                self._anchors[resource, anchor] = pointer
        return resource

    def resolve(self, place: Place, reference: str) -> Place:
        """Where a `$ref` leads.

        Raises:
            SchemaError: it dangles. UnsupportedSchemaError: it leaves the document.
        """
        here = f"{place.pointer}/$ref"
        uri, _, fragment = reference.partition("#")
        resource = place.resource
        if uri:
            absolute = urljoin(self._resource_uri.get(resource, ""), uri)
            if absolute not in self._uris:
                raise UnsupportedSchemaError(
                    f"{reference!r} is not in this document, and nothing is fetched",
                    pointer=here,
                    hint="put the schema under $defs",
                )
            resource = self._uris[absolute]
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            anchor = self._anchors.get((resource, fragment))
            if anchor is None:
                raise SchemaError(f"there is no anchor {fragment!r}", pointer=here)
            return self._at(anchor, resource, here)
        return self._at(resource + fragment, resource, here)

    def _at(self, pointer: str, resource: str, here: str) -> Place:
        found = self._places.get(pointer)
        if found is not None:
            return found
        schema: Any = self.root
        for segment in pointer.split("/")[1:]:
            name = segment.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                raise SchemaError(f"the reference leads nowhere: there is no {pointer}", pointer=here)
        if not isinstance(schema, dict | bool):
            raise SchemaError(f"the reference leads to no schema: {pointer}", pointer=here)
        self._check(schema, pointer, resource)  # it may lie where no keyword is
        return self.place(schema, pointer, resource)


def _subschemas(value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield f"/{index}", one
    elif kind in ("schema map", "dependencies"):
        for name, one in value.items():
            if isinstance(one, dict | bool):
                yield f"/{escape(name)}", one
    else:
        yield "", value


def parse_schema(text: str) -> Any:
    """JSON text with exact numbers.

    Raises:
        SchemaError: it is not JSON.
    """

    def refuse(name: str) -> Any:
        raise SchemaError(f"{name} is no JSON number", pointer="")

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}", pointer="", position=error.pos
        ) from error
    except GrammarError:
        raise
    except ValueError as error:  # Python's limit for the digits of an integer
        raise GrammarLimitError("a number of too many digits", pointer="", hint="use a smaller number") from error
    except RecursionError:
        raise GrammarLimitError("the schema is nested too deeply", pointer="") from None


def _spellings() -> dict[str, Any]:
    from structgen.grammar.json_schema.keywords import KEYWORDS

    return {name: keyword for name, keyword in KEYWORDS.items() if name != "id"}


_ALL_SPELLINGS = _spellings()
