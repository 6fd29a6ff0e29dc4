"""The report: every keyword, all refusals, and what is odd."""

from __future__ import annotations

import json
from typing import Any

import pytest

from structgen.grammar import Finding, Grammar, Report, SchemaError, report_schema
from structgen.grammar.json_schema.edit import without

pytestmark = pytest.mark.nojit

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
# Refused whatever else is enforced by now.
LOOKBEHIND = {"pattern": "(?<=a)b"}
DANGLING = {"$ref": "http://e.org/absent"}


def fates(report: Report) -> dict[str, str]:
    return {one.pointer: one.status for one in report.findings}


def finding(report: Report, pointer: str) -> Finding:
    found = [one for one in report.findings if one.pointer == pointer]
    assert len(found) == 1, report.findings
    return found[0]


def test_every_keyword_is_listed() -> None:
    schema = {"title": "t", "type": "object", "properties": {"a/b": {"type": "string", "maxLength": 3}}, "x-y": 1}
    report = Grammar.from_json_schema(schema).report()
    assert fates(report) == {
        "/title": "annotation",
        "/type": "enforced",
        "/properties": "enforced",
        "/x-y": "annotation",
        "/properties/a~1b/type": "enforced",
        "/properties/a~1b/maxLength": "enforced",
    }
    assert report.is_enforced
    assert report.is_complete
    assert report.outcome == "enforced"
    assert report.counts() == {"enforced": 4, "annotation": 2, "refused": 0}
    assert json.loads(json.dumps(report.as_dict()))["keywords"][0]["keyword"] == "title"


def test_all_refusals_are_found() -> None:
    schema = {
        "properties": {"a": LOOKBEHIND, "b": {"type": "strin"}, "c": {"items": DANGLING}},
        "allOf": [{"minLength": -1}, {"anyOf": [DANGLING, {"type": "null"}]}],
    }
    report = report_schema(schema)
    assert {one.pointer: one.code for one in report.refused} == {
        "/properties/a/pattern": "invalid_grammar",
        "/properties/b/type": "invalid_schema",
        "/properties/c/items/$ref": "unsupported_schema",
        "/allOf/0/minLength": "invalid_schema",
        "/allOf/1/anyOf/0/$ref": "unsupported_schema",
    }
    assert finding(report, "/properties/b/type").hint == "did you mean 'string'?"
    assert report.outcome == "invalid_schema"
    assert not report.is_enforced
    assert report.is_complete
    assert fates(report)["/properties/c/items"] == "enforced"


def test_the_schema_is_left_as_it_was() -> None:
    schema = {"properties": {"a": LOOKBEHIND}, "allOf": [DANGLING]}
    before = json.dumps(schema)
    report_schema(schema)
    assert json.dumps(schema) == before


def test_what_stands_inside_a_refused_keyword() -> None:
    big = {"oneOf": [{"anyOf": [{"type": "string", "pattern": f"^{a}{i}"} for i in range(300)]} for a in "ab"]}
    report = report_schema({"items": big, "minItems": 1})
    assert finding(report, "/items").code == "schema_too_complex"
    assert fates(report)["/items/oneOf/0/anyOf/7/pattern"] == "refused"
    assert finding(report, "/items/oneOf").reason == "inside /items, which is refused"
    assert fates(report)["/minItems"] == "enforced"


@pytest.mark.parametrize("keyword", ["not", "if"])
def test_what_stands_below_a_negation_is_taken_out_with_it(keyword: str) -> None:
    report = report_schema({"items": {keyword: {"properties": {"a": LOOKBEHIND}}, "then": False}, "minLength": -1})
    place = f"/items/{keyword}"
    assert {one.pointer: one.code for one in report.refused if not one.reason.startswith("inside")} == {
        f"{place}/properties/a/pattern": "invalid_grammar",
        "/minLength": "invalid_schema",
    }
    assert finding(report, f"{place}/properties").reason == f"inside {place}, which is refused"


def test_what_is_perhaps_satisfied_by_nothing() -> None:
    report = report_schema({"items": LOOKBEHIND, "enum": []})
    assert report.outcome == "unsatisfiable_schema" or not report.is_complete


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 1}, ""),
        ({"required": ["a"], "type": "object", "properties": {"a": {"enum": []}}}, "/properties/a"),
        ({"$ref": "#"}, ""),
    ],
)
def test_what_nothing_satisfies(schema: Any, pointer: str) -> None:
    report = report_schema(schema)
    assert report.outcome == "unsatisfiable_schema"
    assert [one.pointer for one in report.refused] == [pointer]


