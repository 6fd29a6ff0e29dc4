"""The keywords of a schema, one by one, and what can be said about each without compiling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from structgen.grammar.errors import SchemaError
from structgen.grammar.formats import FORMATS
from structgen.grammar.json_schema.dialect import declared_draft
from structgen.grammar.json_schema.document import SchemaDocument, escape, subschemas
from structgen.grammar.json_schema.keywords import (
    ALL_SPELLINGS,
    APPLIES_TO,
    DRAFT_NAMES,
    KEYWORDS,
    Keyword,
    keyword_in,
    problem_with,
)
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.json_schema.resources import Resources

_STRUCTURE = frozenset(name for name, keyword in KEYWORDS.items() if keyword.status == "structure")
# Values that allow everything, and keywords that say something only beside another.
_IDLE: dict[str, Any] = {
    "additionalItems": True, "additionalProperties": True, "allOf": [], "dependencies": {}, "dependentRequired": {},
    "dependentSchemas": {}, "items": True, "minItems": 0, "minLength": 0, "minProperties": 0, "not": False,
    "patternProperties": {}, "prefixItems": [], "properties": {}, "propertyNames": True, "required": [],
    "unevaluatedItems": True, "unevaluatedProperties": True, "uniqueItems": False,
}  # fmt: skip
_SWITCHES = frozenset({"nullable", "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"})
_OWNER = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}


def _is_idle(name: str, schema: dict[str, Any]) -> bool:
    if name == "if":
        return "then" not in schema and "else" not in schema
    if name in _OWNER:
        return _OWNER[name] not in schema
    if name in _SWITCHES:
        return schema[name] is not True
    value, idle = schema[name], _IDLE.get(name, _IDLE)
    return type(value) is type(idle) and bool(value == idle)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A keyword in a schema."""

    schema_pointer: str
    schema: dict[str, Any]
    name: str

    @property
    def pointer(self) -> str:
        return f"{self.schema_pointer}/{escape(self.name)}"

    @property
    def value(self) -> Any:
        return self.schema[self.name]


class Schemas:
    """All schemas of a document that keywords lead to, in its order, and others once they are known to be reached.

    Raises:
        SchemaError: not a schema at all.
    """

    def __init__(self, root: Any, options: JsonOptions) -> None:
        if not isinstance(root, dict | bool):
            raise SchemaError(f"a schema is an object, true or false, not {type(root).__name__}", pointer="")
        self._options = options
        self._draft = _draft(root, options)
        self._found: dict[str, Any] = {}
        self._reached: set[str] = set()
        self._collect(root, "")

    def _collect(self, schema: Any, pointer: str) -> None:
        todo = [(schema, pointer)]
        while todo:
            schema, pointer = todo.pop()
            if pointer in self._found:
                continue
            self._found[pointer] = schema
            below: list[tuple[Any, str]] = []
            for name, value in schema.items() if isinstance(schema, dict) else ():
                keyword = self._keyword(name)
                if keyword is not None and keyword.holds_schemas and problem_with(keyword.value, value) is None:
                    path = f"{pointer}/{escape(name)}"
                    below += [(sub, path + rest) for rest, sub in subschemas(value, keyword.value)]
            todo += reversed(below)

    def _keyword(self, name: str) -> Keyword | None:
        return keyword_in(name, self._draft)

    def add_reached(self, document: SchemaDocument) -> None:
        """Take in what references lead to outside of keywords, and in other documents."""
        for pointer, schema in document.reached():
            self._reached.add(pointer)
            self._collect(schema, pointer)

    def is_reached(self, pointer: str) -> bool:
        return pointer in self._reached

    def occurrences(self) -> Iterator[Occurrence]:
        for pointer, schema in self._found.items():
            for name in schema if isinstance(schema, dict) else ():
                yield Occurrence(pointer, schema, name)

    def owner(self, pointer: str) -> tuple[str, str]:
        """What an error at a pointer is about: (pointer of a keyword, its name), or (pointer of a schema, "").

        A branch of oneOf or anyOf stands for the keyword: without it the others would mean something else. So does what
        stands below not and if, where taking something out would allow less, not more.
        """
        if not pointer.startswith("/"):
            return pointer, ""  # the root, or another document
        place = ""
        for segment in pointer.split("/")[1:]:
            if segment in ("not", "if") and place in self._found:
                return f"{place}/{segment}", segment
            place += f"/{segment}"
        keyword, name = self.enclosing(pointer)
        if pointer in self._found and pointer != keyword and name not in ("oneOf", "anyOf"):
            return pointer, ""
        return keyword, name

    def enclosing(self, pointer: str) -> tuple[str, str]:
        """The innermost keyword that a pointer leads to or into, and its name."""
        while pointer:
            outer, _, segment = pointer.rpartition("/")
            if outer in self._found:
                return pointer, segment.replace("~1", "/").replace("~0", "~")
            pointer = outer
        return "", ""

    def why_annotation(self, one: Occurrence) -> tuple[str, str] | None:
        """(reason, hint) when a keyword asserts nothing where it is; None when it does."""
        keyword = self._keyword(one.name)
        if keyword is None:
            return self._why_unknown(one.name)
        if "$ref" in one.schema and one.name != "$ref" and one.name not in _STRUCTURE and self._old:
            return "drafts up to 7 ignore what stands beside $ref", "wrap the $ref: {'allOf': [{'$ref': ...}]}"
        if keyword.status == "annotation":
            return "an annotation", ""
        if _is_idle(one.name, one.schema):
            return "asserts nothing here", ""
        if one.name == "format":
            return self._why_format(one.value)
        return None

    @property
    def _old(self) -> bool:
        return self._draft is not None and self._draft <= 7

    def _why_unknown(self, name: str) -> tuple[str, str]:
        elsewhere = KEYWORDS.get(name)
        if elsewhere is not None and self._draft is not None:
            return f"not a keyword of {DRAFT_NAMES[self._draft]}", "declare the draft that it is from, or leave it out"
        if name.startswith("x-"):
            return "an extension", ""
        near = get_close_matches(name, ALL_SPELLINGS, 1, 0.8)
        return "no draft knows this keyword", f"did you mean {near[0]!r}?" if near else ""

    def _why_format(self, name: str) -> tuple[str, str] | None:
        if self._options.format == "annotate":
            return "formats are annotations here", ""
        if name in FORMATS:
            return None
        near = get_close_matches(name, FORMATS, 1, 0.8)
        hint = f"did you mean {near[0]!r}?" if near else "a pattern would be enforced"
        return f"the format {name!r} is not known", hint

    def why_idle(self, one: Occurrence) -> str:
        """What is odd about a keyword that is enforced: it speaks of a type that `type` does not allow."""
        kind, types = APPLIES_TO.get(one.name), one.schema.get("type")
        names = [types] if isinstance(types, str) else types
        if kind is None or not isinstance(names, list) or kind in names or (kind == "number" and "integer" in names):
            return ""
        return f"applies to no value: the type is {' or '.join(map(str, names))}"


def _draft(root: Any, options: JsonOptions) -> int | None:
    try:
        return declared_draft(root, "", Resources(root, options.documents).document)
    except ValueError:  # told when the schema is compiled
        return None
