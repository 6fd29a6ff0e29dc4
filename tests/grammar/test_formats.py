"""Formats beyond what the corpus holds: limits of length, and agreement with the exact validator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from structgen.grammar import Grammar, UnsupportedSchemaError, Vocabulary
from structgen.grammar.formats import FORMATS, NARROWED_FORMATS
from structgen.validate import Validator

Accepts = Callable[..., bool]
Allowed = Callable[..., set[int]]

LABEL = "a" * 63

VALID = {
    "date": ["0001-01-01", "9999-12-31", "2400-02-29"],
    "time": ["00:00:00.000000001-23:59", "08:30:06+08:00"],
    "date-time": ["1998-12-31T23:59:60.123Z", "2024-02-29t00:00:00+14:00"],
    "duration": ["P999999999Y", "PT0S", "P3M4D", "P5DT3M"],
    "email": ["a" * 64 + "@x.org", '"a\\"b"@x', "!#$%&'*+/=?^_`{|}~-@a", "a.b.c.d.e.f@x"],
    "hostname": [LABEL, f"{LABEL}.{LABEL}.{LABEL}", "a.b.c.d.e.f.g.h.i.j", "0.1"],
    "idn-email": ["δοκιμή@例え.jp", '"ü"@x', "joe@x.org", "é.è@[1.2.3.4]"],
    "idn-hostname": [
        "bücher.example",
        "실례.테스트",
        "例え。テスト",
        "www.пример.рф",
        "אבג.com",
        "हिन्दी.भारत",
        "ไทย",
        LABEL,
    ],
    "uri-template": ["/a/{id}/{+path:30}{?q,r*}", "", "{%41.b}x", "é{x}"],
    "regex": [
        "^[a-z_][a-z0-9-]*$",
        r"(?:\d{1,3}\.){3}(?<last>\d+)",
        "((((a)|b)*)c)?",
        r"[^\w\s-]\p{Lu}\P{Script=Greek}",
        "(?<!a)b(?=c)",
        r"[\x00-\x1f\u0400-\uffff]\u{1F600}",
        "[]",
        "a{2,10}?|",
        "[а-я!-~]",
        r"\cA\/\t",
    ],
    "ipv4": ["192.168.10.1", "9.99.199.249"],
    "ipv6": ["1::3:4:5:6:7:8", "::42:ff:1", "d6::", "::abef", "1:d6::42", "::ffff:192.168.0.1"],
    "uri": ["http://user:pw@h:80/p;x=1?q=%C3%A9&r#f", "data:,x", "urn:a:b", "http://[v1.a]/", "x:/", "http://"],
    "uri-reference": [".", "./a:b", "%41", "?#", "//"],
    "iri": ["http://漢字.example/路?問=答#片"],
    "iri-reference": ["路", "?é#ü"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "json-pointer": ["/a/b~0~1", "/ /\\"],
    "relative-json-pointer": ["10#", "0/a~1"],
}
INVALID = {
    "date": ["2024-2-29", "2024-06-31", "02024-01-01", "2024-01-0１"],
    "time": ["1:00:00Z", "00:00:60Z", "22:59:60Z", "00:00:00+00", "00:00:00 Z"],
    "date-time": ["2024-01-01T00:00Z", "2024-01-01T00:00:00.Z", "2023-02-29T00:00:00Z"],
    "duration": ["P1H", "PT1Y", "P1M2Y", "p1d", "P-1D", "P1DT", "P1W1D"],
    "email": ["a" * 65 + "@x", "a@-x", "a@x..y", "a(b)@x", "é@x", "a@[1.2.3]"],
    "hostname": ["a" * 64, "a.-b", "a.b-.c", "a.b.", " a", f"{LABEL}.{LABEL}.{LABEL}.{LABEL}"],
    "idn-email": ["é", "@é", "a@é..b", "a(é)@x", "é" * 33 + "@x", "é@xn--X"],
    "idn-hostname": [
        "-é",
        "é-",
        "é..b",
        "é.",
        "xn--X",
        "ab--é",
        "אa",
        "1א",
        "éא",
        "É",
        "a\u0640",
        "\u0301a",
        "é" * 60,
        "0.א",
    ],
    "uri-template": ["{", "}", "{a", "{}", "{a,}", "{a:0}", "{a b}", "{a..b}", "%4", "{|a}", "<"],
    "regex": [
        "(",
        ")",
        "a**",
        "*",
        "[",
        "[b-a]",
        r"\\"[:1],
        r"\a",
        "a{2,1}",
        "{",
        "}",
        "]",
        "(?i)a",
        "(?P<a>b)",
        r"[\w-a]",
        "(?=a)*",
        r"\p{Foo}",
        r"\u{110000}",
        r"\1",
        "(?<a>b)(?<a>c)",
        r"\-",
        "^*",
        r"[\uD83D\uDE00-\uFFFF]",
    ],
    "ipv4": ["1.2.3.04", "1.2.3.4 ", "0x1.2.3.4", "１.2.3.4", "1.2.3.256"],
    "ipv6": [
        "1:2:3:4:5:6:7:8:",
        ":1:2:3:4:5:6:7:8",
        "1:2:3::4:5:6:7:8",
        "::1::",
        "1.2.3.4",
        "::ffff:1.2.3.04",
        "",
        "1::2:3:4:5:6:7:8:9",
    ],
    "uri": ["", "a", "http://a[b]/", "http://a:b:c/", "http:// a", "x:^"],
    "uri-reference": ["%4", "a|b", "[a]", ":a"],
    "iri": ["路", "http://a\u0000"],
    "iri-reference": ["a\\b", "<é>"],
    "uuid": ["00000000-0000-0000-0000-00000000000", "00000000000000000000000000000000"],
    "json-pointer": ["a/b", "/a~", " /a"],
    "relative-json-pointer": ["#", "1##", "+1", "1#/a"],
}


def test_the_lists_are_complete() -> None:
    assert set(VALID) == set(INVALID) == FORMATS
    assert NARROWED_FORMATS < FORMATS


@pytest.mark.nojit
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_lists(name: str, accepts: Accepts) -> None:
    schema = {"type": "string", "format": name}
    assert [text for text in [*VALID[name], *INVALID[name]] if accepts(schema, text)] == VALID[name]


@pytest.mark.nojit
def test_beside_lengths_and_patterns(accepts: Accepts) -> None:
    """Then the rules of `regex` are written out to a depth; nothing more is accepted."""
    schema = {"format": "regex", "maxLength": 12, "pattern": "^\\^"}
    texts = ["^(a|b)*", "^(a)(b)", "^((a))", "(a)", "^(a", "^" + "a" * 12]
    assert [text for text in texts if accepts(schema, text)] == ["^(a|b)*", "^(a)(b)"]
    assert not accepts({"format": "hostname", "maxLength": 7}, "xn--4ca")
    assert accepts({"format": "hostname", "maxLength": 7}, "r3--sna")


@pytest.mark.nojit
def test_unknown_formats(accepts: Accepts) -> None:
    assert accepts({"format": "phone"}, "x")
    with pytest.raises(UnsupportedSchemaError, match="phone"):
        Grammar.from_json_schema({"format": "phone"}, unknown_format="refuse")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_generated_is_valid(name: str, bytes_only: Vocabulary, allowed: Allowed) -> None:
    schema: dict[str, Any] = {"type": "string", "format": name}
    validator = Validator(schema)
    compiled = Grammar.from_json_schema(schema).compile(bytes_only)
    for seed in range(12):
        chance, matcher, text, left = random.Random(seed), compiled.matcher(), bytearray(), 60
        left = max(left, matcher.min_tokens_to_complete)
        while True:
            mask = allowed(matcher, left)
            token_id = chance.choice(sorted(mask))
            assert matcher.accept(token_id)
            if matcher.is_terminated:
                break
            text.append(token_id)
            left -= 1
        assert validator.is_valid(text.decode()), text.decode()
