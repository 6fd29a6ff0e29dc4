"""Making grammars and vocabularies: what is refused, and small helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from structgen.grammar import Grammar, GrammarError, SchemaError, UnsatisfiableError, Vocabulary
from structgen.grammar.reference import repeats_a_key
from structgen.grammar.seen_keys import seen_keys

pytestmark = pytest.mark.nojit

Matches = Callable[..., bool]


def test_choices_that_are_refused() -> None:
    wrong: Any = ["a", 3]
    with pytest.raises(SchemaError, match="int"):
        Grammar.from_choices(wrong)
    with pytest.raises(SchemaError, match="surrogate"):
        Grammar.from_choices(["a\ud800"])
    with pytest.raises(UnsatisfiableError):
        Grammar.from_choices([])


def test_choices_come_once(matches: Matches) -> None:
    grammar = Grammar.from_choices(["a", "b", "a"])
    assert matches(grammar, "a")
    assert "choice" in repr(grammar)


def test_any_json(matches: Matches) -> None:
    assert matches(Grammar.any_json(), "[1]")
    assert matches(Grammar.any_json(root_object=True), '{"a":[1]}')
    assert not matches(Grammar.any_json(root_object=True), "[1]")
    assert not matches(Grammar.any_json(whitespace="compact"), "[1, 2]")


def test_what_the_vocabulary_cannot_spell() -> None:
    with pytest.raises(UnsatisfiableError) as caught:
        Grammar.from_choices(["ab"]).compile(Vocabulary([b"a", None], [1]))
    assert caught.value.hint
    assert Grammar.from_choices(["ab", "a"]).compile(Vocabulary([b"a", None], [1])).matcher().accept(0)


def test_errors_say_where() -> None:
    assert str(GrammarError("wrong", pointer="/a/0")) == "at /a/0: wrong"
    assert str(GrammarError("wrong", pointer="")) == "at the root: wrong"
    assert str(GrammarError("wrong")) == "wrong"


@pytest.mark.parametrize("eos", [-1, 3, 99])
def test_eos_ids_outside(eos: int) -> None:
    with pytest.raises(ValueError, match="EOS"):
        Vocabulary([b"a", b"b", None], [eos])


def test_logits_narrower_than_the_tokenizer() -> None:
    with pytest.raises(ValueError, match="size"):
        Vocabulary([b"a", None], [1], size=1)


def test_encode() -> None:
    tokens = [b"a", b"ab", b"abc", b"b", b"c", b"\xc3", b"\xa9", None]
    vocabulary = Vocabulary(tokens, [7])
    assert vocabulary.encode(b"abcab") == [2, 1]
    assert vocabulary.encode("é".encode()) == [5, 6]
    assert vocabulary.encode(b"") == []
    assert sorted(vocabulary.continuations(b"a")) == [ord("b")]
    assert sorted(vocabulary.continuations(b"")) == sorted({token[0] for token in tokens if token})
    assert vocabulary.continuations(b"abc") == []
    assert vocabulary.continuations(b"x") == []
    with pytest.raises(ValueError, match="cannot spell"):
        vocabulary.encode(b"abx")


def test_an_encode_that_changes_the_text_is_not_trusted() -> None:
    vocabulary = Vocabulary([b"a", b"b", None], [2], encode=lambda text: [0] * len(text))
    assert vocabulary.encode(b"aa") == [0, 0]
    assert vocabulary.encode(b"ab") == [0, 1]


@pytest.mark.parametrize(
    ("text", "keys", "partial", "repeated"),
    [
        ("", [], None, False),
        ('{"a":1,"b', ["a"], "b", False),
        ('{"a":{"c":1},"b":[{"d":', ["d"], None, False),
        ('{"a":{"c":1},"b":[{"d":1}],"', ["a", "b"], "", False),
        ('{"a":{"a":{"a":1}}', ["a"], None, False),
        ('{"a":1,"a"', ["a", "a"], None, True),
        ('{"x":{"a":1,"a":2},"y":1', ["x", "y"], None, True),
        ('[{"a":1},{"a":1}', [], None, False),
        ('{"a\\"":"{\\"a\\":","b":"}', ['a\\"', "b"], None, False),
        ('{"a" : 1 , "b" : "x", "', ["a", "b"], "", False),
        ('"{\\"a', [], None, False),
        ('{"a":"a","b":["a","a"],"c\\', ["a", "b"], "c\\", False),
    ],
)
def test_seen_keys(text: str, keys: list[str], partial: str | None, repeated: bool) -> None:
    found = seen_keys(text.encode())
    assert [key.decode() for key in found.keys] == keys
    assert (None if found.partial is None else found.partial.decode()) == partial
    assert found.repeated == repeated == repeats_a_key(text.encode())
