"""The lazy automaton of one compiled grammar: Python's hold on the tables that numba fills.

Ownership: one `Automaton` belongs to one `CompiledGrammar` and is shared by all its matchers. What exists is read
without a lock (arrays are append-only); whatever adds to the tables holds the lock. An automaton that outgrows its
bound is not emptied but replaced: matchers notice, and replay their tokens on the new one.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from structgen.grammar import entries
from structgen.grammar.configuration import ENDED_KEY
from structgen.grammar.distance import token_distances
from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError
from structgen.grammar.growth import grown
from structgen.grammar.handles import Handle
from structgen.grammar.memory_pool import POOL
from structgen.grammar.program import Program
from structgen.grammar.tables import (
    CONFIGS,
    DEAD,
    ERROR,
    FINAL,
    IN_BYTES,
    IN_TOKENS,
    INFINITE,
    KEY_ENDS,
    LENGTH,
    LIMIT,
    NEEDED,
    STACKS,
    START,
    UNKNOWN,
    Array,
    Tables,
    new_tables,
    release,
    size_in_bytes,
    with_scratch,
)
from structgen.grammar.vocabulary import Vocabulary

BYTES_PER_STEP = 150  # a dictionary entry with its two numbers, measured
MOST_FORCED = 4096  # forced tokens that are kept; less than a megabyte


class Mask(NamedTuple):
    """A mask and what it says about budgets.

    Attributes:
        bits: int32[mask_words], read-only.
        highest: the highest min_tokens_to_complete after any allowed token (0: only EOS is allowed).
        narrowed: a budget took tokens away.
        ends_key: some allowed token ends a key that was not declared, so that it must be new.
    """

    bits: Array
    highest: int
    narrowed: bool
    ends_key: bool


class Automaton:
    """Configurations, transitions and masks of one program over one vocabulary.

    Raises:
        UnsatisfiableError: nothing matches, or the vocabulary cannot spell anything that does.
    """

    def __init__(self, program: Program, vocabulary: Vocabulary) -> None:
        self.program = program
        self.vocabulary = vocabulary
        self._lock = threading.RLock()
        in_bytes = program.byte_distance
        if in_bytes[program.start, IN_BYTES] >= INFINITE:
            raise UnsatisfiableError("nothing matches this grammar", hint="look for contradicting constraints")
        self._distance = token_distances(program, vocabulary.trie, in_bytes)
        if self._distance[program.start, IN_TOKENS] >= INFINITE:
            raise UnsatisfiableError(
                "the vocabulary has no tokens for anything that matches",
                hint="use characters that this tokenizer can spell",
            )
        self._width = len(vocabulary.tokens)
        self._shared: Any = vocabulary.mask_handle.address
        self._fresh_tables()

    def renewed(self) -> Automaton:
        """The same automaton with empty tables."""
        fresh = copy.copy(self)
        fresh._lock = threading.RLock()
        fresh._fresh_tables()
        return fresh

    def __del__(self) -> None:
        if hasattr(self, "masks"):  # it was made to the end
            release(self.tables)
            for mask in self.masks.values():
                mask.bits.flags.writeable = True
                POOL.give(mask.bits)

    def _fresh_tables(self) -> None:
        self._use(new_tables(self.program, self._distance, self.vocabulary.trie.height, self.vocabulary.mask_words))
        self.masks: dict[int, Mask] = {}
        self._steps: dict[int, int] = {}  # by configuration * width + token
        self._forced: dict[tuple[int, int], bytes] = {}  # by configuration and how far was looked
        self.final: dict[int, bool] = {}  # by configuration
        self.forced_ids: dict[tuple[int, ...], tuple[int, ...]] = {}  # by configuration and the tokens before it
        self.start = self._retry(lambda: entries.start_config(self._handle.address, self.program.start))

    def _use(self, tables: Tables) -> None:
        """Take tables that hold all that the present ones do."""
        self.tables = tables
        self._handle = Handle(tables)

    def _retry(self, compute: Callable[[], int]) -> int:
        """Run something that may need more room, growing the tables until it fits. The lock is held."""
        tables = with_scratch(self.tables)
        if tables is not self.tables:
            self._use(tables)
        while (result := compute()) < UNKNOWN:
            self._make_room(result)
        return result

    def _make_room(self, error: int) -> None:
        """Answer GROW and LIMIT."""
        if error == LIMIT:
            self.tables.meta[ERROR] = 0
            raise GrammarLimitError(
                "too many ways to read the text so far",
                hint="make alternatives start differently, or counted repetitions less ambiguous",
            )
        self._use(grown(self.tables))

    def step(self, config: int, token: int) -> int:
        """Where a token's bytes lead, remembered: a configuration, with ENDED_KEY added when they end a key that was
        not declared; DEAD when the token is refused."""
        if not 0 <= token < self._width:
            return DEAD
        key = config * self._width + token
        known = self._steps.get(key)
        if known is None:
            known = DEAD if self.vocabulary.tokens[token] is None else self._compute_step(config, token)
            self._steps[key] = known
        return known

    def _compute_step(self, config: int, token: int) -> int:
        handle = self._handle  # keeps these tables alive when another thread makes larger ones
        following = int(entries.follow_token(handle.address, self._shared, config, token))
        if following == UNKNOWN:
            with self._lock:
                before = self.tables.meta[KEY_ENDS]
                following = int(
                    self._retry(lambda: entries.advance_token(self._handle.address, self._shared, config, token))
                )
                if self.tables.meta[KEY_ENDS] != before and following >= 0:
                    following += ENDED_KEY
        return following

    def after_token(self, config: int, token: int) -> int:
        """The configuration after a token's bytes; DEAD when it is refused."""
        following = self.step(config, token)
        return following % ENDED_KEY if following >= 0 else following

    def after_bytes(self, config: int, text: bytes) -> int:
        """The configuration after any bytes; DEAD when they do not fit."""
        array = np.frombuffer(text, dtype=np.uint8)
        with self._lock:
            return self._retry(lambda: entries.advance(self._handle.address, config, array, 0, len(array)))

    def after_byte(self, config: int, byte: int) -> int:
        """As `after_bytes`, for one."""
        following = int(self.tables.transitions[config, byte])
        return following if following != UNKNOWN else self.after_bytes(config, bytes((byte,)))

    def next_bytes(self, config: int) -> list[int]:
        """The bytes that might follow and are tokens by themselves; some may lead nowhere."""
        row = (self.tables.transitions[config] != DEAD) & (self.vocabulary.trie.byte_cost == 1)
        return [int(byte) for byte in np.flatnonzero(row)]

    def with_stacks(self, config: int, stacks: Collection[int]) -> int:
        """The configuration of those pairs of another that have one of some stacks."""
        with self._lock:
            start = int(self.tables.config[config, START])
            pairs = self.tables.elements[start : start + int(self.tables.config[config, LENGTH])]
            pairs = pairs[np.isin(pairs >> 32, list(stacks))]
            return self._retry(lambda: entries.with_pairs(self._handle.address, pairs))

    def is_final(self, config: int) -> bool:
        """Whether a whole value ends at the configuration; remembered, since every token asks."""
        known = self.final.get(config)
        if known is None:
            known = self.final[config] = bool(self.tables.config[config, FINAL])
        return known

    def cost(self, config: int) -> int:
        """min_tokens_to_complete, EOS included."""
        return int(self.tables.config[config, NEEDED])

    def forced_bytes(self, config: int, most: int) -> bytes:
        """The bytes that must follow, at most `most` of them; kept."""
        known = self._forced.get((config, most))
        if known is None:
            known = self._forced[config, most] = self._compute_forced(config, most)
        return known

    def remember_forced(self, key: tuple[int, ...], ids: tuple[int, ...]) -> None:
        """Keep the tokens that a text forces at a configuration, behind some tokens."""
        if len(self.forced_ids) >= MOST_FORCED:
            self.forced_ids.clear()
        self.forced_ids[key] = ids

    def _compute_forced(self, config: int, most: int) -> bytes:
        out = bytearray()
        with self._lock:
            while len(out) < most and not self.is_final(config):
                byte = entries.single_byte(self._handle.address, config)
                if byte < 0:
                    break
                out.append(byte)
                config = self.after_bytes(config, bytes((byte,)))
        return bytes(out)

    def possible_bytes(self, config: int) -> list[int]:
        """The bytes that can follow."""
        with self._lock:
            row = np.flatnonzero(self.tables.transitions[config] != DEAD).tolist()
        return [byte for byte in row if self.after_bytes(config, bytes((byte,))) != DEAD]

    def mask(self, config: int) -> Mask:
        """The mask of a configuration without a budget; kept."""
        known = self.masks.get(config)
        if known is None:
            with self._lock:
                known = self._compute_mask(config, INFINITE - 1)
                self.masks[config] = known
        return known

    def mask_within(self, config: int, budget: int) -> Mask:
        """The mask when `budget` tokens, EOS included, are left: only what can still be completed in time."""
        plain = self.mask(config)
        if plain.highest < budget:
            return plain
        with self._lock:
            return self._compute_mask(config, budget - 1)

    def _compute_mask(self, config: int, limit: int) -> Mask:
        vocabulary = self.vocabulary
        bits = POOL.take((vocabulary.mask_words,), np.int32)
        self._retry(lambda: entries.fill(self._handle.address, self._shared, config, limit, bits))
        bits.flags.writeable = False
        highest, narrowed, ends_key = self.tables.seen[:3].tolist()
        return Mask(bits, highest, narrowed != 0, ends_key != 0)

    @property
    def size_in_bytes(self) -> int:
        """What configurations, masks and remembered steps take."""
        rows = len(self.masks) * self.vocabulary.mask_words * 4
        entries_kept = len(self._steps) + len(self._forced) + len(self.final)
        return size_in_bytes(self.tables) + rows + entries_kept * BYTES_PER_STEP

    def stats(self) -> dict[str, int]:
        """Sizes, for people and metrics."""
        return {
            "states": self.program.size,
            "configurations": int(self.tables.meta[CONFIGS]),
            "stacks": int(self.tables.meta[STACKS]),
            "masks": len(self.masks),
            "bytes": self.size_in_bytes,
        }
