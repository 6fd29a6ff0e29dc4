"""The exact validator: numbers, equality, patterns, JSON text, references, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from structgen.grammar.errors import GrammarLimitError, SchemaError
from structgen.validate import FormatPolicy, ValidationIssue, Validator
from structgen.validation.formats import FORMATS

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.1}, ["0.3", "1e999999999", "-0.7", "0"], ["0.35", "1e-999999999"]),
        ({"multipleOf": 1e-8}, ["1", "0.00000003"], ["0.000000015"]),
        ({"multipleOf": 7}, ["7e3", "700", "0e5"], ["7e-1", "1e1000000"]),
        ({"type": "integer"}, ["1.0", "1e2", "-0", "1" * 5000], ["1.5", "true", "1e-1", '"1"']),
        ({"type": "integer", "$schema": DRAFT_4}, ["1", "1" * 5000], ["1.0", "1e2"]),
        ({"maximum": 10**40}, ["1" + "0" * 40, "-" + "9" * 5000], ["1" + "0" * 39 + "1", "9" * 5000, "1e41"]),
        ({"exclusiveMinimum": 0.1}, ["0.10000000000000000001"], ["0.1", "0.1000"]),
        ({"minimum": 5, "exclusiveMinimum": True, "$schema": DRAFT_4}, ["6"], ["5"]),
        ({"minimum": 5, "exclusiveMinimum": True}, ["6"], ["5"]),
        ({"enum": [1, "a", [1], {"b": 2}]}, ["1.0", "1e0", "[1.0]", '{"b": 2.00}'], ["true", "[true]", '"1"']),
        ({"const": False}, ["false"], ["0", "0.0", "null"]),
        ({"const": 0}, ["0", "-0", "0.0"], ["false"]),
        ({"uniqueItems": True}, ["[1, true]", "[0, false, null]"], ["[1, 1.0]", '[{"a":1,"b":2}, {"b":2,"a":1.0}]']),
        ({"pattern": r"^\d$"}, ['"3"'], ['"\u0663"']),
        ({"pattern": r"\p{Lu}"}, ['"xÉx"'], ['"xéx"']),
        ({"pattern": "^.$"}, ['"\U0001f600"'], ['""', '"ab"']),
        ({"pattern": r"^[\w\-\.]+$"}, ['"a-b.c"'], ['"a b"']),
        ({"pattern": r"^[\w-.]\_$"}, ['"-_"'], ['"/_"']),
        ({"pattern": "^(?P<year>[0-9]{4})$"}, ['"2024"'], ['"24"']),
        ({"minLength": 2, "maxLength": 2}, ['"\U0001f600\U0001f600"'], ['"\U0001f600"', '"abc"']),
        ({"items": [{"type": "string"}], "additionalItems": False}, ['["a"]', "[]"], ["[1]", '["a", 1]']),
        ({"dependencies": {"a": ["b"]}}, ['{"a":1,"b":2}', "{}"], ['{"a":1}']),
        ({"properties": {"a": False}}, ["{}"], ['{"a": 1}']),
        (False, [], ["null", "1"]),
    ],
)
def test_instances(schema: Any, valid: list[str], invalid: list[str]) -> None:
    validator = Validator(schema)
    assert {text: validator.errors_in_text(text) for text in valid} == {text: [] for text in valid}
    assert [text for text in invalid if validator.is_valid(text)] == []


@pytest.mark.parametrize(
    ("text", "pointer", "words"),
    [
        ('{"a": 1, "a": 2}', "/a", "twice"),
        ('{"x": [{"b/c": 1, "b/c": 1}]}', "/x/0/b~1c", "twice"),
        ("NaN", "", "NaN"),
        ('{"a": -Infinity}', "", "-Infinity"),
        ("1e9999999999999999999", "", "out of range"),
        ('["\\ud800"]', "/0", "surrogate"),
        ('{"\\ud800": 1}', "", "surrogate"),
        ("[1,]", "", "line 1 column 4"),
        ("", "", "line 1"),
        ("1 2", "", "Extra data"),
        ("[" * 100_000, "", "deeply"),
    ],
)
def test_text_that_is_not_json(text: str, pointer: str, words: str) -> None:
    issue = Validator(True).errors_in_text(text)[0]
    assert (issue.pointer, issue.schema_pointer) == (pointer, None)
    assert words in issue.message


def test_bytes_must_be_utf8() -> None:
    validator = Validator({"type": "string"})
    assert validator.is_valid('"é"'.encode())
    assert "UTF-8" in validator.errors(b'"\xff"')[0].message


def test_python_values() -> None:
    validator = Validator({"properties": {"a": {"multipleOf": 0.1}}, "required": ["a"]})
    assert validator.is_valid({"a": 0.3})
    assert validator.is_valid({"a": Decimal("0.3")})
    assert not validator.is_valid({"a": 0.35})
    assert Validator({"type": "string"}).errors_in_value("plain") == []
    assert Validator({"type": "array"}).is_valid((1, 2))


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, {1: 2}, {"a": {1}}, ["\ud800"], Decimal("NaN")])
def test_python_values_that_are_not_json(value: Any) -> None:
    issues = Validator(True).errors(value)
    assert len(issues) == 1
    assert issues[0].schema_pointer is None


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "stringg"}, "/type"),
        ({"type": 5}, "/type"),
        ({"type": []}, "/type"),
        ({"properties": {"a/b": {"maxLength": -1}}}, "/properties/a~1b/maxLength"),
        ({"properties": []}, "/properties"),
        ({"items": [{"type": "strin"}]}, "/items/0/type"),
        ({"pattern": "["}, "/pattern"),
        ({"pattern": 5}, "/pattern"),
        ({"anyOf": [{}, {"patternProperties": {"(": True}}]}, "/anyOf/1/patternProperties/("),
        ({"$ref": "http://example.com/schema.json"}, "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"properties": {"a": {"$ref": "#/$defs/nope"}}}, "/properties/a/$ref"),
        ({"$ref": "#/required", "required": ["a"]}, "/$ref"),
        ({"$ref": "#/x", "x": {"type": "strin"}}, "/$ref/type"),
        ({"$schema": "http://example.com/mine"}, "/$schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
        ({"$schema": 5}, "/$schema"),
        ({"$schema": DRAFT_7, "items": {"exclusiveMinimum": True}}, "/items/exclusiveMinimum"),
        ({"maximum": float("nan")}, "/maximum"),
        ({"enum": "abc"}, "/enum"),
        (5, ""),
        (None, ""),
        ('{"type": "object", "type": "array"}', "/type"),
        ('{"type": ', ""),
    ],
)
def test_bad_schemas_are_refused_with_a_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Validator(schema)
    assert caught.value.pointer == pointer
    assert caught.value.message


def test_a_type_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(SchemaError, match='"stringg" is not a type; the types are array, boolean'):
        Validator({"type": "stringg"})


def test_references_reach_only_the_documents_given() -> None:
    documents = {"http://example.com/age.json": {"type": "integer", "minimum": 0}}
    validator = Validator({"properties": {"age": {"$ref": "http://example.com/age.json"}}}, registry=documents)
    assert validator.errors('{"age": -1}') == [
        ValidationIssue("/age", "-1 is less than the minimum of 0", "/properties/age/$ref/minimum")
    ]


def test_a_broken_document_in_the_registry_is_found() -> None:
    with pytest.raises(SchemaError) as caught:
        Validator({"$ref": "http://example.com/a"}, registry={"http://example.com/a": {"type": "strin"}})
    assert caught.value.pointer == "/$ref/type"


def test_siblings_of_ref_are_ignored_up_to_draft_7() -> None:
    schema = {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}}
    assert Validator({"$schema": DRAFT_7, **schema}).is_valid('"abc"')
    assert not Validator(schema).is_valid('"abc"')


def test_pointers_and_messages() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"minLength": 2}, "b": {"$ref": "#/$defs/b"}},
        "required": ["c"],
        "additionalProperties": False,
        "$defs": {"b": {"type": ["integer", "null"]}},
    }
    issues = Validator(schema).errors('{"a": "x", "b": "y", "z": 1}')
    assert sorted(map(tuple, issues)) == [
        ("", 'the required property "c" is missing', "/required"),
        ("/a", "has 1 characters, needs at least 2", "/properties/a/minLength"),
        ("/b", '"y" is not of type integer or null', "/properties/b/$ref/type"),
        ("/z", 'the property "z" is not allowed here', "/additionalProperties"),
    ]
    assert str(issues[0]).startswith("/")


def test_alternatives_name_the_closest() -> None:
    schema = {"anyOf": [{"type": "null"}, {"properties": {"a": {"type": "string"}}, "type": "object"}]}
    (issue,) = Validator(schema).errors('{"a": 1}')
    assert issue.message == "matches none of the alternatives; closest: /a: 1 is not of type string"
    (issue,) = Validator({"oneOf": [{"type": "integer"}, {"minimum": 2}]}).errors("3")
    assert issue.message == "matches several of the alternatives (0, 1), not exactly one"


def test_messages_stay_short() -> None:
    (issue,) = Validator({"type": "null"}).errors("[" + ",".join(["123456789"] * 10_000) + "]")
    assert len(issue.message) < 120
    (issue,) = Validator({"type": "null"}).errors('{"a": "' + "x" * 10_000 + '"}')
    assert len(issue.message) < 120
    (issue,) = Validator({"type": "null"}).errors("9" * 100_000)
    assert len(issue.message) < 120
    (issue,) = Validator({"type": "null"}).errors("9" * 3_000)
    assert len(issue.message) < 120


def test_depth_is_an_issue_and_not_a_crash() -> None:
    tree = {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}, "type": "object"}}}
    assert Validator(tree).is_valid('{"c":' * 100 + "{}" + "}" * 100)
    (issue,) = Validator(tree).errors('{"c":' * 900 + "{}" + "}" * 900)
    assert "deeply" in issue.message
    (issue,) = Validator({"$ref": "#"}).errors("1")
    assert "forever" in issue.message
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    assert len(Validator({"items": {"$ref": "#"}}).errors(nested)) == 1
    assert len(Validator({"const": [1]}).errors(nested)) == 1


def test_a_schema_too_deep_is_a_limit() -> None:
    schema: Any = {}
    for _ in range(2000):
        schema = {"items": schema}
    with pytest.raises(GrammarLimitError):
        Validator(schema)


def test_formats_are_asserted_in_every_draft_unless_annotated() -> None:
    for draft in (DRAFT_4, DRAFT_7, "https://json-schema.org/draft/2020-12/schema"):
        assert not Validator({"$schema": draft, "format": "duration"}).is_valid('"P"')
        assert Validator({"$schema": draft, "format": "duration"}, format="annotate").is_valid('"P"')
    assert Validator({"format": "no-such-format"}).is_valid('"x"')
    assert Validator({"format": "date"}).is_valid("1")


def test_wrong_options_are_refused() -> None:
    wrong: Any = "maybe"
    with pytest.raises(ValueError, match="format must be"):
        Validator({}, format=wrong)
    with pytest.raises(ValueError, match="default_dialect"):
        Validator({}, default_dialect="http://example.com")


def test_prefix_items_evaluate_nothing_before_2020() -> None:
    schema = {"prefixItems": [True], "unevaluatedItems": False}
    assert Validator({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}).is_valid("[1]")
    assert not Validator({"$schema": "https://json-schema.org/draft/2019-09/schema", **schema}).is_valid("[1]")


@pytest.mark.parametrize("policy", ["assert", "annotate"])
def test_unevaluated_properties_see_through_references(policy: FormatPolicy) -> None:
    schema = {
        "$defs": {"base": {"properties": {"a": True}, "patternProperties": {"^x-": True}}},
        "allOf": [{"$ref": "#/$defs/base"}, {"if": {"required": ["b"]}, "then": {"properties": {"b": True}}}],
        "unevaluatedProperties": False,
    }
    validator = Validator(schema, format=policy)
    assert validator.is_valid('{"a": 1, "b": 2, "x-y": 3}')
    assert validator.errors('{"a": 1, "c": 2}')[0].pointer == "/c"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "0000-02-29"], ["2023-02-29", "2024-2-1", "2024-02-29\n", "٢٠٢٤-01-01"]),
        ("time", ["23:59:60Z", "01:29:60+01:30", "00:00:00.123456789-00:00"], ["12:00:00", "24:00:00Z", "22:59:60Z"]),
        (
            "date-time",
            ["2024-01-01T00:00:00Z", "2024-01-01t00:00:00z"],
            ["2024-01-01 00:00:00Z", "2024-13-01T00:00:00Z"],
        ),
        ("duration", ["P1Y2M3DT4H5M6S", "P4W", "PT36H"], ["P", "P1YT", "PT1.5S", "P1Y2D", "P1W1D"]),
        (
            "email",
            ["a@b", '"a b"@c.de', "a+b@[127.0.0.1]", "a@[IPv6:::1]"],
            ["a", "a@", "@b", "a..b@c", "a b@c", "ä@b.c"],
        ),
        ("idn-email", ["ä@b.c", "ü@münchen.de"], ["ä", "@ä"]),
        ("hostname", ["a", "a-b.c", "xn--mnchen-3ya.de"], ["", "-a", "a.", "a_b", "a" * 64, "xn--X", "ä.de", "a\n"]),
        ("idn-hostname", ["münchen.de", "a\u3002b"], ["", "a..b", "-a", "a\u0640b\u07fa"]),
        ("ipv4", ["0.0.0.0", "255.255.255.255"], ["256.0.0.0", "01.0.0.0", "1.2.3", "1.2.3.4 ", "１.2.3.4"]),
        ("ipv6", ["::", "::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["::1%eth0", ":::", "1::2::3", "::ffff:01.2.3.4"]),
        (
            "uri",
            ["a:", "http://a/b?c#d", "http://[::1]:80/", "urn:x:y"],
            ["a", "//a", "http://a b", "http://[::g]/", "1:a"],
        ),
        ("uri-reference", ["", "a", "//a", "?q", "./a:b"], ["a b", "\\a", "1:b", "#a#b"]),
        ("iri", ["http://ä/ö?ü#ß"], ["ä", "http://ä b"]),
        ("iri-reference", ["ä", ""], ["ä b"]),
        (
            "uuid",
            ["123e4567-e89b-12d3-a456-426614174000"],
            ["123e4567e89b12d3a456426614174000", "{123e4567-e89b-12d3-a456-426614174000}"],
        ),
        ("json-pointer", ["", "/", "/a~0b/~1"], ["a", "/~2", "/~"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["", "01", "-1", "/a", "0##"]),
        ("regex", ["^a$", r"\p{L}"], ["(", r"\a", r"\Z"]),
        ("uri-template", ["/a/{b}", "{?x,y*,z:3}"], ["{", "{}", "{a,}", "a b"]),
    ],
)
def test_formats(name: str, good: list[str], bad: list[str]) -> None:
    check = FORMATS[name]
    assert [text for text in good if not check(text)] == []
    assert [text for text in bad if check(text)] == []


@pytest.mark.parametrize("beside", [{}, {"minLength": 1}, {"const": 1}, {"type": ["array", "number"]}])
@pytest.mark.parametrize("keyword", ["$ref", "allOf", "anyOf", "oneOf", "not", "if"])
def test_a_schema_that_refers_to_itself_forever(keyword: str, beside: dict[str, Any]) -> None:
    """Python's stack may end anywhere, also in code of other languages, which then panics."""
    again: Any = {"$ref": "#/$defs/d"}
    value = again if keyword in ("not", "if") else "#/$defs/d" if keyword == "$ref" else [again]
    loop = {keyword: value, "then": True, **beside}
    issues = Validator({"$ref": "#/$defs/d", "$defs": {"d": loop}}).errors_in_value(1)
    assert issues
    assert "forever" in issues[-1].message or beside
