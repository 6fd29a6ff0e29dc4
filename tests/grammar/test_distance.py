"""Distances and their order: the slow twin sweeps over all states until nothing changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, GrammarError, Vocabulary, token_trie
from structgen.grammar.distance import _ONE_EACH, _sweep, _token_sweep, token_distances
from structgen.grammar.tables import IN_BYTES, INFINITE
from structgen.grammar.token_trie import build_trie, child

pytestmark = pytest.mark.nojit

SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "string"}}, "required": ["value"]},
    {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 2}, {"const": "leaf"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/b"}, "minItems": 1, "type": "array"},
                                    "b": {"enum": ["xyz", "xyzzy"], "type": "string"}}},
    {"type": "string", "pattern": "^(ab|a)*c", "maxLength": 9},
    {"type": "object", "minProperties": 3, "additionalProperties": {"type": "integer"}},
    {},
]  # fmt: skip
TOKENS = [b'"', b"{", b"}", b"[", b"]", b":", b",", b"val", b'value"', b"ue", b"xy", b"xyz", b"leaf", b'"leaf"', b"ab"]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("singles", [True, False])
def test_a_sweep_and_the_circular_states_are_enough(schema: Any, singles: bool) -> None:
    tokens: list[bytes | None] = [None, *TOKENS]
    tokens += [bytes([byte]) for byte in range(256) if singles or byte not in b"vuxzae"]
    try:
        program = Grammar.from_json_schema(schema).program
    except GrammarError:
        pytest.skip("not enforced")
    order, circular = program.order
    assert set(circular.tolist()) <= set(order.tolist())
    slow = np.full((program.size, 2), INFINITE, np.int32)
    while _sweep(program.code, program.edges, order, _ONE_EACH, slow, IN_BYTES):
        pass
    assert np.array_equal(program.byte_distance, slow)
    trie = Vocabulary(tokens, [0]).trie
    while _token_sweep(program.code, program.edges, order, trie, slow):
        pass
    fast = token_distances(program, trie, program.byte_distance)
    # Where a character of a counted text cannot be spelled, distances are raised again behind these sweeps.
    assert np.array_equal(fast, slow) or (not singles and bool((fast >= slow)[order].all()))


def test_children_by_pairs_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [bytes([a]) for a in b"abc"] + [b"ab", b"ac", b"bcd", b"zz", b"ab\xff", b"\xff\x00"]
    plain = build_trie(tokens, range(len(tokens)))
    monkeypatch.setattr(token_trie, "PAIRS_FROM", 0)
    paired = build_trie(tokens, range(len(tokens)))
    assert len(paired.pairs) > len(plain.pairs) == 0
    for node in range(-1, plain.nodes):
        for byte in range(256):
            assert child(plain, node, byte) == child(paired, node, byte)
