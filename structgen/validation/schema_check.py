"""A schema document made ready: the dialect found, the document checked, every reference followed once."""

from __future__ import annotations

from typing import Any

from jsonschema.exceptions import best_match
from jsonschema_specifications import REGISTRY as METASCHEMAS  # type: ignore[import-untyped]
from referencing import Registry, Resource
from referencing.exceptions import CannotDetermineSpecification, NoSuchResource, Unresolvable
from referencing.jsonschema import lookup_recursive_ref, specification_with

from structgen.grammar.errors import GrammarLimitError, SchemaError
from structgen.validation.dialects import (
    DRAFT_2019_09,
    DRAFT_2020_12,
    LEGACY,
    UNDECLARED,
    FormatPolicy,
    is_known,
    normal_uri,
    validator_class,
)
from structgen.validation.equality import Choices
from structgen.validation.patterns import PatternError, compile_pattern
from structgen.validation.pointers import from_path, join
from structgen.validation.show import show
from structgen.validation.walk import children, subschemas

_VOCABULARY = {
    DRAFT_2019_09: "https://json-schema.org/draft/2019-09/vocab/validation",
    DRAFT_2020_12: "https://json-schema.org/draft/2020-12/vocab/validation",
}

_TYPES = "array, boolean, integer, null, number, object, string"


def checked_validator(schema: Any, registry: Registry[Any], policy: FormatPolicy, default: str) -> Any:
    """A `jsonschema` validator of the right dialect for an exact (see `json_text`) schema document.

    Raises:
        SchemaError: the document is not a valid schema, names an unknown dialect, holds a broken pattern,
            or refers to something that is neither in it nor in the registry. `.pointer` says where.
        GrammarLimitError: the document is nested too deeply to be checked.
    """
    try:
        return _checked_validator(schema, registry, policy, default)
    except RecursionError:
        hint = "flatten it with `$defs`"
        raise GrammarLimitError("the schema is nested too deeply", pointer="", hint=hint) from None


def _checked_validator(schema: Any, registry: Registry[Any], policy: FormatPolicy, default: str) -> Any:
    if not isinstance(schema, dict | bool):
        raise SchemaError(f"a schema is an object or a boolean, not {show(schema)}", pointer="")
    dialect, without_validation = _dialect(schema, registry, default)
    cls = validator_class(dialect, policy, without_validation)
    _check_against_metaschema(cls, schema, "", lenient=dialect == UNDECLARED)
    specification = specification_with(DRAFT_2020_12 if dialect == UNDECLARED else dialect)
    resolver = registry.resolver_with_root(specification.create_resource(schema))
    _Visit(cls, schema, dialect).run(schema, resolver)
    return cls(schema, registry=registry, _resolver=resolver)


def _dialect(schema: Any, registry: Registry[Any], default: str) -> tuple[str, bool]:
    """(dialect, whether its validation vocabulary is off)."""
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if declared is None:
        return default, False
    if not isinstance(declared, str):
        raise SchemaError("`$schema` must be a string", pointer="/$schema")
    name = normal_uri(declared)
    if is_known(name):
        return name, False
    if name in {"http://json-schema.org/schema", "https://json-schema.org/schema"}:  # "the latest"
        return DRAFT_2020_12, False
    try:
        metaschema: Any = registry.get_or_retrieve(name).value.contents
        base = normal_uri(metaschema["$schema"])
        known = is_known(base)
    except (NoSuchResource, LookupError, TypeError, AttributeError):
        known = False
    if not known:
        raise SchemaError(
            f"unknown dialect {show(declared)}",
            pointer="/$schema",
            hint="use the URI of draft 4, 6, 7, 2019-09 or 2020-12, or leave `$schema` out",
        )
    vocabulary = metaschema.get("$vocabulary")
    return base, vocabulary is not None and _VOCABULARY.get(base) not in vocabulary


def _check_against_metaschema(cls: Any, schema: Any, at: str, *, lenient: bool) -> None:
    plain = validator_class(normal_uri(cls.META_SCHEMA.get("$schema", DRAFT_2020_12)), "annotate")
    checked = _modernised(schema) if lenient else schema
    error = best_match(plain(cls.META_SCHEMA, registry=METASCHEMAS).iter_errors(checked))
    if error is None:
        return
    pointer = at + from_path(error.absolute_path)
    raise SchemaError(
        _schema_message(error), pointer=pointer if not lenient else pointer.replace("/prefixItems", "/items")
    )


def _schema_message(error: Any) -> str:
    keyword = error.absolute_path[-1] if error.absolute_path else None
    subject = f"`{keyword}`" if isinstance(keyword, str) else "the schema"
    if keyword == "type" and error.validator in {"anyOf", "enum"}:
        return f"{show(error.instance)} is not a type; the types are {_TYPES}"
    if error.validator == "type":
        wanted = error.validator_value
        names = " or ".join(wanted) if isinstance(wanted, list) else wanted
        return f"{subject} must be of type {names}, not {show(error.instance)}"
    if error.validator == "enum":
        return f"{subject} must be one of {show(error.validator_value)}, not {show(error.instance)}"
    if error.validator == "minimum":
        return f"{subject} must be at least {show(error.validator_value)}, not {show(error.instance)}"
    return f"{subject} is not valid in a schema: {show(error.instance)} breaks the metaschema's `{error.validator}`"


