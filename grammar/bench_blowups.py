"""Schemas that grow without bound in a careless compiler: `python -m structgen.grammar.bench blowups`.

Each is compiled, and its first mask made, in a process of its own: in at most a second (of the processor, so that
neighbours do not count) and 500 MB it is done, or says `GrammarLimitError`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from structgen.grammar.errors import GrammarError
from structgen.grammar.grammar import Grammar
from structgen.grammar.vocabulary import Vocabulary

SECONDS, MEGABYTES = 1.0, 500
TIMEOUT = 120


def doubling(keyword: str, levels: int = 16) -> dict[str, Any]:
    """Each level refers to the next one twice: 2^levels branches when written out."""
    definitions: dict[str, Any] = {
        f"l{level}": {
            keyword: [
                {"$ref": f"#/$defs/l{level + 1}"},
                {"allOf": [{"$ref": f"#/$defs/l{level + 1}"}, {"minProperties": level + 1}]},
            ]
        }
        for level in range(levels)
    }
    definitions[f"l{levels}"] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"$ref": "#/$defs/l0", "$defs": definitions}


def plain_doubling(keyword: str, levels: int = 16) -> dict[str, Any]:
    """The same reference twice, told apart by a tag at each level for oneOf."""
    definitions: dict[str, Any] = {
        f"l{level}": {
            keyword: [
                {
                    "properties": {f"k{level}": {"const": tag}},
                    "required": [f"k{level}"],
                    "$ref": f"#/$defs/l{level + 1}",
                }
                for tag in ("x", "y")
            ]
        }
        for level in range(levels)
    }
    definitions[f"l{levels}"] = {"type": "object"}
    return {"$ref": "#/$defs/l0", "$defs": definitions}


def nested_doubling(keyword: str, levels: int = 16) -> dict[str, Any]:
    """Doubling below a property: one rule for each level is enough."""
    definitions: dict[str, Any] = {
        f"l{level}": {
            keyword: [
                {
                    "type": "object",
                    "properties": {"tag": {"const": tag}, "next": {"$ref": f"#/$defs/l{level + 1}"}},
                    "required": ["tag", "next"],
                }
                for tag in ("x", "y")
            ]
        }
        for level in range(levels)
    }
    definitions[f"l{levels}"] = {"type": "null"}
    return {"$ref": "#/$defs/l0", "$defs": definitions}


def large_enum(values: int = 10_000, references: int = 8) -> dict[str, Any]:
    properties = {f"p{number}": {"$ref": "#/$defs/words"} for number in range(references)}
    words = [f"value {number * 7919}" for number in range(values)]
    return {"type": "object", "properties": properties, "$defs": {"words": {"enum": words}}}


def optional_members(count: int, member: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"name{number}": member for number in range(count)}, **more}


def crossed(count: int = 30, keyword: str = "anyOf") -> dict[str, Any]:
    """A conjunction of alternatives about different members: 2^count when multiplied out."""
    parts = [
        {keyword: [{"required": [f"a{number}"]}, {"required": [f"b{number}"]}]}
        for number in range(count)
    ]  # fmt: skip
    return {"type": "object", "allOf": parts}


def crossed_numbers(count: int = 30) -> dict[str, Any]:
    return {"allOf": [{"anyOf": [{"minimum": number}, {"multipleOf": number + 2}]} for number in range(count)]}


def crossed_members(count: int = 30) -> dict[str, Any]:
    options = [
        {"anyOf": [{"properties": {f"p{number}": {"type": kind}}} for kind in ("string", "integer")]}
        for number in range(count)
    ]
    return {"type": "object", "allOf": options}


BLOWUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "anyOf doubling, 16 levels": lambda: doubling("anyOf"),
    "oneOf doubling, 16 levels": lambda: doubling("oneOf"),
    "anyOf doubling with tags": lambda: plain_doubling("anyOf"),
    "oneOf doubling with tags": lambda: plain_doubling("oneOf"),
    "anyOf doubling below members": lambda: nested_doubling("anyOf"),
    "oneOf doubling below members": lambda: nested_doubling("oneOf"),
    "enum 10,000 x 8 references": large_enum,
    "60 optional members": lambda: optional_members(60, {"type": "string"}),
    "60 optional, at least 3": lambda: optional_members(60, {"type": "string"}, minProperties=3),
    "12 optional with maxLength": lambda: optional_members(12, {"type": "string", "maxLength": 200}),
    "allOf of 30 anyOf, required": crossed,
    "allOf of 30 oneOf, required": lambda: crossed(keyword="oneOf"),
    "allOf of 30 anyOf, numbers": crossed_numbers,
    "allOf of 30 anyOf, members": crossed_members,
}


def measure(name: str, order: str) -> dict[str, Any]:
    """One blow-up, in this process: seconds, growth of memory, and what came of it."""
    vocabulary = Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])
    row = np.zeros(vocabulary.mask_words, np.int32)
    Grammar.from_json_schema({"enum": ["a", 1], "properties": {"a": True}}).compile(vocabulary).matcher().fill_mask(row)
    schema = BLOWUPS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    try:
        Grammar.from_json_schema(schema, property_order=order).compile(vocabulary).matcher().fill_mask(row)
        outcome = "compiled"
    except GrammarError as error:
        outcome = type(error).__name__
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return {"outcome": outcome, "seconds": round(seconds, 3), "megabytes": grown}


def run_blowups() -> dict[str, Any]:
    """All of them, in both orders of members; prints a table."""
    result: dict[str, Any] = {}
    bad = 0
    for name in BLOWUPS:
        for order in ("schema", "any"):
            found = _apart(name, order)
            right = found["outcome"] in ("compiled", "GrammarLimitError", "UnsupportedSchemaError")
            right = right and found["seconds"] <= SECONDS and found["megabytes"] <= MEGABYTES
            bad += not right
            told = f"{found['outcome']:22} {found['seconds']:8.3f} s {found['megabytes']:6} MB"
            print(f"{name:30} {order:7} {told} {'' if right else '  <-- too much'}")
            result[f"{name}, {order}"] = found
    return {"blowups": result, "too_much": bad}


def _apart(name: str, order: str) -> dict[str, Any]:
    call = f"print(json.dumps(measure({name!r}, {order!r})))"
    command = [sys.executable, "-c", f"import json; from {__name__} import measure; {call}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "timeout", "seconds": float(TIMEOUT), "megabytes": 0}
    if ended.returncode:
        return {"outcome": ended.stderr.strip().splitlines()[-1][:60], "seconds": 0.0, "megabytes": 0}
    return dict(json.loads(ended.stdout.splitlines()[-1]))
