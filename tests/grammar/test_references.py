"""References beyond the document, and those that depend on the way to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from structgen.grammar import Grammar, GrammarError, SchemaError, UnsupportedSchemaError

pytestmark = pytest.mark.nojit

Accepts = Callable[..., bool]

D7 = "http://json-schema.org/draft-07/schema#"
D2019, D2020 = (f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12"))
ADDRESS = {"$defs": {"zip": {"$anchor": "zip", "type": "string", "pattern": "^[0-9]{5}$"}}, "$ref": "#/$defs/zip"}


def error_of(schema: Any, **options: Any) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema, **options)
    return caught.value


@pytest.mark.parametrize("name", ["http://e.org/a", "http://e.org/a#"])
@pytest.mark.parametrize("fragment", ["", "#", "#/$defs/zip", "#zip"])
@pytest.mark.parametrize(
    "document", [ADDRESS, '{"$defs": {"zip": {"$anchor": "zip", "enum": ["12345"]}}, "$ref": "#zip"}']
)
def test_a_document_of_the_caller(name: str, fragment: str, document: Any, accepts: Accepts) -> None:
    schema = {"items": {"$ref": "http://e.org/a" + fragment}}
    assert accepts(schema, ["12345"], documents={name: document})
    assert not accepts(schema, ["1234"], documents={name: document})


def test_documents_lead_to_each_other_and_back(accepts: Accepts) -> None:
    documents = {
        "http://e.org/dir/list": {"type": "array", "items": {"$ref": "item"}, "maxItems": 2},
        "http://e.org/dir/item": {"anyOf": [{"type": "null"}, {"$ref": "/dir/list#"}, {"$ref": "http://e.org/root"}]},
    }
    schema = {"$id": "http://e.org/root", "type": "object", "additionalProperties": {"$ref": "dir/list"}}
    assert accepts(schema, {"a": [None, [{"b": []}]]}, documents=documents)
    assert not accepts(schema, {"a": [None, [{"b": 1}]]}, documents=documents)
    assert not accepts(schema, {"a": [[None, None, None]]}, documents=documents)


def test_a_document_is_known_by_its_identifier(accepts: Accepts) -> None:
    documents = {"file:///tmp/x.json": {"$id": "urn:example:x", "const": 1}}
    assert accepts({"$ref": "urn:example:x"}, 1, documents=documents)
    assert not accepts({"$ref": "urn:example:x"}, 2, documents=documents)


def test_faults_in_documents_point_there() -> None:
    schema = {"items": {"$ref": "http://e.org/a"}}
    cases: list[tuple[Any, str, type[GrammarError]]] = [
        ({"items": {"type": "strin"}}, "http://e.org/a#/items/type", SchemaError),
        ({"items": {"pattern": "("}}, "http://e.org/a#/items/pattern", GrammarError),
        ({"items": {"$ref": "#/nowhere"}}, "http://e.org/a#/items/$ref", SchemaError),
        ({"items": {"$ref": "other"}}, "http://e.org/a#/items/$ref", UnsupportedSchemaError),
        (7, "/items/$ref", SchemaError),
        ("{", "", SchemaError),
        ({"$schema": D7}, "http://e.org/a#/$schema", UnsupportedSchemaError),
    ]
    for document, pointer, kind in cases:
        error = error_of({**schema, "$schema": D2020}, documents={"http://e.org/a": document})
        assert isinstance(error, kind)
        assert error.pointer == pointer
    error = error_of(schema)
    assert isinstance(error, UnsupportedSchemaError)
    assert "documents=" in error.hint


@pytest.mark.parametrize("given", [7, [1], {1: {}}])
def test_documents_are_a_mapping(given: Any) -> None:
    assert "documents" in error_of({}, documents=given).message


def test_an_embedded_resource_of_another_draft_is_refused() -> None:
    schema = {"$schema": D2020, "$defs": {"a": {"$id": "http://e.org/a", "$schema": D7}}, "$ref": "http://e.org/a"}
    assert error_of(schema).pointer == "/$defs/a/$schema"


def test_metaschemas_of_the_caller(accepts: Accepts) -> None:
    core, applicator, validation = (
        f"https://json-schema.org/draft/2020-12/vocab/{name}" for name in ("core", "applicator", "validation")
    )
    schema = {"$schema": "http://e.org/meta", "prefixItems": [{"const": 2}]}
    whole = {"$schema": D2020, "$vocabulary": {core: True, applicator: True, validation: True, "http://e.org/v": False}}
    assert accepts(schema, [2], documents={"http://e.org/meta": whole})
    assert not accepts(schema, [1], documents={"http://e.org/meta": whole})
    for vocabulary in ({core: True, applicator: True}, {**whole["$vocabulary"], "http://e.org/v": True}):  # type: ignore[dict-item]
        error = error_of(schema, documents={"http://e.org/meta": {**whole, "$vocabulary": vocabulary}})
        assert error.pointer == "/$schema"


# A tree whose nodes may be extended: in `strict`, children are strict trees as well.
TREE_2020 = {
    "$id": "http://e.org/tree", "$dynamicAnchor": "node", "type": "object",
    "properties": {"data": True, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}  # fmt: skip
STRICT_2020 = {
    "$schema": D2020, "$id": "http://e.org/strict", "$dynamicAnchor": "node", "$ref": "tree",
    "properties": {"data": {"type": "integer"}},
}  # fmt: skip
TREE_2019 = {
    "$id": "http://e.org/tree", "$recursiveAnchor": True, "type": "object",
    "properties": {"data": True, "children": {"type": "array", "items": {"$recursiveRef": "#"}}},
}  # fmt: skip
STRICT_2019 = {
    "$schema": D2019, "$id": "http://e.org/strict", "$recursiveAnchor": True, "$ref": "tree",
    "properties": {"data": {"type": "integer"}},
}  # fmt: skip


@pytest.mark.parametrize(("strict", "tree"), [(STRICT_2020, TREE_2020), (STRICT_2019, TREE_2019)])
def test_references_that_depend_on_the_way(strict: Any, tree: Any, accepts: Accepts) -> None:
    inside = {"children": [{"data": 1, "children": [{"data": "a"}]}]}
    for schema, documents in (strict, {"http://e.org/tree": tree}), ({**strict, "$defs": {"t": tree}}, None):
        assert accepts(schema, {"children": [{"data": 1, "children": [{"data": 2}]}]}, documents=documents)
        assert not accepts(schema, inside, documents=documents)
    # Entered by itself, the tree is not strict; nor without a dynamic anchor in the outer schema.
    assert accepts({"$schema": strict["$schema"], "$ref": "http://e.org/tree", "$defs": {"t": tree}}, inside)
    plain = {name: value for name, value in strict.items() if name not in ("$dynamicAnchor", "$recursiveAnchor")}
    assert accepts({**plain, "$defs": {"t": tree}}, inside)


def test_a_dynamic_reference_to_a_plain_anchor_is_plain(accepts: Accepts) -> None:
    inner = {
        "$id": "inner",
        "$ref": "#use",
        "$defs": {"u": {"$anchor": "use", "$dynamicRef": "#x"}, "x": {"$anchor": "x", "type": "null"}},
    }
    outer = {
        "$schema": D2020,
        "$id": "http://e.org/o",
        "$ref": "inner",
        "$defs": {"i": inner, "x": {"$dynamicAnchor": "x", "type": "string"}},
    }
    assert accepts(outer, None)
    assert not accepts(outer, "a")


def test_a_pointer_that_crosses_into_another_resource(accepts: Accepts) -> None:
    nested = {
        "$id": "http://e.org/nested/",
        "properties": {"b": {"$ref": "c"}},
        "$defs": {"c": {"$id": "c", "const": 1}},
    }
    schema = {"$schema": D2020, "$id": "http://e.org/", "$ref": "#/$defs/n/properties/b", "$defs": {"n": nested}}
    assert accepts(schema, 1)
    assert not accepts(schema, 2)
