"""One corpus of cases on every automaton, matcher and vocabulary."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, GrammarError, Matcher, Vocabulary
from structgen.grammar.reference import ReferenceMatcher

Matches = Callable[[Grammar, str | bytes], bool]


@pytest.mark.nojit
def test_automaton_by_bytes(case: Any, matches: Matches) -> None:
    for text in case.accepted:
        assert matches(case.grammar, text), text
    for text in case.rejected:
        assert not matches(case.grammar, text), text


def test_reference_by_bytes(case: Any, bytes_only: Vocabulary) -> None:
    for text, expected in [*((one, True) for one in case.accepted), *((one, False) for one in case.rejected)]:
        twin = ReferenceMatcher(case.grammar.program, bytes_only)
        assert (not text or twin.accept_string(text)) and twin.is_complete if expected else True, text
        assert expected or not ((not text or twin.accept_string(text)) and twin.is_complete), text


@pytest.mark.nojit
def test_refused(refused_case: Any, bytes_only: Vocabulary) -> None:
    with pytest.raises(GrammarError) as caught:
        refused_case.grammar.compile(bytes_only)
    assert caught.value.code == refused_case.error
    assert caught.value.pointer == refused_case.pointer or refused_case.pointer is None
    assert caught.value.message
    assert str(caught.value)


def spellings(vocabulary: Vocabulary, text: bytes) -> Iterator[list[int]]:
    """Ways to spell a text: the vocabulary's own, and one by chance among all tokens that fit."""
    try:
        own = vocabulary.encode(text)
    except ValueError:
        return  # this vocabulary cannot spell it at all
    yield own
    ids_of: dict[bytes, list[int]] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        if token and token in text:
            ids_of.setdefault(token, []).append(token_id)
    chance = random.Random(len(text))
    reachable = [len(text)]  # places from which tokens lead to the end
    for place in range(len(text) - 1, -1, -1):
        if any(text.startswith(token, place) and place + len(token) in reachable for token in ids_of):
            reachable.append(place)
    place, ids = 0, []
    while place < len(text):
        fitting = [one for one in ids_of if text.startswith(one, place) and place + len(one) in reachable]
        token = chance.choice(fitting)
        ids.append(chance.choice(ids_of[token]))
        place += len(token)
    yield ids


def is_allowed(matcher: Matcher, token_id: int) -> bool:
    row = np.zeros(matcher.compiled.vocabulary.mask_words, np.int32)
    matcher.fill_mask(row)
    return bool(row[token_id >> 5] >> (token_id & 31) & 1)


def test_token_by_token(case: Any, vocabulary: Vocabulary) -> None:
    if not any(list(spellings(vocabulary, text)) for text in case.accepted):
        pytest.skip("this vocabulary can spell none of the accepted texts")
    compiled = case.grammar.compile(vocabulary)
    eos = min(vocabulary.eos_token_ids)
    for text in case.accepted:
        for ids in spellings(vocabulary, text):
            matcher = compiled.matcher()
            for token_id in ids:
                assert is_allowed(matcher, token_id), (text, token_id)
                assert matcher.accept(token_id), (text, token_id)
            assert matcher.is_complete, text
            assert is_allowed(matcher, eos)
            assert matcher.accept(eos)
            assert matcher.is_terminated
    for text in case.rejected:
        for ids in spellings(vocabulary, text):
            matcher = compiled.matcher()
            refused = False
            for token_id in ids:
                allowed = is_allowed(matcher, token_id)
                assert matcher.accept(token_id) == allowed
                refused = refused or not allowed
                if refused:
                    break
            assert refused or not is_allowed(matcher, eos), text
            assert refused or not matcher.accept(eos), text
