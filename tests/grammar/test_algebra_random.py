"""Random Boolean combinations of schemas against the exact validator.

Whatever the masks let through is valid; and of a set of small values, exactly the valid ones are accepted.
`STRUCTGEN_NIGHTLY=1` runs 20,000 schemas instead of 300.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import numpy as np
import pytest

from structgen.grammar import (
    CompiledGrammar,
    Grammar,
    GrammarLimitError,
    UnsatisfiableError,
    UnsupportedSchemaError,
    Vocabulary,
)
from structgen.validate import Validator

SCHEMAS = 20_000 if os.environ.get("STRUCTGEN_NIGHTLY") else 300
GROUPS = 10
WALKS = 6
LONGEST_WALK = 120

NAMES = ["a", "b", "c"]
TEXTS = ["", "a", "ab", "b", "2020-01-01", "10.0.0.1", "cab"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, -1, 5, 1.5, 0.25, *TEXTS]
PATTERNS = ["^a", "b$", "^[ab]*$", "^.$", "a"]
DRAFTS = [
    *(f"http://json-schema.org/draft-0{number}/schema#" for number in (6, 7)),
    *(f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")),
]
# Other spellings of numbers: they need not be accepted, but they must not get around a negation.
SPELLINGS = ["1.0", "2.0", "-1.0", "0.0", "-0.0", "1e0", "10E-1", "1.50", "0.250", "5.000", "2E0", "0e5"]
# Every byte: what is written need not be ASCII.
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])


class SchemaMaker:
    """Random schemas over small domains, so that alternatives overlap often."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.definitions: dict[str, Any] = {}

    def document(self) -> Any:
        schema = self.schema(3)
        if isinstance(schema, dict) and self.definitions:
            schema["$defs"] = self.definitions
        if isinstance(schema, dict) and self.chance.random() < 0.4:
            schema["$schema"] = self.chance.choice(DRAFTS)
        return schema

    def schema(self, depth: int) -> Any:
        if self.chance.random() < 0.06:
            return self.chance.random() < 0.6
        made: dict[str, Any] = {}
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            kinds = [self.scalar, self.array, self.object, self.values]
            if depth > 0:
                kinds += [self.combined] * 3
            self.chance.choice(kinds)(made, depth - 1)
        if self.chance.random() < 0.3:
            made["type"] = self.types()
        return made

    def types(self) -> Any:
        names = ["null", "boolean", "integer", "number", "string", "array", "object", "object", "string"]
        return self.chance.choice(names) if self.chance.random() < 0.7 else sorted(set(self.chance.sample(names, 2)))

    def scalar(self, made: dict[str, Any], depth: int) -> None:
        name = self.chance.choice(
            ["minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength", "pattern", "format"]
        )
        values: dict[str, list[Any]] = {
            "multipleOf": [1, 2, 0.5],
            "minLength": [0, 1, 2],
            "maxLength": [0, 1, 2],
            "pattern": PATTERNS,
            "format": ["date", "ipv4"],
        }
        made[name] = self.chance.choice(values.get(name, [-1, 0, 1, 1.5, 2]))

    def values(self, made: dict[str, Any], depth: int) -> None:
        if self.chance.random() < 0.5:
            made["const"] = self.value(1)
        else:
            made["enum"] = [self.value(1) for _ in range(self.chance.choice((1, 2, 3)))]

    def value(self, depth: int) -> Any:
        kind = self.chance.random()
        if depth > 0 and kind < 0.15:
            return [self.value(depth - 1) for _ in range(self.chance.randrange(3))]
        if depth > 0 and kind < 0.3:
            return {name: self.value(depth - 1) for name in self.chance.sample(NAMES, self.chance.randrange(3))}
        return self.chance.choice(SCALARS)

    def array(self, made: dict[str, Any], depth: int) -> None:
        kind = self.chance.choice(
            ["items", "items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"]
        )
        if kind == "unevaluatedItems":
            made[kind] = False if self.chance.random() < 0.6 else self.below(depth)
        elif kind == "uniqueItems":
            made[kind] = True
        elif kind == "contains":
            made[kind] = self.below(depth)
            if self.chance.random() < 0.4:
                made[self.chance.choice(["minContains", "maxContains"])] = self.chance.choice((0, 1, 2))
        elif kind == "prefixItems":
            made[kind] = [self.below(depth) for _ in range(self.chance.choice((1, 2)))]
        else:
            made[kind] = self.below(depth) if kind == "items" else self.chance.randrange(3)

    def object(self, made: dict[str, Any], depth: int) -> None:
        kinds = ["properties", "properties", "required", "required", "additionalProperties", "patternProperties"]
        kind = self.chance.choice([*kinds, "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"])
        if kind == "properties":
            made[kind] = {name: self.below(depth) for name in self.chance.sample(NAMES, self.chance.choice((1, 2)))}
        elif kind == "required":
            made[kind] = self.chance.sample(NAMES, self.chance.choice((1, 2)))
        elif kind == "patternProperties":
            made[kind] = {self.chance.choice(["^a", "b", "^[bc]"]): self.below(depth)}
        elif kind == "unevaluatedProperties":
            made[kind] = False if self.chance.random() < 0.6 else self.below(depth)
        elif kind in ("minProperties", "maxProperties"):
            made[kind] = self.chance.randrange(3)
        elif kind == "propertyNames":
            made[kind] = self.chance.choice([{"pattern": "^[ab]"}, {"enum": ["a", "b"]}, {"not": {"const": "c"}}])
        else:
            made[kind] = self.chance.random() < 0.2 if self.chance.random() < 0.6 else self.below(depth)

    def below(self, depth: int) -> Any:
        return self.schema(depth) if depth > 0 else self.chance.choice([True, False, {"type": "integer"}, {"const": 1}])

    def combined(self, made: dict[str, Any], depth: int) -> None:
        kind = self.chance.choice(
            ["not", "not", "oneOf", "oneOf", "anyOf", "allOf", "if", "dependencies", "dependentSchemas", "$ref"]
        )
        if kind == "not":
            made[kind] = self.schema(depth)
        elif kind == "if":
            made["if"] = self.schema(depth)
            for name in self.chance.sample(["then", "else"], self.chance.choice((1, 2))):
                made[name] = self.schema(depth)
        elif kind == "dependencies":
            names = self.chance.sample(NAMES, 2)
            keyword = self.chance.choice(["dependencies", "dependentRequired"])
            made[keyword] = {name: self.chance.sample(NAMES, 1) for name in names}
        elif kind == "dependentSchemas":
            made[kind] = {self.chance.choice(NAMES): self.schema(depth)}
        elif kind == "$ref":
            name = f"d{len(self.definitions)}"
            self.definitions[name] = True
            self.definitions[name] = self.schema(depth)
            made[kind] = f"#/$defs/{name}"
        else:
            made[kind] = [self.schema(depth) for _ in range(self.chance.choice((1, 2, 2, 3)))]