@pytest.mark.parametrize("schema", ['{"a":', 7, [], "7", None])
def test_what_is_no_schema(schema: Any) -> None:
    report = report_schema(schema)
    assert report.outcome == "invalid_schema"
    assert [one.pointer for one in report.refused] == [""]


@pytest.mark.parametrize("schema", [True, {}, "true", '{"type": "null"}'])
def test_small_schemas(schema: Any) -> None:
    assert report_schema(schema).is_enforced


def test_false_is_satisfied_by_nothing() -> None:
    assert report_schema(False).outcome == "unsatisfiable_schema"


@pytest.mark.parametrize(
    ("schema", "pointer", "reason", "hint"),
    [
        ({"minlength": 2}, "/minlength", "no draft knows this keyword", "did you mean 'minLength'?"),
        ({"wibble": 2}, "/wibble", "no draft knows this keyword", ""),
        ({"format": "datetime"}, "/format", "the format 'datetime' is not known", "did you mean 'date-time'?"),
        ({"format": "colour"}, "/format", "the format 'colour' is not known", "a pattern would be enforced"),
        ({"$schema": D4, "const": 1}, "/const", "not a keyword of draft-04", "declare the draft that it is from"),
        ({"$schema": D7, "$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {}}}, "/maxLength",
         "drafts up to 7 ignore what stands beside $ref", "wrap the $ref"),
        ({"$defs": {"a": {"type": "null"}}}, "/$defs/a/type", "nothing refers to this schema", ""),
        ({"then": {"type": "null"}}, "/then", "asserts nothing here", ""),
        ({"uniqueItems": False}, "/uniqueItems", "asserts nothing here", ""),
        ({"maxContains": 3}, "/maxContains", "asserts nothing here", ""),
        ({"additionalProperties": True}, "/additionalProperties", "asserts nothing here", ""),
        ({"description": "d"}, "/description", "an annotation", ""),
    ],
)  # fmt: skip
def test_why_something_is_an_annotation(schema: Any, pointer: str, reason: str, hint: str) -> None:
    found = finding(report_schema(schema), pointer)
    assert (found.status, found.reason) == ("annotation", reason)
    assert found.hint.startswith(hint)
    assert bool(found.hint) == bool(hint)


def test_a_keyword_for_another_type() -> None:
    report = report_schema({"type": "integer", "minLength": 3, "minimum": 1})
    assert finding(report, "/minLength").reason == "applies to no value: the type is integer"
    assert finding(report, "/minimum").reason == ""


def test_options_change_the_report() -> None:
    assert finding(report_schema({"format": "date"}), "/format").status == "enforced"
    assert finding(report_schema({"format": "date"}, format="annotate"), "/format").status == "annotation"
    assert finding(report_schema({"format": "colour"}, unknown_format="refuse"), "/format").status == "refused"
    refused = report_schema({"items": {"minlength": 2}, "wibble": 1}, strict_keywords=True).refused
    assert [one.pointer for one in refused] == ["/wibble", "/items/minlength"]
    with pytest.raises(SchemaError):
        report_schema({}, whitespace="tight")


def test_schemas_that_only_references_lead_to() -> None:
    schema = {"$ref": "#/components/schemas/Pet", "components": {"schemas": {"Pet": {"maxLength": 3}, "Cat": {}}}}
    report = report_schema(schema)
    assert fates(report) == {
        "/$ref": "enforced", "/components": "annotation", "/components/schemas/Pet/maxLength": "enforced",
    }  # fmt: skip


def test_other_documents_are_reported_as_well() -> None:
    documents = {"http://e.org/a": {"maxLength": 3}}
    assert fates(report_schema({"$ref": "http://e.org/a"}, documents=documents)) == {
        "/$ref": "enforced", "http://e.org/a#/maxLength": "enforced",
    }  # fmt: skip
    broken = {"http://e.org/a": LOOKBEHIND}
    report = report_schema({"$ref": "http://e.org/a", "minLength": 1}, documents=broken)
    assert [one.pointer for one in report.refused] == ["http://e.org/a#/pattern"]
    assert not report.is_complete


def test_grammars_without_keywords() -> None:
    assert Grammar.from_regex("a").report() == Report(())


def test_editing_shares_and_copies() -> None:
    root = {"a": [{"b": 1}, {"c": 2}], "d": {}}
    edited = without(root, "/a/1/c", replace=False)
    assert edited == {"a": [{"b": 1}, {}], "d": {}}
    assert root["a"][1] == {"c": 2}  # type: ignore[index]
    assert edited["d"] is root["d"]
    assert without(root, "/a/0", replace=True) == {"a": [True, {"c": 2}], "d": {}}
    assert without(root, "", replace=True) is True
