"""Every keyword, nested at random, against the exact validator.

What random walks over masks write is valid; what is valid, in canonical form, is accepted; what is not is not. Schemas
may be refused, and are counted. `STRUCTGEN_NIGHTLY=1` runs 20,000 schemas instead of 300, `STRUCTGEN_SEED` others.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar import CompiledGrammar, Grammar, GrammarError, Matcher, UnsatisfiableError, Vocabulary
from structgen.validate import Validator

SCHEMAS = 20_000 if os.environ.get("STRUCTGEN_NIGHTLY") else 300
SEED = int(os.environ.get("STRUCTGEN_SEED", "0"))
GROUPS = 10
LONGEST = 60  # tokens of a walk beyond the least

LOOP = "refers to itself forever"
EACH_TYPE: list[Any] = [None, True, 1, 0.5, "a", "", [], [1, [], "b"], {}, {"a": 1, "b": [1], "é": {"a": 1}}]

Allowed = Callable[..., set[int]]


def _generator() -> Any:
    """`random_schemas.py` beside this file: folders of tests are no packages."""
    spec = importlib.util.spec_from_file_location("random_schemas", Path(__file__).with_name("random_schemas.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RandomSchemas


RandomSchemas = _generator()


def walk(compiled: CompiledGrammar, allowed: Allowed, chance: random.Random) -> str | None:
    """What a model without a mind of its own writes; None when it has no time to end."""
    matcher = compiled.matcher()
    left = matcher.min_tokens_to_complete + chance.choice((3, 15, LONGEST))
    text = bytearray()
    while not matcher.is_terminated:
        mask = allowed(matcher, left)
        assert mask, f"a dead end after {bytes(text)!r}"
        token = chance.choice(sorted(mask))
        assert matcher.accept(token), f"a token of the mask is refused after {bytes(text)!r}"
        text += compiled.vocabulary.tokens[token] or b""
        left -= 1
    return text.decode()


def accepted(compiled: CompiledGrammar | None, value: Any) -> bool:
    if compiled is None:
        return False
    matcher: Matcher = compiled.matcher()
    return matcher.accept_string(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) and matcher.is_complete


def is_canonical(value: Any) -> bool:
    """Whether json.dumps writes its numbers as a grammar does."""
    if isinstance(value, list | dict):
        return all(map(is_canonical, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or not (value.is_integer() or "e" in repr(value))


def changed(value: Any, chance: random.Random) -> Any:
    """The value with one small change somewhere."""
    kind = chance.randrange(6)
    if isinstance(value, list) and value and kind < 5:
        index = chance.randrange(len(value))
        part = [changed(value[index], chance)] if kind < 3 else [value[index]] * 2 if kind == 3 else []
        return value[:index] + part + value[index + 1 :]
    if isinstance(value, dict) and value and kind < 5:
        name = chance.choice(list(value))
        rest = {key: one for key, one in value.items() if key != name}
        if kind < 3:
            return {**rest, name: changed(value[name], chance)}
        return {**rest, chance.choice(("a", "b", "ab")): value[name]} if kind == 3 else rest
    if isinstance(value, str) and kind < 4:
        return value[:-1] if kind < 2 else value + chance.choice("ab\n😀")
    if isinstance(value, int | float) and not isinstance(value, bool) and kind < 4:
        return value + chance.choice([-1, 1, 10, -100])
    return chance.choice([None, True, 0, "", "a", [], {}, [value], {"a": value}])


class Trial:
    """One schema: its verdict is a list of faults, empty as it should be."""

    def __init__(self, seed: int, vocabularies: list[Vocabulary], allowed: Allowed, counts: Counter[str]) -> None:
        self.made = RandomSchemas(seed)
        self.schema = self.made.document()
        self.chance = random.Random(seed)
        self.vocabularies = vocabularies
        self.allowed = allowed
        self.counts = counts
        self.faults: list[tuple[str, Any]] = []
        self.values: list[Any] = []  # that were written

    def run(self) -> list[tuple[str, Any]]:
        try:
            validator = Validator(self.schema)
        except GrammarError:
            self.counts["no schema"] += 1
            return []
        if any(LOOP in issue.message for value in EACH_TYPE for issue in validator.errors_in_value(value)):
            self.counts["refers to itself without end"] += 1  # what that means is anyone's guess
            return []
        try:
            self.check_walks(validator)
            self.check_values(validator, self.compiled(property_order="any", whitespace="compact"))
            self.counts["compiled"] += 1
        except UnsatisfiableError:
            self.counts["unsatisfiable"] += 1
            self.check_values(validator, None)
        except GrammarError as error:
            self.counts[f"refused: {error.code}"] += 1
        except AssertionError as error:
            self.faults.append(("dead end", str(error)))
        return self.faults

    def compiled(self, vocabulary: int = 0, **options: Any) -> CompiledGrammar:
        return Grammar.from_json_schema(self.schema, **options).compile(self.vocabularies[vocabulary])

    def check_walks(self, validator: Validator) -> None:
        for number in range(4):
            options = {
                "property_order": self.chance.choice(("schema", "any")),
                "whitespace": self.chance.choice(("flexible", "compact", "pretty")),
                "integers_as": self.chance.choice(("1", "1 or 1.0")),
            }
            try:
                text = walk(self.compiled(number % 2, **options), self.allowed, self.chance)
            except UnsatisfiableError:
                if options["whitespace"] == "pretty":
                    continue  # deeper than it is laid out
                raise
            if text is not None and validator.errors_in_text(text):
                self.faults.append(("writes invalid", text))
            elif text is not None and len(text) < 200:
                self.values.append(json.loads(text))

    def check_values(self, validator: Validator, compiled: CompiledGrammar | None) -> None:
        found = [
            *self.values,
            *(self.made.guess(self.schema) for _ in range(8)),
            *(self.made.value(2) for _ in range(6)),
        ]
        found += [changed(self.chance.choice(found), self.chance) for _ in range(8)]
        for value in filter(is_canonical, found):
            valid = not validator.errors_in_value(value)
            self.counts["valid values"] += valid
            self.counts["invalid values"] += not valid
            if accepted(compiled, value) != valid:
                self.faults.append(("rejects valid" if valid else "accepts invalid", value))


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_keyword(
    group: int, bytes_only: Vocabulary, merged: Vocabulary, allowed: Allowed, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: Counter[str] = Counter()
    faults = []
    share = SCHEMAS // GROUPS
    for seed in range(SEED + group * share, SEED + (group + 1) * share):
        trial = Trial(seed, [bytes_only, merged], allowed, counts)
        faults += [(seed, kind, value, json.dumps(trial.schema)) for kind, value in trial.run()]
    print(dict(counts.most_common()))
    assert not faults
    assert counts["compiled"] > share // 5
