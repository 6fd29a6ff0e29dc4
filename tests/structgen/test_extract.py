from __future__ import annotations

from typing import Any

from structgen.extract import describe_schema, described_messages, extraction_messages

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "full name"},
        "level": {"enum": ["low", "high"]},
        "born": {"type": "string", "format": "date"},
        "jobs": {"type": "array", "items": {"$ref": "#/$defs/job"}},
        "boss": {"anyOf": [{"$ref": "#/$defs/job", "description": "who"}, {"type": "null"}]},
        "any": True,
        "kind": {"const": "x"},
        "size": {"type": ["number", "null"]},
        "words": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {
        "job": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "below": {"$ref": "#/$defs/job", "description": "next"}},
        }
    },
}


def test_fields_are_named_with_type_and_description() -> None:
    lines = describe_schema(NESTED).splitlines()
    assert lines[:5] == [
        "- name (string): full name",
        '- level ("low" or "high")',
        "- born (date)",
        "- jobs (list of object)",
        "  - title (string)",
    ]
    assert "  - below (object): next" in lines
    assert len(lines) == 13
    assert "- boss (object or null)" in lines
    assert "- any" in lines
    assert '- kind ("x")' in lines
    assert "- size (number or null)" in lines
    assert "- words (list of string)" in lines


def test_recursion_ends() -> None:
    assert describe_schema({"$ref": "#"}) == ""
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    assert describe_schema(tree) == "- child (object)"
    wide = {"type": "object", "properties": {str(n): {"$ref": "#/$defs/a"} for n in range(500)}, "$defs": {"a": tree}}
    assert len(describe_schema(wide).splitlines()) <= 80


def test_arrays_and_unions_of_objects_are_opened() -> None:
    record = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert describe_schema({"type": "array", "items": record}) == "- a (integer)"
    assert describe_schema({"anyOf": [{"type": "null"}, record]}) == "- a (integer)"


def test_what_has_no_fields_is_not_described() -> None:
    for schema in (None, True, {}, {"type": "string"}, {"properties": 5}, {"$ref": "#/nowhere"}, {"anyOf": 5}):
        assert describe_schema(schema) == ""


def test_the_prompt_holds_instructions_fields_and_text() -> None:
    messages = extraction_messages("  the text ", NESTED, "Only people.")
    content = messages[-1]["content"]
    assert content.startswith("Only people.")
    assert "full name" in content
    assert content.endswith("Text:\nthe text")
    assert "full name" not in extraction_messages("x", NESTED, describe=False)[-1]["content"]


def test_fields_are_added_to_the_last_user_message() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    told = described_messages(messages, NESTED)
    assert told[0]["content"].startswith("a\n\n")
    assert "full name" in told[0]["content"]
    assert told[1] == messages[1]
    assert messages[0]["content"] == "a"
    assert described_messages(messages, {"type": "string"}) == messages
    assert described_messages([{"role": "system", "content": "s"}], NESTED) == [{"role": "system", "content": "s"}]
