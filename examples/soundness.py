"""Ten unbounded schemas, twenty seeds each, temperature 1.0, 200 tokens: does everything parse and validate?

    python examples/soundness.py [--seeds N] [--model MODEL]

None of the schemas bounds its strings, arrays or recursion; what ends an answer is the budget. Exit code 0 when every
answer is valid; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import structgen

STRING: dict[str, Any] = {"type": "string"}


def record(required: bool = True, **properties: Any) -> dict[str, Any]:
    """A closed object; all of its properties are required, or none."""
    names = list(properties) if required else []
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


TREE = record(name=STRING, children={"type": "array", "items": {"$ref": "#/$defs/node"}})

# What is asked -> the schema of the answer.
CASES: dict[str, dict[str, Any]] = {
    "Invent a person.": record(name=STRING, age={"type": "integer"}, biography=STRING),
    "Tell a story in many sentences.": {"type": "array", "items": STRING},
    "Write down any JSON you like.": {},
    "Describe a family tree.": {"$ref": "#/$defs/node", "$defs": {"node": TREE}},
    "Rate ten films.": {"type": "object", "additionalProperties": {"type": "number"}},
    "Write a long poem about JSON.": STRING,
    "Invent an order of a web shop.": record(
        id={"type": "string", "format": "uuid"},
        placed={"type": "string", "format": "date-time"},
        lines={"type": "array", "minItems": 2, "items": record(article=STRING, price={"type": "number", "minimum": 0})},
    ),
    "Invent a shape.": {
        "anyOf": [
            record(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
            record(
                kind={"const": "polygon"},
                corners={
                    "type": "array",
                    "items": {
                        "type": "array",
                        "prefixItems": [{"type": "number"}, {"type": "number"}],
                        "items": False,
                        "minItems": 2,
                    },
                },
            ),
        ]
    },
    "Invent a contact, with a remark in several languages.": record(
        email={"type": "string", "format": "email"},
        phone={"type": "string", "pattern": r"^\+[0-9 ]+$"},
        remark=STRING,
        tags={"type": ["array", "null"], "items": {"enum": ["new", "überfällig", "日本"]}},
    ),
    "Write the settings of a program.": {
        "type": "object",
        "properties": {"debug": {"type": "boolean"}, "level": {"type": "integer", "minimum": -3, "maximum": 12}},
        "additionalProperties": {"anyOf": [STRING, {"type": "object", "additionalProperties": STRING}]},
    },
}


def generate_all(
    llm: structgen.LLM, seeds: range, *, max_tokens: int = 200
) -> Iterator[tuple[str, int, structgen.Result, list[structgen.ValidationIssue]]]:
    """(question, seed, answer, issues) of every case and seed."""
    for seed in seeds:
        pairs = list(CASES.items())
        results = llm.generate_each(pairs, temperature=1.0, seed=seed, max_tokens=max_tokens, return_result=True)
        for (question, schema), result in zip(pairs, results, strict=True):
            yield question, seed, result, structgen.Validator(schema).errors(result.text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--model", help="known name, .gguf file or Hugging Face folder")
    arguments = parser.parse_args()

    total = valid = early = 0
    for question, seed, result, issues in generate_all(structgen.LLM(arguments.model), range(arguments.seeds)):
        total, valid, early = total + 1, valid + (not issues), early + result.closed_early
        if issues:
            print(f"{question} seed {seed}: {issues[0]}: {result.text!r}")
        print(f"{valid} of {total} valid", end="\r", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(json.dumps({"generations": total, "valid": valid, "closed_early": early}))
    return 0 if valid == total else 1


if __name__ == "__main__":
    sys.exit(main())