def _modernised(schema: Any) -> Any:
    """The document with older spellings of items and bounds written as 2020-12 has them, for its metaschema."""
    out: list[Any] = [schema]
    todo: list[tuple[Any, Any]] = [(out, 0)]
    while todo:
        holder, key = todo.pop()
        node = holder[key]
        if isinstance(node, dict):
            node = dict(node)
            if isinstance(node.get("items"), list):
                node["prefixItems"] = node.pop("items")
            for bound in ("exclusiveMinimum", "exclusiveMaximum"):
                if isinstance(node.get(bound), bool):
                    del node[bound]
            todo.extend((node, name) for name in node)
        elif isinstance(node, list):
            node = list(node)
            todo.extend((node, index) for index in range(len(node)))
        holder[key] = node
    return out[0]


class _Visit:
    """Follow every reference that validation can follow, and compile what it will need."""

    def __init__(self, cls: Any, root: Any, dialect: str) -> None:
        self.cls = cls
        self.dialect = dialect
        self.covered = {id(schema) for _, schema in subschemas(root)}
        self.seen: set[int] = set()

    def run(self, root: Any, resolver: Any) -> None:
        todo = [("", root, resolver, self.dialect, True)]
        while todo:
            pointer, schema, base, dialect, entered = todo.pop()
            if not isinstance(schema, dict) or id(schema) in self.seen:
                continue
            self.seen.add(id(schema))
            dialect = self._dialect_of(schema, dialect)
            specification = specification_with(DRAFT_2020_12 if dialect == UNDECLARED else dialect)
            if not entered:  # the resolver of a reference's target is inside it already
                base = base.in_subresource(specification.create_resource(schema))
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                if keyword in schema and keyword in self.cls.VALIDATORS:
                    todo.append(self._follow(schema, keyword, join(pointer, keyword), base, dialect))
            if dialect in LEGACY and "$ref" in schema:
                continue
            self._prepare(schema, pointer)
            todo.extend((at, child, base, dialect, False) for at, child in children(schema, pointer, definitions=False))

    @staticmethod
    def _dialect_of(schema: dict[str, Any], inherited: str) -> str:
        declared = schema.get("$schema")
        name = normal_uri(declared) if isinstance(declared, str) else inherited
        return name if is_known(name) else inherited

    def _follow(self, schema: Any, keyword: str, at: str, base: Any, dialect: str) -> tuple[str, Any, Any, str, bool]:
        target = schema[keyword]
        try:
            resolved = lookup_recursive_ref(base) if keyword == "$recursiveRef" else base.lookup(target)
        except (Unresolvable, CannotDetermineSpecification, ValueError, TypeError, LookupError, AttributeError):
            hint = "put the definition into the schema itself; nothing is fetched from files or the network"
            raise SchemaError(f"{keyword} {show(target)} does not resolve", pointer=at, hint=hint) from None
        contents = resolved.contents
        if not isinstance(contents, dict | bool):
            raise SchemaError(f"{keyword} {show(target)} points at something that is not a schema", pointer=at)
        if isinstance(contents, dict) and id(contents) not in self.covered:
            self._cover(contents, at, dialect)
        return at, contents, resolved.resolver, dialect, True

    def _cover(self, contents: dict[str, Any], at: str, dialect: str) -> None:
        """A target outside the places that the first check saw: another document, or an unknown keyword."""
        own = self._dialect_of(contents, dialect)
        cls = validator_class(own, self.cls.policy)
        _check_against_metaschema(cls, contents, at, lenient=own == UNDECLARED)
        self.covered.update(id(schema) for _, schema in subschemas(contents))

    @staticmethod
    def _prepare(schema: dict[str, Any], pointer: str) -> None:
        if isinstance(schema.get("enum"), list):
            schema["enum"] = Choices(schema["enum"])
        patterns = [(join(pointer, "pattern"), schema["pattern"])] if isinstance(schema.get("pattern"), str) else []
        at = join(pointer, "patternProperties")
        patterns.extend((join(at, regex), regex) for regex in schema.get("patternProperties", ()))
        for place, regex in patterns:
            try:
                compile_pattern(regex)
            except PatternError as error:
                raise SchemaError(f"{show(regex)} is not a regular expression: {error}", pointer=place) from None


def make_registry(documents: Any) -> Registry[Any]:
    """The documents that references may reach: the standard metaschemas and what the caller hands over."""
    known: Registry[Any] = METASCHEMAS
    if documents is None:
        return known
    if isinstance(documents, Registry):
        return known.combine(documents)
    default = specification_with(DRAFT_2020_12)
    return known.with_resources(
        (uri, Resource.from_contents(contents, default_specification=default)) for uri, contents in documents.items()
    )
