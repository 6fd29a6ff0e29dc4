"""Compile every numba function of this room ahead, into the disk cache, so that no request waits for it."""

from __future__ import annotations

import numpy as np

from structgen.grammar.grammar import Grammar
from structgen.grammar.growth import grown
from structgen.grammar.key_memory import KeyMemory
from structgen.grammar.seen_keys import seen_keys
from structgen.grammar.tables import CONFIGS, STACKS
from structgen.grammar.vocabulary import Vocabulary


def warm_up() -> None:
    """Takes some 20 seconds the first time after an installation, and no time once the cache is there."""
    vocabulary = Vocabulary([bytes((i,)) for i in range(256)] + [b'{"a":', None], [257])
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    compiled = Grammar.from_json_schema(schema).compile(vocabulary)
    matcher = compiled.matcher()
    row = np.zeros(vocabulary.mask_words, np.int32)
    matcher.fill_mask(row)
    matcher.fill_mask(row, matcher.min_tokens_to_complete)
    matcher.forced_tokens()
    matcher.accept(256)
    compiled.automaton.after_bytes(compiled.automaton.start, b"{")
    Grammar.any_json().compile(vocabulary).matcher().accept(256)
    vocabulary.encode(b"a")
    seen_keys(b"{")
    memory = KeyMemory(vocabulary, b"{")
    memory.update([ord("{")])
    memory.would_repeat(256)
    memory.forbid(row)
    # Tables that are full: growing them has functions of its own.
    tables = compiled.automaton.tables
    small = tables._replace(stack=tables.stack[: tables.meta[STACKS]], config=tables.config[: tables.meta[CONFIGS]])
    grown(small)
