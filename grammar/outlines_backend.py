"""A second backend: regexes and choices on outlines-core's precomputed index.

WARNING: not for patterns of strangers in a process that matters. outlines-core unrolls counts and works out the whole
index at compile time: a short pattern can take all memory, and its faults abort the process. It is here to compare
with, as an oracle in tests, and for those who want its index. It lies in the extra `outlines`.

Its index (0.2.14) loses the transitions from an accepting state to one that is not: in `(ab)?` it never allows an `a`.
So the pattern gets a character behind it that it does not use itself, the sentinel, and a text is complete where that
character may follow. What else differs: every byte that a pattern can need must be in some token, or compiling fails;
assertions inside a pattern, JSON Schema and EBNF are refused; nothing is ever forced.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from structgen.grammar.errors import GrammarError, GrammarLimitError, UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.outlines_matcher import OutlinesMatcher
from structgen.grammar.outlines_pattern import rust_pattern_of_choices, rust_pattern_of_regex
from structgen.grammar.tables import INFINITE, Array
from structgen.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from structgen.grammar.grammar import Grammar

_VOCABULARIES: weakref.WeakKeyDictionary[Vocabulary, dict[str, Any]] = weakref.WeakKeyDictionary()


class MissingBackendError(GrammarError, ImportError):
    """outlines-core is not installed."""

    code = "missing_backend"


def _outlines_core() -> Any:
    try:
        return import_module("outlines_core")
    except ImportError:
        raise MissingBackendError(
            "the backend outlines-core is not installed", hint="pip install 'structgen[outlines]'"
        ) from None


def _pattern(grammar: Grammar) -> tuple[str, str]:
    if grammar.kind == "regex" and isinstance(grammar.source, str):
        return rust_pattern_of_regex(grammar.source)
    if grammar.kind == "choice" and isinstance(grammar.source, tuple):
        return rust_pattern_of_choices(grammar.source)
    raise UnsupportedSchemaError(
        f"the backend outlines-core takes regexes and choices only, not a grammar of kind {grammar.kind!r}",
        hint='compile without backend="outlines-core"',
    )


def _their_vocabulary(vocabulary: Vocabulary, sentinel: str) -> Any:
    """Their vocabulary: id `size` ends, id `size + 1` is the sentinel; tokens with the sentinel never fit."""
    by_sentinel = _VOCABULARIES.setdefault(vocabulary, {})
    if sentinel not in by_sentinel:
        ids: dict[bytes, list[int]] = {}
        byte = sentinel.encode()
        for index, token in enumerate(vocabulary.tokens):
            if token and byte not in token:
                ids.setdefault(token, []).append(index)
        ids[byte] = [vocabulary.size + 1]
        by_sentinel[sentinel] = _outlines_core().Vocabulary(vocabulary.size, ids)
    return by_sentinel[sentinel]


class OutlinesGrammar:
    """A grammar and a vocabulary as one index; see the module's warning.

    Raises:
        UnsupportedSchemaError: it is neither a regex without inner assertions nor a list of choices, or it uses every
            ASCII character.
        UnsatisfiableError: the vocabulary lacks tokens for something that the pattern allows.
        GrammarLimitError: the pattern is too large for the index.
        MissingBackendError: outlines-core is not installed.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.grammar = grammar
        self.vocabulary = vocabulary
        pattern, sentinel = _pattern(grammar)
        theirs = _their_vocabulary(vocabulary, sentinel)
        try:
            self._index = _outlines_core().Index(pattern, theirs)
        except ValueError as error:
            raise _told(str(error)) from error
        self.start = int(self._index.get_initial_state())
        self._sentinel = vocabulary.size + 1
        self._masks: dict[int, Array] = {}
        bytes_with_token = {token[0] for token in vocabulary.tokens if token and len(token) == 1}
        # With a token for every byte that UTF-8 has, each state of the index can be completed.
        self._has_dead_ends = not bytes_with_token >= {*range(0xC0), *range(0xC2, 0xF5)}
        if self.distance(self.start, cheap=True) >= INFINITE:
            raise UnsatisfiableError(
                "the vocabulary has no tokens for anything that matches",
                hint="use characters that this tokenizer can spell",
            )

    def matcher(self) -> OutlinesMatcher:
        """A new cursor at the beginning."""
        return OutlinesMatcher(self)

    def stats(self) -> dict[str, int]:
        """States worked out here so far; the index itself does not say its size."""
        return {"masks": len(self._masks), "bytes": len(self._masks) * self.vocabulary.mask_words * 4}

    def is_final(self, state: int) -> bool:
        return self._index.get_next_state(state, self._sentinel) is not None

    def following(self, state: int, token: int) -> int:
        """The state after a token, or -1."""
        if not 0 <= token < len(self.vocabulary.tokens) or self.vocabulary.tokens[token] is None:
            return -1
        following = self._index.get_next_state(state, token)
        return -1 if following is None or self.distance(following, cheap=True) >= INFINITE else int(following)

    def _tokens(self, state: int) -> list[int]:
        return [token for token in self._index.get_allowed_tokens(state) or () if token < self.vocabulary.size]

    @cached_property
    def _distances(self) -> dict[int, int]:
        """Tokens from each state to completion, EOS included. Asks the index for every transition: slow, once."""
        reached_from: dict[int, set[int]] = {self.start: set()}
        todo = [self.start]
        while todo:
            state = todo.pop()
            for target in {self._index.get_next_state(state, token) for token in self._tokens(state)}:
                if target not in reached_from:
                    reached_from[target] = set()
                    todo.append(target)
                reached_from[target].add(state)
        distances = dict.fromkeys((state for state in reached_from if self.is_final(state)), 1)
        wave = list(distances)
        while wave:
            before = {source for state in wave for source in reached_from[state]} - distances.keys()
            distances |= dict.fromkeys(before, distances[wave[0]] + 1)
            wave = list(before)
        return distances

    def distance(self, state: int, *, cheap: bool = False) -> int:
        """Tokens to completion, EOS included; with `cheap`, 0 where it is clear that it can be completed."""
        if cheap and not self._has_dead_ends:
            return 0
        return self._distances.get(state, INFINITE)

    def mask(self, state: int) -> Array:
        """int32[mask_words], kept."""
        known = self._masks.get(state)
        if known is None:
            known = self._masks[state] = self._row(state, INFINITE, cheap=True)
        return known

    def mask_within(self, state: int, budget: int) -> Array:
        """The mask when `budget` tokens, EOS included, are left."""
        return self._row(state, budget, cheap=False)

    def _row(self, state: int, budget: int, *, cheap: bool) -> Array:
        tokens = self._tokens(state)
        if self._has_dead_ends or not cheap:
            targets = [self._index.get_next_state(state, token) for token in tokens]
            fits = {target: self.distance(target, cheap=cheap) < budget for target in set(targets)}
            tokens = [token for token, target in zip(tokens, targets, strict=True) if fits[target]]
        bits = np.zeros(self.vocabulary.mask_words * 32, np.bool_)
        bits[tokens] = True
        if self.is_final(state) and budget > 0:
            bits[list(self.vocabulary.eos_token_ids)] = True
        row = np.packbits(bits, bitorder="little").view(np.int32)
        row.flags.writeable = False
        return row


def _told(message: str) -> GrammarError:
    if "incompatible" in message:
        return UnsatisfiableError(
            "outlines-core: the vocabulary lacks tokens for something that the pattern allows",
            hint="the default backend leaves out only what cannot be spelled",
        )
    return GrammarLimitError(f"outlines-core: {message.splitlines()[0]}", hint="use the default backend")