def compiled(schema: Any, **options: Any) -> CompiledGrammar | None:
    """None where nothing is valid; skips what is refused."""
    try:
        return Grammar.from_json_schema(schema, **options).compile(BYTES)
    except UnsatisfiableError:
        return None


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    matcher = grammar.matcher()
    return bool(matcher.accept_string(text) and matcher.is_complete)


def walk(grammar: CompiledGrammar, chance: random.Random) -> bytes:
    """A text that the masks let through, by bytes; after a while along the shortest way out."""
    matcher, row, out = grammar.matcher(), np.zeros(BYTES.mask_words, np.int32), bytearray()
    while True:
        left = LONGEST_WALK - len(out)
        matcher.fill_mask(row, max(left, matcher.min_tokens_to_complete)) if left < 60 else matcher.fill_mask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:257]
        allowed = np.flatnonzero(bits)
        assert allowed.size, f"a dead end after {bytes(out)!r}"
        if bits[256] and (left < 60 or chance.random() < 0.3 or allowed.size == 1):
            return bytes(out)
        plain = [byte for byte in allowed if 0x20 <= byte < 0x7F] or [byte for byte in allowed if byte < 256]
        token = int(chance.choice(plain))
        assert matcher.accept(token)
        out.append(token)


def judge(
    chance: random.Random, maker: SchemaMaker, validator: Validator, grammars: list[CompiledGrammar | None], told: str
) -> None:
    """Values and walks; `grammars` take any order and the schema's."""
    any_order = grammars[0]
    for _ in range(40):
        text = json.dumps(maker.value(2))
        accepted = any_order is not None and accepts(any_order, text)
        assert accepted == validator.is_valid(text), f"{text} under {told}"
    for text in SPELLINGS:
        accepted = any_order is not None and accepts(any_order, text)
        assert not accepted or validator.is_valid(text), f"{text} under {told}"
    for grammar in grammars:
        for _ in range(WALKS if grammar is not None else 0):
            assert grammar is not None
            text = walk(grammar, chance).decode()
            assert validator.is_valid(text), f"{text} under {told}"


def check(seed: int) -> bool:
    """One schema; False where it is refused."""
    chance = random.Random(seed)
    maker = SchemaMaker(chance)
    schema = maker.document()
    shown = json.dumps(schema)
    validator = Validator(schema)
    try:
        any_order = compiled(schema, property_order="any")
        ordered = compiled(schema, whitespace="compact")
    except (UnsupportedSchemaError, GrammarLimitError):
        return False
    assert (any_order is None) == (ordered is None), shown
    try:
        judge(chance, maker, validator, [any_order, ordered], f"seed {seed}: {shown}")
    except GrammarLimitError:  # some limits are met only while an output is read
        return False
    return True


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_combinations(group: int) -> None:
    each = SCHEMAS // GROUPS
    enforced = sum(check(group * each + index) for index in range(each))
    assert enforced > each * 0.7
