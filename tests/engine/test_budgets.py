"""Whatever max_tokens is, from the least possible on: the output is whole, valid, and within it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from structgen.engine import BudgetError, Engine, SamplingParams, Sequence
from structgen.grammar import CompiledGrammar, Grammar, Vocabulary
from structgen.validate import Validator

pytestmark = pytest.mark.usefixtures("one_thread")

LONGEST = 200
BATCH = 32


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "object of anything": {"type": "object"},
    "map of numbers": {"type": "object", "additionalProperties": NUMBER, "minProperties": 2},
    "text": TEXT,
    "long text": {"type": "string", "minLength": 20},
    "number": {"type": "number", "minimum": -1, "exclusiveMaximum": 7.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1000},
    "enum": {"enum": ["a", "abc", "é漢", 12, None, {"k1": [1, 2]}]},
    "two members": closed(name=TEXT, k1={"type": "integer"}),
    "optional members": {"type": "object", "properties": {f"k{i}": NUMBER for i in range(9)}, "required": ["k7"]},
    "nested": closed(k1=closed(k2=closed(k3={"type": "array", "items": TEXT, "minItems": 2}))),
    "array of arrays": {"type": "array", "items": {"type": "array", "items": NUMBER}, "minItems": 3},
    "unique": {"type": "array", "items": {"enum": [1, 2, 3, "k1"]}, "uniqueItems": True, "minItems": 2},
    "tuple": {"type": "array", "prefixItems": [TEXT, NUMBER, {"type": "null"}], "minItems": 3, "items": False},
    "tree": {
        "$ref": "#/$defs/t",
        "$defs": {"t": closed(v=NUMBER, below={"type": "array", "items": {"$ref": "#/$defs/t"}})},
    },
    "pattern": {"type": "string", "pattern": "^(ab|[0-9]{3})+-x{4,}$"},
    "date and time": closed(day={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}),
    "any of": {"anyOf": [closed(k1=TEXT), closed(k1={"type": "integer"}, k2={"const": "20"}), {"type": "boolean"}]},
    "pattern properties": {"type": "object", "patternProperties": {"^k": {"type": "integer"}}, "minProperties": 1},
    "all of": {
        "allOf": [{"type": "object", "required": ["k1"]}, {"properties": {"k1": {"minLength": 3, "type": "string"}}}]
    },
}


@pytest.fixture(scope="module", params=SCHEMAS)
def compiled(request: pytest.FixtureRequest, small_vocabulary: Vocabulary) -> tuple[CompiledGrammar, Validator]:
    schema = SCHEMAS[request.param]
    return Grammar.from_json_schema(schema).compile(small_vocabulary), Validator(schema)


def test_every_budget_gives_a_whole_valid_value(
    compiled: tuple[CompiledGrammar, Validator], depth: int, make_engine: Callable[..., Engine]
) -> None:
    grammar, validator = compiled
    ends = grammar.vocabulary.eos_token_ids
    engine = make_engine(BATCH, depth)
    least = grammar.matcher().min_tokens_to_complete
    with pytest.raises(BudgetError) as caught:
        engine.submit([65], SamplingParams(max_tokens=least - 1), grammar.matcher(), ends)
    assert caught.value.least == least
    sequences = []
    for budget in range(least, LONGEST + 1):
        params = SamplingParams(max_tokens=budget, temperature=budget % 3, seed=budget)
        sequences.append(engine.submit([65, budget], params, grammar.matcher(), ends))
    while engine.has_work:
        engine.step()
    engine.check_integrity()
    for budget, sequence in enumerate(sequences, least):
        check(sequence, budget, grammar, validator)


def check(sequence: Sequence, budget: int, grammar: CompiledGrammar, validator: Validator) -> None:
    text = b"".join(grammar.vocabulary.tokens[token] or b"" for token in sequence.output_ids).decode()
    assert not validator.errors(text), text
    assert len(sequence.output_ids) + 1 <= budget, "EOS counts"
    assert sequence.finish_reason == ("length" if sequence.closed_early else "stop"), text
