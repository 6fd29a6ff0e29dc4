"""Compiling ahead: afterwards nothing is left to compile for an ordinary grammar."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.grammar import Grammar, Vocabulary, entries
from structgen.grammar.warm_up import warm_up


def test_nothing_is_left_to_compile() -> None:
    warm_up()
    functions = [one for one in vars(entries).values() if hasattr(one, "signatures")]
    if not functions:
        pytest.skip("numba compiles nothing in this run (NUMBA_DISABLE_JIT)")
    before = [len(function.signatures) for function in functions]
    vocabulary = Vocabulary([bytes((i,)) for i in range(256)] + [b"ab", b'":'], [0])
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    for options in ({}, {"property_order": "any"}):
        matcher = Grammar.from_json_schema(schema, **options).compile(vocabulary).matcher()
        row = np.zeros(vocabulary.mask_words, np.int32)
        for byte in b'{"a":"x","b":1,"c":1}':
            matcher.fill_mask(row)
            assert matcher.accept(byte)
    assert [len(function.signatures) for function in functions] == before
