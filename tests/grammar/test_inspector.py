from __future__ import annotations

import pytest

from structgen.grammar import Grammar, GrammarError, Vocabulary
from structgen.grammar.inspector import Inspection, inspect_grammar
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.program_rules import pointers_of_schema, rules_of, targets_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
}


def inspected(text: str | None, vocabulary: Vocabulary) -> Inspection:
    return inspect_grammar(
        lambda: Grammar.from_json_schema(SCHEMA), vocabulary, text, pointers_of_schema(SCHEMA, JsonOptions.of({}))
    )


def test_size_and_rules(bytes_only: Vocabulary) -> None:
    found = inspected(None, bytes_only)
    program = Grammar.from_json_schema(SCHEMA).program
    assert (found.kind, found.tokens, found.complete) == ("json_schema", 257, None)
    assert found.states == program.size == sum(found.ops.values())
    assert found.min_tokens == len('{"name":""}') + 1
    assert found.rules[0].pointer == ""
    assert found.rules[0].shortest_bytes == len('{"name":""}')
    assert {"/properties/name", "/properties/tags", "/properties/tags/items"} <= {rule.pointer for rule in found.rules}
    assert all(rule.calls > 0 for rule in found.rules[1:])
    assert not found.steps


def test_every_state_of_a_rule_is_counted_once(bytes_only: Vocabulary) -> None:
    program = Grammar.from_json_schema(SCHEMA).program
    assert all(0 <= target < program.size for state in range(program.size) for target in targets_of(program, state))
    assert all(0 < (rule.states or 0) <= program.size for rule in rules_of(program, {}))


def test_pointers_of_another_schema_are_not_taken() -> None:
    other = Grammar.from_json_schema({"type": "string"}).program
    assert pointers_of_schema(SCHEMA, JsonOptions.of({}))(other) == {}


def test_masks_along_a_text(bytes_only: Vocabulary) -> None:
    found = inspected('{"name":"x"}', bytes_only)
    assert found.complete
    assert found.refusal is None
    assert [step.text for step in found.steps] == [*'{"name":"x"}', ""]
    assert [step.offset for step in found.steps] == list(range(13))
    assert found.steps[0].allowed == 1
    assert found.steps[0].density == pytest.approx(1 / 257)
    assert found.steps[-1].token_id is None
    assert found.steps[-1].allowed == 1
    assert [step.min_tokens for step in found.steps][-2:] == [2, 1]
    assert all(step.first_us > 0 and step.again_us > 0 for step in found.steps)
    assert found.stats["configurations"] > 10


@pytest.mark.parametrize(
    ("text", "offset", "instead"),
    [
        ('{"name":"x"]', 11, "'}'"),
        ('{"nome":"x"}', 3, "'a'"),
        ('{"name":"x"} ', 12, "end of text"),
        ("[", 0, "'{'"),
    ],
)
def test_where_a_text_is_refused(text: str, offset: int, instead: str, bytes_only: Vocabulary) -> None:
    found = inspected(text, bytes_only)
    assert found.complete is False
    assert found.refusal is not None
    assert found.refusal.offset == offset
    assert instead in found.refusal.instead


def test_a_text_that_is_not_whole(bytes_only: Vocabulary) -> None:
    found = inspected('{"name":', bytes_only)
    assert found.complete is False
    assert found.refusal is None


def test_a_text_that_no_token_spells() -> None:
    vocabulary = Vocabulary([b"a", b"b", None], [2])
    found = inspect_grammar(lambda: Grammar.from_regex("a*b"), vocabulary, "aac")
    assert found.refusal is not None
    assert found.refusal.offset == 2
    assert found.steps == []


@pytest.mark.parametrize("pattern", ["(a|b)*c{1,5000}", r"\p{L}{3,9}", "a|bc|bd", "(?:x{2,3}y)*", "\\bab\\b"])
def test_every_kind_of_program_can_be_taken_apart(pattern: str, bytes_only: Vocabulary) -> None:
    found = inspect_grammar(lambda: Grammar.from_regex(pattern), bytes_only)
    assert found.rules[0].pointer is None
    assert (found.rules[0].states or 0) > 0


def test_counted_texts_can_be_taken_apart(bytes_only: Vocabulary) -> None:
    schema = {"type": "string", "pattern": "^a(bc|d)*$", "maxLength": 9}
    found = inspect_grammar(lambda: Grammar.from_json_schema(schema), bytes_only)
    assert "TEXT" in found.ops


def test_faults_are_raised(bytes_only: Vocabulary) -> None:
    with pytest.raises(GrammarError):
        inspect_grammar(lambda: Grammar.from_regex("("), bytes_only)


def test_a_real_vocabulary(smollm2: Vocabulary) -> None:
    found = inspected('{"name": "Château", "tags": ["a"]}', smollm2)
    assert found.complete
    assert len(found.steps) < 20
    assert max(step.density for step in found.steps) > 0.9
