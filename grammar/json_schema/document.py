"""A JSON Schema document: parsed, checked, with its references resolved.

A `Place` is a schema at a JSON pointer; the same pointer is always the same object, so places can be compared and
hashed by identity. Nothing is ever fetched: a reference leads into this document, into one that the caller supplies
(`documents`), to a metaschema, or is refused. Places in other documents have URI#pointer for a pointer.

Dynamic references depend on the way to them. What matters of it is which resources with dynamic anchors were entered,
in order: the `scope` of a place. In documents without such anchors it is empty, and a pointer is one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from structgen.grammar.errors import GrammarLimitError, SchemaError, UnsupportedSchemaError
from structgen.grammar.json_schema.dialect import declared_draft
from structgen.grammar.json_schema.keywords import ALL_SPELLINGS, LATEST, hint_for, keyword_in, problem_with
from structgen.grammar.json_schema.openapi import extensions
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.json_schema.resources import RECURSIVE, Resources
from structgen.grammar.json_schema.schema_text import parse_schema

MAX_SCHEMAS = 200_000
MAX_DEPTH = 3_000


class Place:
    """A schema at a pointer, or its negation: then it says that the schema does not hold."""

    __slots__ = ("_opposite", "negated", "options", "pointer", "resource", "schema", "scope")

    def __init__(self, schema: Any, pointer: str, resource: str, scope: tuple[str, ...] = ()) -> None:
        self.schema = schema
        self.pointer = pointer
        self.resource = resource  # pointer of the nearest enclosing schema with an `$id`
        self.scope = scope  # resources with dynamic anchors on the way here, each once, the outermost first
        self.options: tuple[Place, ...] = ()  # of an anyOf that no document spells
        self.negated = False
        self._opposite: Place | None = None

    @property
    def opposite(self) -> Place:
        """The negation; always the same object, and the opposite of the opposite is this place."""
        found = self._opposite
        if found is None:
            found = self._opposite = Place(self.schema, self.pointer, self.resource, self.scope)
            found.options, found.negated = self.options, not self.negated
            found._opposite = self
        return found

    @property
    def is_never(self) -> bool:
        """Whether it plainly allows nothing (it may allow nothing without this being plain)."""
        return self.schema is False if not self.negated else self.schema is True or self.schema == {}

    @property
    def is_always(self) -> bool:
        """Whether it plainly allows everything."""
        return self.schema is False if self.negated else self.schema is True or self.schema == {}

    def __repr__(self) -> str:
        return f"Place({'not ' if self.negated else ''}{self.pointer!r})"


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
        self._resources = Resources(self.root, options.documents)
        # Without `$schema`: the newest draft, with the older spellings understood.
        self.declared_draft = declared_draft(self.root, "", self._resources.document)
        self.draft = self.declared_draft or LATEST
        self._places: dict[tuple[str, tuple[str, ...]], Place] = {}
        self._constants: dict[tuple[str, int], Place] = {}
        self._never: dict[str, Place] = {}
        self._either: dict[tuple[Place, ...], Place] = {}
        self._checked: set[str] = set()
        self._check(self.root, "", "")

    def knows(self, name: str) -> bool:
        """Whether a keyword means something in this document."""
        return keyword_in(name, self.declared_draft) is not None

    @property
    def ignores_siblings(self) -> bool:
        """Whether a `$ref` silences the keywords beside it, as drafts up to 7 say."""
        return self.declared_draft is not None and self.draft <= 7

    def place(self, schema: Any, pointer: str, resource: str, scope: tuple[str, ...] = ()) -> Place:
        if pointer in self._resources.uri_of:
            resource = pointer
        if self._resources.is_dynamic(resource) and resource not in scope:
            scope = (*scope, resource)
        key = (pointer, scope)
        found = self._places.get(key)
        if found is None:
            if len(self._places) > MAX_SCHEMAS:
                raise GrammarLimitError(f"more than {MAX_SCHEMAS:,} schemas in one document", pointer=pointer)
            found = self._places[key] = Place(schema, pointer, resource, scope)
        return found

    def constant(self, value: Any, pointer: str) -> Place:
        """A schema for one value, in the spelling that every draft knows."""
        key = pointer, id(value)  # the place keeps the value alive, so its number is not given again
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = Place({"enum": [value]}, pointer, "")
        return found

    def either(self, options: tuple[Place, ...], pointer: str) -> Place:
        """A schema that allows what any of some places allows."""
        found = self._either.get(options)
        if found is None:
            resources = " ".join(option.resource for option in options)
            found = self._either[options] = Place({"anyOf": [one.schema for one in options]}, pointer, resources)
            found.options = options
        return found

    def never(self, pointer: str) -> Place:
        """A schema that allows nothing, on behalf of the one at a pointer."""
        found = self._never.get(pointer)
        if found is None:
            found = self._never[pointer] = Place(False, pointer, "")
        return found

    def reached(self) -> Iterator[tuple[str, Any]]:
        """All schemas that have been used, with their pointers; without those that keywords only stand for."""
        return ((place.pointer, place.schema) for place in self._places.values() if place.pointer in self._checked)

    def child(self, parent: Place, *path: str | int) -> Place:
        """The schema below a place, by keyword and name or index."""
        schema = parent.schema
        pointer = parent.pointer
        for step in path:
            schema = schema[step]
            pointer += "/" + (escape(step) if isinstance(step, str) else str(step))
        return self.place(schema, pointer, parent.resource, parent.scope)

    def _check(self, schema: Any, pointer: str, resource: str) -> None:
        """Check all schemas below a pointer, and note their identifiers."""
        todo = [(schema, pointer, resource, 0)]
        while todo:
            schema, pointer, resource, depth = todo.pop()
            if pointer in self._checked:
                continue
            self._checked.add(pointer)
            if depth > MAX_DEPTH:
                raise GrammarLimitError(f"schemas are nested more than {MAX_DEPTH:,} deep", pointer="")
            if len(self._checked) > MAX_SCHEMAS:
                raise GrammarLimitError(f"more than {MAX_SCHEMAS:,} schemas in one document", pointer=pointer)
            if isinstance(schema, bool):
                continue
            resource = self._note_identifiers(schema, pointer, resource)
            for name, value in schema.items():
                keyword = keyword_in(name, self.declared_draft)
                if keyword is None:
                    if self.options.strict_keywords and name not in ALL_SPELLINGS and not name.startswith("x-"):
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
                if keyword.holds_schemas:
                    path = f"{pointer}/{escape(name)}"
                    found = subschemas(value, keyword.value)
                    todo += ((sub, path + below, resource, depth + 1) for below, sub in found)

    def _note_identifiers(self, schema: dict[str, Any], pointer: str, resource: str) -> str:
        """Note the names of a schema; the resource that it is in."""
        resources = self._resources
        uri = schema.get("id" if self.draft == 4 else "$id", schema.get("$id"))
        if isinstance(uri, str) and not ("$ref" in schema and self.ignores_siblings):
            if uri.startswith("#"):
                resources.note_anchor(resource, uri[1:], pointer)
            else:
                self._refuse_other_draft(schema, pointer)
                resources.open_resource(uri, pointer, resource)
                resource = pointer
        anchor = schema.get("$anchor")
        if isinstance(anchor, str) and self.knows("$anchor"):
            resources.note_anchor(resource, anchor, pointer)
        anchor = schema.get("$dynamicAnchor")
        if isinstance(anchor, str) and self.knows("$dynamicAnchor"):
            resources.note_anchor(resource, anchor, pointer)
            resources.note_dynamic_anchor(resource, anchor, pointer)
        if schema.get("$recursiveAnchor") is True and pointer == resource and self.knows("$recursiveAnchor"):
            resources.note_dynamic_anchor(resource, RECURSIVE, pointer)
        return resource

    def _refuse_other_draft(self, schema: Any, pointer: str) -> None:
        draft = declared_draft(schema, pointer, self._resources.document)
        if draft is not None and draft != self.draft:
            raise UnsupportedSchemaError(
                "one schema may not mix drafts", pointer=f"{pointer}/$schema", hint="give all of it the same $schema"
            )

    def targets(self, place: Place) -> Iterator[Place]:
        """Where references lead (`$ref`, `$dynamicRef`, `$recursiveRef`), and what extensions stand for.

        Raises:
            SchemaError: one dangles. UnsupportedSchemaError: it leads to a document that nobody supplied.
        """
        schema = place.schema
        if "$ref" in schema:
            yield self.resolve(place, schema["$ref"])
            if self.ignores_siblings:
                return
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema and self.knows(keyword):
                yield self._resolve_dynamic(place, keyword)
        if self.declared_draft is None:
            for name, meaning in extensions(schema):
                yield self.place(meaning, f"{place.pointer}/{name}", place.resource, place.scope)

    def resolve(self, place: Place, reference: str, keyword: str = "$ref") -> Place:
        """Where a reference leads."""
        here = f"{place.pointer}/{keyword}"
        uri, _, fragment = reference.partition("#")
        resource = self._resource(place.resource, uri, here) if uri else place.resource
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            anchor = self._resources.anchor(resource, fragment)
            if anchor is None:
                raise SchemaError(f"there is no anchor {fragment!r}", pointer=here)
            return self._at(anchor, here, place.scope, resource)
        return self._at(resource + fragment, here, place.scope, resource)

    def _resolve_dynamic(self, place: Place, keyword: str) -> Place:
        """The outermost resource on the way here that has the anchor, if the plain one is such."""
        reference = place.schema[keyword]
        target = self.resolve(place, reference, keyword)
        name = RECURSIVE if keyword == "$recursiveRef" else unquote(reference.partition("#")[2])
        resources = self._resources
        if resources.dynamic_anchor(target.resource, name) != target.pointer:
            return target
        for resource in place.scope:
            address = resources.dynamic_anchor(resource, name)
            if address is not None:
                return self._at(address, f"{place.pointer}/{keyword}", place.scope, resource)
        return target

    def _resource(self, base: str, uri: str, here: str) -> str:
        """The resource that a URI means; reads a further document if need be."""
        absolute = self._resources.absolute(base, uri)
        found = self._resources.address(absolute)
        if found is not None:
            return found
        contents = self._resources.document(absolute)
        if contents is None:
            raise UnsupportedSchemaError(
                f"{uri!r} is not in this document, and nothing is fetched",
                pointer=here,
                hint="put the schema under $defs, or supply it: documents={uri: schema}",
            )
        root = parse_schema(contents) if isinstance(contents, str) else contents
        if not isinstance(root, dict | bool):
            raise SchemaError(f"the document {absolute!r} is no schema", pointer=here)
        address = self._resources.open_document(absolute, root)
        self._refuse_other_draft(root, address)
        self._check(root, address, address)
        return address

    def _at(self, pointer: str, here: str, scope: tuple[str, ...], resource: str) -> Place:
        found = self._places.get((pointer, scope))
        if found is not None:
            return found
        walked, schema, segments = self._resources.start_of(pointer)
        for segment in segments:
            name = segment.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                raise SchemaError(f"the reference leads nowhere: there is no {pointer}", pointer=here)
            walked += "/" + segment
            if walked in self._resources.uri_of:
                resource = walked
        if not isinstance(schema, dict | bool):
            raise SchemaError(f"the reference leads to no schema: {pointer}", pointer=here)
        self._check(schema, pointer, resource)  # it may lie where no keyword is
        return self.place(schema, pointer, resource, scope)


def subschemas(value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """The schemas in a keyword's value, each with the pointer from there to it; `kind` as in `Keyword.value`."""
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield f"/{index}", one
    elif kind in ("schema map", "dependencies"):
        for name, one in value.items():
            if isinstance(one, dict | bool):
                yield f"/{escape(name)}", one
    else:
        yield "", value
