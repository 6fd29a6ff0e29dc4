"""Random schemas over every keyword of every draft, and random values that may be valid against them.

Domains are small, so that constraints meet, and alternatives overlap.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
NAMES = ["a", "b", "ab", "é", 'q"', ""]
TEXTS = ["", "a", "b", "ab", "aab", "é😀", 'q"\\', "\n", "2024-02-29", "10.0.0.1", "a@b.c", "x-1", "aaaaaaaaa"]
NUMBERS: list[Any] = [0, 1, 2, 3, -1, -7, 10, 99, 0.5, 2.5, -0.25, 10**20]
BOUNDS: list[Any] = [-7, -1, 0, 0.5, 1, 2, 3, 10]
STEPS: list[Any] = [1, 2, 3, 0.5, 0.1, 7]
PATTERNS = ["a", "^a", "b$", "^[ab]*$", "^.{1,3}$", "^(?:ab|é)+$", "[0-9]", "^$", "^(?!a)"]
NAME_PATTERNS = ["^a", "b", "^[^a]", "^.?$", "é|q"]
FORMATS = ["date", "ipv4", "email", "hostname", "uri", "uuid", "date-time", "json-pointer", "regex", "colour"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class RandomSchemas:
    """One document at a time: `document()`, and `value()` for instances."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.draft: int | None = None
        self.definitions: list[str] = []
        self.anchored: set[str] = set()  # definitions that have an anchor of their name
        self.budget = 0
        self.current = -1  # the definition that is being made
        self.below = 0  # around this: schemas of items and members

    def document(self) -> Any:
        """A schema with its definitions, in a random draft or in none."""
        chance = self.chance
        self.draft = chance.choice([None, None, None, *DRAFTS])
        self.definitions = [f"d{number}" for number in range(chance.choice((0, 0, 1, 2)))]
        self.anchored = {name for name in self.definitions if self.has(2019) and chance.random() < 0.4}
        self.budget = 4
        definitions = {name: self.definition(number) for number, name in enumerate(self.definitions)}
        self.current = -1
        self.budget = chance.choice((3, 5, 8, 12))
        schema = self.schema(3)
        if not isinstance(schema, dict):
            return schema
        if definitions:
            schema["$defs" if self.has(2019) else "definitions"] = definitions
        return schema if self.draft is None else {"$schema": DRAFTS[self.draft], **schema}

    def has(self, since: int = 4, until: int = 2020) -> bool:
        """Whether a keyword of these drafts may be used; where no draft is declared all may."""
        return self.draft is None or since <= self.draft <= until

    def schema(self, depth: int) -> Any:
        chance = self.chance
        self.budget -= 1
        if chance.random() < 0.08:
            return self.always() if chance.random() < 0.7 else self.never()
        parts: list[Callable[[int], dict[str, Any]]] = [self.number, self.text, self.values]
        if depth > 0 and self.budget > 0:
            parts += [self.array, self.array, self.object, self.object, self.combined, self.combined]
        made: dict[str, Any] = {}
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            made |= chance.choice(parts)(depth - 1)
        if chance.random() < 0.15:
            made |= self.reference()
        if chance.random() < 0.4:
            made["type"] = self.types()
        if self.draft is None and chance.random() < 0.05:
            made["nullable"] = chance.random() < 0.8
        return made

    def reference(self) -> dict[str, str]:
        """To a definition by its place or its anchor, or to the whole document.

        What speaks of the same value may only refer to later definitions: there are no loops without end.
        """
        chance = self.chance
        if self.below and (not self.definitions or chance.random() < 0.1):
            return {"$ref": "#"}
        names = self.definitions if self.below else self.definitions[self.current + 1 :]
        if not names:
            return {}
        name = chance.choice(names)
        if name in self.anchored and chance.random() < 0.5:
            return {"$dynamicRef" if self.has(2020) and chance.random() < 0.4 else "$ref": f"#{name}"}
        return {"$ref": f"#/{'$defs' if self.has(2019) else 'definitions'}/{name}"}

    def definition(self, number: int) -> Any:
        self.current = number
        name = self.definitions[number]
        made = self.schema(2)
        if name in self.anchored and isinstance(made, dict):
            made["$dynamicAnchor" if self.has(2020) and self.chance.random() < 0.5 else "$anchor"] = name
        else:
            self.anchored.discard(name)
        return made

    def always(self) -> Any:
        return True if self.has(6) else {}

    def never(self) -> Any:
        return False if self.has(6) else {"not": {}}

    def types(self) -> Any:
        if self.chance.random() < 0.7:
            return self.chance.choice(TYPES)
        return self.chance.sample(TYPES, self.chance.choice((1, 2, 3)))

    def some(self, pairs: dict[str, Callable[[], Any]], most: int = 3) -> dict[str, Any]:
        """A few of the keywords."""
        names = self.chance.sample(list(pairs), min(len(pairs), self.chance.choice(range(1, most + 1))))
        return {name: pairs[name]() for name in names}

    def number(self, depth: int) -> dict[str, Any]:
        def bound() -> Any:
            return self.chance.choice(BOUNDS)

        def exclusive() -> Any:
            return bound() if self.has(6) else self.chance.random() < 0.5

        made = self.some(
            {
                "minimum": bound,
                "maximum": bound,
                "exclusiveMinimum": exclusive,
                "exclusiveMaximum": exclusive,
                "multipleOf": lambda: self.chance.choice(STEPS),
            }
        )
        for name in ("minimum", "maximum"):  # in draft-04 one needs the other
            other = f"exclusive{name.title()}"
            if self.draft == 4 and other in made:
                made.setdefault(name, bound())
        return made

    def text(self, depth: int) -> dict[str, Any]:
        return self.some(
            {
                "minLength": lambda: self.chance.choice((0, 1, 2, 3)),
                "maxLength": lambda: self.chance.choice((0, 1, 2, 5, 30)),
                "pattern": lambda: self.chance.choice(PATTERNS),
                "format": lambda: self.chance.choice(FORMATS),
            },
            2,
        )

    def values(self, depth: int) -> dict[str, Any]:
        if self.has(6) and self.chance.random() < 0.5:
            return {"const": self.value(2)}
        found: list[Any] = []
        for _ in range(self.chance.choice((1, 2, 3, 5))):
            one = self.value(2)
            if one not in found:
                found.append(one)
        return {"enum": found}

    def schemas(self, depth: int, most: int = 2) -> list[Any]:
        return [self.schema(depth) for _ in range(self.chance.choice(range(1, most + 1)))]

    def array(self, depth: int) -> dict[str, Any]:
        chance = self.chance

        def count() -> int:
            return chance.choice((0, 1, 2, 3))

        def below() -> Any:
            self.below += 1
            made = self.schema(depth)
            self.below -= 1
            return made

        pairs: dict[str, Callable[[], Any]] = {
            "items": below, "minItems": count, "maxItems": count, "uniqueItems": lambda: chance.random() < 0.8,
        }  # fmt: skip
        if self.has(6):
            pairs["contains"] = below
        if self.has(2020):
            pairs["prefixItems"] = lambda: [below() for _ in range(chance.choice((1, 2)))]
        if self.has(2019):
            pairs["unevaluatedItems"] = below
        made = self.some(pairs)
        if self.has(until=2019) and "prefixItems" not in made and chance.random() < 0.2:
            made["items"] = [below() for _ in range(chance.choice((1, 2)))]
            if chance.random() < 0.6:
                made["additionalItems"] = below() if self.draft != 4 else chance.choice((below(), True, False))
        if "contains" in made and self.has(2019) and chance.random() < 0.5:
            made |= self.some({"minContains": count, "maxContains": count}, 2)
        return made

    def object(self, depth: int) -> dict[str, Any]:
        chance = self.chance

        def below() -> Any:
            self.below += 1
            made = self.schema(depth)
            self.below -= 1
            return made

        def names() -> list[str]:
            return chance.sample(NAMES, chance.choice((1, 1, 2)))

        pairs: dict[str, Callable[[], Any]] = {
            "properties": lambda: {name: below() for name in names()},
            "required": names,
            "additionalProperties": lambda: below() if chance.random() < 0.6 else False,
            "patternProperties": lambda: {chance.choice(NAME_PATTERNS): below() for _ in range(chance.choice((1, 2)))},
            "minProperties": lambda: chance.choice((0, 1, 2)),
            "maxProperties": lambda: chance.choice((0, 1, 2, 3)),
        }
        if self.has(6):
            pairs["propertyNames"] = below
        if self.has(until=7):
            pairs["dependencies"] = lambda: {
                name: names() if chance.random() < 0.5 else self.schema(depth) for name in names()
            }
        if self.has(2019):
            pairs["dependentRequired"] = lambda: {name: names() for name in names()}
            pairs["dependentSchemas"] = lambda: {name: self.schema(depth) for name in names()}
            pairs["unevaluatedProperties"] = below
        made = self.some(pairs)
        if chance.random() < 0.5:
            made.setdefault("properties", {name: below() for name in names()})
        return made

    def combined(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Callable[[], Any]] = {
            "allOf": lambda: self.schemas(depth),
            "anyOf": lambda: self.schemas(depth, 3),
            "oneOf": lambda: self.schemas(depth, 3),
            "not": lambda: self.schema(depth),
        }
        made = self.some(pairs, 1)
        if self.has(7) and self.chance.random() < 0.25:
            made = self.some({"then": lambda: self.schema(depth), "else": lambda: self.schema(depth)}, 2)
            made["if"] = self.schema(depth)
        return made

    def value(self, depth: int) -> Any:
        """Any JSON value in its canonical spelling."""
        chance = self.chance
        kind = chance.random()
        if depth > 0 and kind < 0.2:
            return [self.value(depth - 1) for _ in range(chance.choice((0, 1, 2, 3)))]
        if depth > 0 and kind < 0.45:
            return {name: self.value(depth - 1) for name in chance.sample(NAMES, chance.choice((0, 1, 2, 3)))}
        return chance.choice((None, True, False, chance.choice(NUMBERS), chance.choice(TEXTS)))

    def guess(self, schema: Any, depth: int = 3) -> Any:
        """A value that is likelier to be valid than one by chance."""
        chance = self.chance
        if not isinstance(schema, dict) or depth == 0 or chance.random() < 0.1:
            return self.value(1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return chance.choice(schema["enum"])
        for name in ("allOf", "anyOf", "oneOf"):
            if name in schema and chance.random() < 0.7:
                return self.guess(chance.choice(schema[name]), depth - 1)
        types = schema.get("type", chance.choice(TYPES))
        kind = types if isinstance(types, str) else chance.choice(types)
        if kind == "object":
            names = [*schema.get("properties", ()), *schema.get("required", ()), *chance.sample(NAMES, 1)]
            chosen = {*schema.get("required", ()), *(name for name in names if chance.random() < 0.6)}
            below = schema.get("properties", {})
            return {name: self.guess(below.get(name, schema.get("additionalProperties")), depth - 1) for name in chosen}
        if kind == "array":
            item = schema.get("items", schema.get("contains"))
            listed = schema.get("prefixItems", item if isinstance(item, list) else [])
            count = max(schema.get("minItems", 0), chance.choice((0, 1, 2, 3)))
            return [self.guess(listed[i] if i < len(listed) else item, depth - 1) for i in range(count)]
        pools: dict[str, list[Any]] = {
            "null": [None], "boolean": [True, False], "string": TEXTS, "number": NUMBERS,
            "integer": [one for one in NUMBERS if isinstance(one, int)],
        }  # fmt: skip
        return chance.choice(pools[kind])
