"""Grammar x Vocabulary -> CompiledGrammar."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from structgen.grammar.automaton import Automaton
from structgen.grammar.matcher import Matcher
from structgen.grammar.tables import Array
from structgen.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from structgen.grammar.grammar import Grammar

DEFAULT_TABLE_BYTES = 256 << 20


class CompiledGrammar:
    """A grammar over a vocabulary: shared by all who use the pair, read-only to them, lazily filled inside.

    Args:
        table_bytes: a bound for what is remembered; beyond it, remembering starts anew.
    Raises:
        UnsatisfiableError: nothing matches, or the vocabulary cannot spell anything that does.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, *, table_bytes: int = DEFAULT_TABLE_BYTES) -> None:
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.automaton = Automaton(grammar.program, vocabulary)
        self._table_bytes = table_bytes
        self._checked = 0
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """A new cursor at the beginning."""
        return Matcher(self)

    def keep_within_bounds(self) -> None:
        """Replace the automaton when it has outgrown its bound. Looks only every few new masks."""
        masks = len(self.automaton.masks)
        if masks - self._checked < 16:
            return
        with self._lock:
            self._checked = masks
            if self.automaton.size_in_bytes > self._table_bytes:
                self.automaton = self.automaton.renewed()
                self._checked = 0

    def stats(self) -> dict[str, int]:
        """Sizes of the program and of what was computed so far."""
        return self.automaton.stats()


def fill_masks(matchers: Sequence[Matcher], rows: Array) -> None:
    """Fill a whole batch: `rows` is int32[len(matchers), mask_words].

    Masks that are known are copied; several that are not are computed on as many threads, without the GIL.
    """
    unknown = [(matcher, row) for matcher, row in zip(matchers, rows, strict=True) if not matcher.fill_known_mask(row)]
    if len(unknown) < 2:
        for matcher, row in unknown:
            matcher.fill_mask(row)
    else:
        for future in [_workers().submit(matcher.fill_mask, row) for matcher, row in unknown]:
            future.result()


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="structgen-mask")
