"""The matcher's promises: history, end of text, forced tokens, eviction, threads."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from structgen.grammar import CompiledGrammar, Grammar, Matcher, Vocabulary, fill_masks

Allowed = Callable[..., set[int]]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}


def ended(matcher: Matcher) -> bool:
    return matcher.is_terminated


def complete(matcher: Matcher) -> bool:
    return matcher.is_complete


def walk(matcher: Matcher, allowed: Allowed, chance: random.Random, steps: int) -> list[tuple[int, set[int]]]:
    """Random allowed tokens, each with the mask before it."""
    taken = []
    for _ in range(steps):
        mask = allowed(matcher)
        if not mask:
            break
        taken.append((chance.choice(sorted(mask)), mask))
        assert matcher.accept(taken[-1][0])
    return taken


@pytest.mark.nojit
@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("seed", range(3))
def test_rollback_of_any_depth(seed: int, order: str, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(seed)
    matcher = Grammar.from_json_schema(PERSON, property_order=order).compile(small_vocabulary).matcher()
    taken = walk(matcher, allowed, chance, 40)
    ids = [token_id for token_id, _ in taken]
    for depth in [1, len(taken), *(chance.randrange(len(taken) + 1) for _ in range(6))]:
        matcher.rollback(depth)
        left = len(taken) - depth
        assert matcher.tokens == ids[:left]
        assert not matcher.is_terminated or depth == 0
        if depth:
            assert allowed(matcher) == taken[left][1]
        for token_id in ids[left:]:
            assert matcher.accept(token_id)
    assert matcher.tokens == ids


@pytest.mark.nojit
def test_rollback_takes_back_the_end_too(bytes_only: Vocabulary, allowed: Allowed) -> None:
    matcher = Grammar.from_choices(["a"]).compile(bytes_only).matcher()
    assert matcher.accept(ord("a"))
    assert matcher.accept(256)
    assert ended(matcher)
    matcher.rollback(1)
    assert not ended(matcher)
    assert allowed(matcher) == {256}
    assert matcher.accept(256)
    matcher.rollback(2)
    assert allowed(matcher) == {ord("a")}
    matcher.rollback(0)
    for count in (1, -1):
        with pytest.raises(ValueError, match="cannot take back"):
            matcher.rollback(count)


@pytest.mark.nojit
def test_copies_are_independent(bytes_only: Vocabulary, allowed: Allowed) -> None:
    matcher = Grammar.from_regex("(?:ab|cd)+").compile(bytes_only).matcher()
    matcher.accept(ord("a"))
    copy = matcher.copy()
    assert copy.tokens == matcher.tokens
    assert copy.accept(ord("b"))
    assert copy.accept(256)
    assert ended(copy)
    assert not ended(matcher)
    assert allowed(matcher) == {ord("b")}
    twin = copy.copy()
    copy.rollback(3)
    assert ended(twin)
    assert allowed(copy) == {ord("a"), ord("c")}
    matcher.reset()
    assert matcher.tokens == []
    assert allowed(matcher) == {ord("a"), ord("c")}
    twin.reset()
    assert not ended(twin)


@pytest.mark.nojit
def test_the_end(bytes_only: Vocabulary, allowed: Allowed) -> None:
    matcher = Grammar.from_json_schema({"type": "integer"}).compile(bytes_only).matcher()
    assert not complete(matcher)
    assert not matcher.accept(256)
    assert matcher.accept(ord("1"))
    assert complete(matcher)  # and may go on
    assert allowed(matcher) == {*range(ord("0"), ord("9") + 1), 256}
    assert matcher.accept(ord("2"))
    assert matcher.accept(256)
    assert ended(matcher)
    assert not complete(matcher)
    assert matcher.min_tokens_to_complete == 0
    assert matcher.forced_tokens() == []
    assert allowed(matcher) == set()
    assert not matcher.accept(256)
    assert not matcher.accept(ord("3"))
    assert matcher.tokens == [ord("1"), ord("2"), 256]


@pytest.mark.nojit
def test_all_eos_ids_end(allowed: Allowed) -> None:
    vocabulary = Vocabulary([b"a", None, None, b"b"], [1, 2])
    compiled = Grammar.from_regex("a*").compile(vocabulary)
    assert allowed(compiled.matcher()) == {0, 1, 2}
    for eos in (1, 2):
        matcher = compiled.matcher()
        assert matcher.accept(eos)
        assert matcher.is_terminated


@pytest.mark.nojit
def test_a_refused_token_changes_nothing(small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(7)
    matcher = Grammar.from_json_schema(PERSON).compile(small_vocabulary).matcher()
    for _ in range(15):
        mask = allowed(matcher)
        before = (matcher.tokens, matcher.is_complete, matcher.min_tokens_to_complete)
        refused = [t for t in range(-2, small_vocabulary.size + 2) if t not in mask]
        for token_id in chance.sample(refused, 12):
            assert not matcher.accept(token_id)
        assert (matcher.tokens, matcher.is_complete, matcher.min_tokens_to_complete) == before
        assert allowed(matcher) == mask
        matcher.accept(chance.choice(sorted(mask)))


@pytest.mark.nojit
def test_accept_string(bytes_only: Vocabulary, allowed: Allowed) -> None:
    compiled = Grammar.from_regex("a[éx]b").compile(bytes_only)
    matcher = compiled.matcher()
    assert not matcher.accept_string("ab")
    assert matcher.accept_string("aé")
    assert allowed(matcher) == {ord("b")}
    assert matcher.accept_string(b"b")
    assert matcher.is_complete
    other = compiled.matcher()
    other.accept(ord("a"))
    with pytest.raises(RuntimeError, match="has not accepted tokens"):
        other.accept_string("x")


@pytest.mark.nojit
def test_forced_tokens_without_a_tokenizer(small_vocabulary: Vocabulary) -> None:
    schema = {"properties": {"name": {"type": "string"}}, "required": ["name"], "type": "object"}
    matcher = Grammar.from_json_schema(schema, whitespace="compact").compile(small_vocabulary).matcher()
    forced = matcher.forced_tokens()
    assert matcher.tokens == []  # it has changed nothing
    assert forced
    text = b"".join(small_vocabulary.tokens[t] or b"" for t in forced)
    assert b'{"name":"'.startswith(text)
    for token_id in forced:
        assert matcher.accept(token_id)


@pytest.mark.nojit
def test_nothing_is_forced_where_it_may_end(bytes_only: Vocabulary) -> None:
    matcher = Grammar.from_choices(["a", "abc"]).compile(bytes_only).matcher()
    assert matcher.forced_tokens() == [ord("a")]
    matcher.accept(ord("a"))
    assert matcher.forced_tokens() == []
    matcher.accept(ord("b"))
    assert matcher.forced_tokens() == [ord("c")]


def test_a_longer_token_holds_forced_ones_back() -> None:
    # After `{"` the name may go on in one token with what follows, so "na" is not certain.
    vocabulary = Vocabulary([b"{", b'"', b"na", b'na"x', b'na"y', b"x", b"y", b"}", b"n", b"a", None], [10])
    matcher = Grammar.from_regex('\\{"na"[xy]\\}').compile(vocabulary).matcher()
    assert matcher.forced_tokens() == [0, 1]


def test_remembered_forced_tokens_are_those_that_are_found_anew(small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    chance = random.Random(9)
    grammar = Grammar.from_json_schema(PERSON, whitespace="compact")
    shared = grammar.compile(small_vocabulary)
    for _ in range(12):
        matcher = shared.matcher()
        while not matcher.is_terminated:
            fresh = grammar.compile(small_vocabulary).matcher()
            assert all(map(fresh.accept, matcher.tokens))
            assert matcher.forced_tokens() == fresh.forced_tokens() == matcher.forced_tokens()
            assert matcher.accept(chance.choice(sorted(allowed(matcher))))


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TEXT, WHOLE, FLAG, NOTHING = ({"type": name} for name in ("string", "integer", "boolean", "null"))
DOCUMENTS: list[tuple[dict[str, Any], Any]] = [
    (PERSON, {"name": "Zoë", "tags": ["red", "green"], "age": 42}),
    (PERSON, {"name": "", "age": 0}),
    ({"const": {"status": "ok", "items": [1, 2, 3], "nested": {"deep": [None, True]}}}, None),
    ({"enum": ["monday", "tuesday", "wednesday"]}, "wednesday"),
    ({"enum": ["north", "northeast", "northwest"]}, "northeast"),
    ({"type": "array", "items": record(id=WHOLE, label={"enum": ["spam", "ham"]})}, [{"id": 22, "label": "spam"}] * 2),
    (record(created_at=TEXT | {"format": "date"}), {"created_at": "2024-02-29"}),
    (
        record(invoice_number=TEXT | {"pattern": "^INV-[0-9]{4}$"}, total=WHOLE),
        {"invoice_number": "INV-2024", "total": 12},
    ),
    (record(a=FLAG, b=NOTHING), {"a": True, "b": None}),
    (record(a=FLAG, b=NOTHING), {"a": False, "b": None}),
    (
        {"type": "array", "prefixItems": [{"const": "first of all"}, TEXT], "minItems": 2},
        ["first of all", "漢字 and 😀"],
    ),
    (record(ключ=TEXT, schlüssel=WHOLE), {"ключ": "да", "schlüssel": -7}),
    (record(text=TEXT), {"text": 'He said "no"\n\tand left.'}),
]


@pytest.mark.parametrize("index", range(len(DOCUMENTS)))
def test_forced_tokens_are_the_tokenizers_own(index: int, smollm2: Vocabulary) -> None:
    schema, value = DOCUMENTS[index]
    value = schema.get("const", value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    own = smollm2.encode(text)
    matcher = Grammar.from_json_schema(schema, whitespace="compact").compile(smollm2).matcher()
    position, forced_count = 0, 0
    while position < len(own):
        forced = matcher.forced_tokens()
        assert forced == own[position : position + len(forced)]
        forced_count += len(forced)
        for token_id in forced or own[position : position + 1]:
            assert matcher.accept(token_id)
            position += 1
    assert matcher.is_complete
    assert forced_count >= 1 or "enum" in schema


def test_eviction(small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    grammar = Grammar.from_json_schema(PERSON, property_order="any")
    tiny = CompiledGrammar(grammar, small_vocabulary, table_bytes=1)
    roomy = grammar.compile(small_vocabulary)
    chance = random.Random(3)
    old = tiny.matcher()
    old_taken = walk(old, allowed, chance, 5)
    seen = {id(tiny.automaton)}
    kept = [tiny.automaton]  # so that no id is used twice
    for _ in range(6):
        evicted, fresh = tiny.matcher(), roomy.matcher()
        for _ in range(25):
            assert evicted.is_complete == fresh.is_complete
            assert evicted.min_tokens_to_complete == fresh.min_tokens_to_complete
            mask = allowed(evicted)
            assert mask == allowed(fresh)
            if not mask:
                break
            token_id = chance.choice(sorted(mask))
            assert evicted.accept(token_id)
            assert fresh.accept(token_id)
            if tiny.automaton not in kept:
                kept.append(tiny.automaton)
                seen.add(id(tiny.automaton))
    assert len(seen) > 1
    # A matcher from before the first eviction goes on as if nothing had happened.
    assert old.tokens == [token_id for token_id, _ in old_taken]
    copy = old.copy()
    fresh = roomy.matcher()
    for token_id, _ in old_taken:
        fresh.accept(token_id)
    assert old.is_complete == fresh.is_complete
    assert copy.min_tokens_to_complete == fresh.min_tokens_to_complete
    assert allowed(copy) == allowed(old) == allowed(fresh)
    assert old.forced_tokens() == fresh.forced_tokens()
    old.rollback(3)
    assert allowed(old) == old_taken[-3][1]


@pytest.mark.parametrize("order", ["schema", "any"])
def test_a_known_mask_is_the_one_that_would_be_copied(order: str, small_vocabulary: Vocabulary) -> None:
    """With every budget, and the same object for all who stand there."""
    compiled = Grammar.from_json_schema(PERSON, property_order=order).compile(small_vocabulary)
    chance = random.Random(1)
    words = small_vocabulary.mask_words
    copied, filled = np.zeros(words, np.int32), np.zeros(words, np.int32)
    lent = 0
    for _ in range(20):
        matcher = compiled.matcher()
        for _ in range(30):
            for budget in (None, 1, 3, matcher.min_tokens_to_complete, 40, 1000):
                known = matcher.known_mask(budget)
                assert matcher.fill_known_mask(copied, budget) == (known is not None or matcher.is_terminated)
                if known is None:
                    continue
                lent += 1
                assert matcher.copy().known_mask(budget) is known
                matcher.fill_mask(filled, budget)
                assert known.bits.tolist() == copied.tolist() == filled.tolist()
                assert not known.bits.flags.writeable
            matcher.fill_mask(filled)
            allowed_now = np.flatnonzero(np.unpackbits(filled.view(np.uint8), bitorder="little"))
            if not len(allowed_now) or not matcher.accept(int(chance.choice(allowed_now))):
                break
    assert lent > 100


def test_the_bits_of_a_known_mask_outlive_its_automaton(bytes_only: Vocabulary) -> None:
    """A step may read them later: an automaton that nobody holds gives the memory of its masks to others."""
    grammar = Grammar.from_json_schema(PERSON)
    compiled = grammar.compile(bytes_only)
    matcher = compiled.matcher()
    row = np.zeros(bytes_only.mask_words, np.int32)
    matcher.fill_mask(row)
    known = matcher.known_mask()
    assert known is not None
    compiled.automaton = compiled.automaton.renewed()
    assert matcher.min_tokens_to_complete > 0, "it stands on the new one"
    for length in range(1, 24):
        other = compiled.matcher()
        assert all(other.accept(byte) for byte in b'{"name": "Ada", "age": 3'[:length])
        other.fill_mask(np.zeros(bytes_only.mask_words, np.int32))
    assert known.bits.tolist() == row.tolist()


def test_every_method_notices_a_new_automaton(bytes_only: Vocabulary, allowed: Allowed) -> None:
    """Configurations of one automaton are numbers without meaning to another: whichever method comes first after one
    was replaced must look on the new one."""
    grammar = Grammar.from_json_schema(PERSON)
    uses: dict[str, Callable[[Matcher], Any]] = {
        "fill_mask": allowed,
        "known_mask": lambda matcher: known_or_filled(matcher, bytes_only),
        "fill_masks": lambda matcher: filled_together(matcher, bytes_only),
        "is_complete": lambda matcher: matcher.is_complete,
        "min_tokens_to_complete": lambda matcher: matcher.min_tokens_to_complete,
        "forced_tokens": lambda matcher: matcher.forced_tokens(),
        "accept": lambda matcher: (matcher.accept(ord("x")), matcher.accept(ord('"')), allowed(matcher)),
        "accept_string": lambda matcher: (matcher.accept_string('"'), allowed(matcher)),
        "rollback": lambda matcher: allowed(one_back(matcher)),
    }
    for name, use in uses.items():
        compiled = grammar.compile(bytes_only)
        for length in range(0, 24, 3):
            begun = b'{"name": "Ada", "age": 3'[:length]
            matcher, other = compiled.matcher(), grammar.compile(bytes_only).matcher()
            for one in (matcher, other):
                if name == "accept_string":
                    assert one.accept_string(begun)
                else:
                    assert all(one.accept(byte) for byte in begun)
            renewed = compiled.automaton.renewed()
            # Other configurations first, so that equal numbers mean different things.
            for text in (b'{"zebra', b"{ ", b'{"a', begun[: length // 2]):
                config = renewed.after_bytes(renewed.start, text)
                if config >= 0:
                    renewed.mask(config)
            compiled.automaton = renewed
            assert use(matcher) == use(other), (name, begun)


def one_back(matcher: Matcher) -> Matcher:
    matcher.rollback(min(1, len(matcher.tokens)))
    return matcher


def known_or_filled(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    known = matcher.known_mask()
    row = np.zeros(vocabulary.mask_words, np.int32)
    matcher.fill_mask(row)
    return (row if known is None else known.bits).tolist()


def filled_together(matcher: Matcher, vocabulary: Vocabulary) -> list[list[int]]:
    rows = np.zeros((2, vocabulary.mask_words), np.int32)
    fill_masks([matcher, matcher.copy()], rows)
    return rows.tolist()


def test_accept_string_in_parts_remembers_keys(bytes_only: Vocabulary) -> None:
    matcher = Grammar.from_json_schema({"type": "object"}).compile(bytes_only).matcher()
    assert matcher.accept_string('{"a": 1, ')
    assert not matcher.accept_string('"a": 2}')
    assert matcher.accept_string('"b": 2}')
    assert matcher.is_complete


@pytest.mark.parametrize("table_bytes", [1, 256 << 20])
def test_several_threads(table_bytes: int, bytes_only: Vocabulary, allowed: Allowed) -> None:
    grammar = Grammar.from_json_schema(PERSON, property_order="any")
    compiled = CompiledGrammar(grammar, bytes_only, table_bytes=table_bytes)
    alone = grammar.compile(bytes_only)
    faults: list[object] = []

    def run(seed: int) -> None:
        try:
            chance, matcher = random.Random(seed), compiled.matcher()
            taken = walk(matcher, allowed, chance, 60)
            results[seed] = taken
        except Exception as error:
            faults.append(error)

    results: dict[int, list[tuple[int, set[int]]]] = {}
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    for seed in range(8):
        assert results[seed] == walk(alone.matcher(), allowed, random.Random(seed), 60)


def test_stats_and_names(bytes_only: Vocabulary, allowed: Allowed) -> None:
    grammar = Grammar.from_choices(["a", "b"])
    compiled = grammar.compile(bytes_only)
    before = compiled.stats()
    allowed(compiled.matcher())
    after = compiled.stats()
    assert after["masks"] == before["masks"] + 1
    assert after["states"] == grammar.program.size
    assert after["bytes"] > before["bytes"] > 0
    assert grammar.kind in repr(grammar)
    assert "257" in repr(bytes_only)


def test_ids_outside_of_the_vocabulary_are_refused(bytes_only: Vocabulary) -> None:
    """Whatever was accepted elsewhere before: steps are remembered by one number for configuration and token."""
    compiled = Grammar.from_regex("[a-c]{9}").compile(bytes_only)
    seen = compiled.matcher()
    for _ in range(9):
        for byte in b"abc":
            assert seen.copy().accept(byte)
        assert seen.accept(ord("a"))
    matcher = compiled.matcher()
    for _ in range(9):
        width = len(bytes_only.tokens)
        assert not any(matcher.accept(token + far * width) for token in b"abc" for far in (-2, -1, 1, 2, 3))
        assert matcher.accept(ord("b"))
