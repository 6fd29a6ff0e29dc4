"""One sequence's cursor through a compiled grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.grammar.configuration import ENDED_KEY
from structgen.grammar.distinct import DistinctMemory, Place
from structgen.grammar.key_memory import KeyMemory
from structgen.grammar.ops import DETOUR
from structgen.grammar.seen_keys import seen_keys
from structgen.grammar.tables import DEAD, INFINITE, Array

if TYPE_CHECKING:
    from structgen.grammar.automaton import Automaton, Mask
    from structgen.grammar.compiler import CompiledGrammar

FORCED_BYTES = 512  # how far forced text is looked ahead
FORCED_BRANCHES = 8  # up to this many ways to go on are tried one by one
FORCED_AHEAD = 16  # bytes of each
_CONTEXT_TOKENS = 4  # how many tokens at the end may join with what is not known yet


class Matcher:
    """Follows one output through a grammar. Cheap to make and to copy; not for several threads at once.

    The history of tokens and configurations is kept, so that `rollback` takes any number of steps.
    """

    __slots__ = (
        "_automaton",
        "_compiled",
        "_configs",
        "_distinct",
        "_keys_at",
        "_lender",
        "_memory",
        "_places",
        "_prefix",
        "_tokens",
        "is_terminated",
        "mask_was_narrowed",
    )

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._automaton: Automaton = compiled.automaton
        self._configs = [self._automaton.start]
        self._tokens: list[int] = []
        self._prefix = b""  # what accept_string read before the first token
        # How many tokens there were when a key that was not declared ended; -1: in the prefix, perhaps.
        self._keys_at: list[int] = []
        self._memory: KeyMemory | None = None  # made when a key could come twice
        # Whose mask `known_mask` gave last: an automaton that nobody holds gives the memory of its masks to others.
        self._lender: Automaton | None = None
        self._follow_distinct(self._automaton)
        self.is_terminated = False
        self.mask_was_narrowed = False

    def __del__(self) -> None:
        if self._memory is not None:
            self._memory.give_back()

    def _follow_distinct(self, automaton: Automaton) -> None:
        """From the start of an automaton, remember what must not come again, where that can run out."""
        distinct = automaton.program.distinct
        self._distinct = None if distinct is None else DistinctMemory(automaton, distinct)
        self._places = [] if self._distinct is None else [self._distinct.start]  # beside each configuration

    @property
    def state(self) -> tuple[int, int]:
        """Where the matcher stands, for statistics: what follows depends on it, on distinct keys and on the budget."""
        automaton, config = self._here()
        return id(automaton), config

    @property
    def compiled(self) -> CompiledGrammar:
        return self._compiled

    @property
    def tokens(self) -> list[int]:
        """The accepted token ids, EOS included."""
        return list(self._tokens)

    def _here(self) -> tuple[Automaton, int]:
        """The automaton that is current, and the configuration on it: numbers of one mean nothing to another."""
        if self._automaton is not self._compiled.automaton:
            self._replay()
        return self._automaton, self._configs[-1]

    def _replay(self) -> None:
        self._automaton = automaton = self._compiled.automaton
        config = automaton.after_bytes(automaton.start, self._prefix) if self._prefix else automaton.start
        self._configs = [config]
        self._follow_distinct(automaton)
        if self._distinct is not None:
            self._places = [_certain(self._distinct.after(self._places[-1], self._prefix))]
            self._configs = [config := self._places[-1].config]
        for token in self._tokens[: len(self._tokens) - self.is_terminated]:
            config = automaton.after_token(config, token)
            self._configs.append(config)
            if self._distinct is not None:
                self._places.append(_certain(self._distinct.after(self._places[-1], self._spelled(token))))
                self._configs[-1] = config = self._places[-1].config

    def fill_mask(self, row: Array, budget: int | None = None) -> None:
        """Write the mask of the tokens that may come next.

        Args:
            row: int32[mask_words], overwritten.
            budget: how many tokens, EOS included, may still be generated. Only tokens are allowed after which the
                value can be completed within `budget - 1`; `mask_was_narrowed` then says whether that took
                any token away. With less than `min_tokens_to_complete` nothing may be left.
        """
        automaton, config = self._here()
        self.mask_was_narrowed = False
        if self.is_terminated:
            row[:] = 0
        elif self._distinct is not None:
            self._fill_distinct(self._distinct, row, budget)
        elif budget is None:
            mask = automaton.masks.get(config)
            if mask is None:
                mask = automaton.mask(config)
                self._compiled.keep_within_bounds()
            row[:] = mask.bits
            if mask.ends_key:
                self._forbid_repeated_keys(row, mask)
        else:
            mask = automaton.mask_within(config, budget)
            row[:] = mask.bits
            self.mask_was_narrowed = mask.narrowed
            if mask.ends_key and self._forbid_repeated_keys(row, mask) and not row.any():
                # The key must not end here: one more character, then it may.
                more = DETOUR - 1
                while not row.any() and more < INFINITE:  # a pattern may ask for more
                    mask = automaton.mask_within(config, budget + more)
                    row[:] = mask.bits
                    self._forbid_repeated_keys(row, mask, also_spelled=True)
                    more *= 4
            self._compiled.keep_within_bounds()

    def _fill_distinct(self, distinct: DistinctMemory, row: Array, budget: int | None) -> None:
        """`fill_mask` where more than keys must differ, or keys may run out."""
        automaton, config = self._here()
        mask = automaton.mask(config)
        row[:] = mask.bits
        if budget is None and distinct.is_outside(self._places[-1]):
            self._forbid_repeated_keys(row, mask)
            distinct.forbid_opening(row, self._places[-1])
            return
        distinct.forbid(row, self._places[-1], INFINITE - 1)
        if budget is not None:
            free = row.copy()
            row &= automaton.mask_within(config, budget).bits
            distinct.forbid(row, self._places[-1], budget - 1)
            self.mask_was_narrowed = not np.array_equal(free, row)

    def known_mask(self, budget: int | None = None) -> Mask | None:
        """The mask that `fill_mask` would copy; None where there is something to compute, or nothing follows.

        It is the same object whenever the grammar stands here. Its bits may be read until the matcher gives another.
        """
        automaton, config = self._here()
        known = automaton.masks.get(config)
        if known is None or self.is_terminated or self._distinct is not None:
            return None
        if budget is not None and known.highest >= budget:
            return None
        if known.ends_key and self._keys_at:
            return None
        self.mask_was_narrowed = False
        self._lender = automaton
        return known

    def fill_known_mask(self, row: Array, budget: int | None = None) -> bool:
        """`fill_mask` where it is a mere copy; False, and nothing done, where there is something to compute."""
        if self.is_terminated:
            row[:] = 0
            return True
        known = self.known_mask(budget)
        if known is None:
            return False
        row[:] = known.bits
        return True

    def accept(self, token_id: int) -> bool:
        """Advance by a token. False: it is not allowed here, and nothing has changed."""
        if self.is_terminated:
            return False
        if self._automaton is not self._compiled.automaton:
            self._replay()
        automaton, config = self._automaton, self._configs[-1]
        if token_id in automaton.vocabulary.eos_token_ids:
            if not automaton.is_final(config):
                return False
            self._tokens.append(token_id)
            self.is_terminated = True
            return True
        following = automaton.step(config, token_id)
        if following < 0:
            return False
        ended_key = following >= ENDED_KEY
        following -= ENDED_KEY * ended_key
        if self._distinct is not None:
            place = self._distinct.after(self._places[-1], self._spelled(token_id))
            if place is None or not self._distinct.lives(place, INFINITE - 1):
                return False
            self._places.append(place)
            following = place.config
            if ended_key:
                self._keys_at.append(len(self._tokens))
        elif ended_key:
            if self._may_repeat(token_id) and self._keys_so_far().would_repeat(token_id):
                return False
            self._keys_at.append(len(self._tokens))
        self._configs.append(following)
        self._tokens.append(token_id)
        return True

    def accept_string(self, text: str | bytes) -> bool:
        """Advance by raw bytes, whatever tokens spell them: for tests and tools. All or nothing.

        Raises:
            RuntimeError: tokens were accepted before (bytes and tokens are not mixed in one history).
        """
        if self._tokens:
            raise RuntimeError("accept_string needs a matcher that has not accepted tokens")
        data = text.encode() if isinstance(text, str) else text
        automaton, config = self._here()
        following = automaton.after_bytes(config, data)
        whole = self._prefix + data
        if following == DEAD or (automaton.program.has_other_keys and seen_keys(whole).repeated):
            return False
        if self._distinct is not None:
            place = self._distinct.after(self._places[-1], data)
            if place is None or not self._distinct.lives(place, INFINITE - 1):
                return False
            self._places = [place]
            following = place.config
        self._configs[-1] = following
        self._prefix = whole
        self._keys_at = [-1]
        self._memory = None
        return True

    def _may_repeat(self, token_id: int) -> bool:
        """Whether there is anything that a token which ends a key could repeat."""
        return bool(self._keys_at) or token_id in self._compiled.vocabulary.two_keys

    def _spelled(self, token_id: int) -> bytes:
        return self._compiled.vocabulary.tokens[token_id] or b""

    def _forbid_repeated_keys(self, row: Array, mask: Mask, *, also_spelled: bool = False) -> bool:
        """Take the tokens out of a row that would end a key which its object has already; whether there were any.

        With `also_spelled`, those too that spell such a key without ending it.
        """
        if not mask.ends_key or not (self._keys_at or self._compiled.vocabulary.two_keys):
            return False
        return self._keys_so_far().forbid(row, also_spelled=also_spelled)

    def _keys_so_far(self) -> KeyMemory:
        if self._memory is None:
            self._memory = KeyMemory.take(self._compiled.vocabulary, self._prefix)
        self._memory.update(self._tokens)
        return self._memory

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens.

        Raises:
            ValueError: fewer tokens were accepted.
        """
        if not 0 <= count <= len(self._tokens):
            raise ValueError(f"cannot take back {count} of {len(self._tokens)} tokens")
        if count == 0:
            return
        self._here()
        configs = count - self.is_terminated
        if configs:
            del self._configs[-configs:]
            if self._distinct is not None:
                del self._places[-configs:]
        del self._tokens[-count:]
        while self._keys_at and self._keys_at[-1] >= len(self._tokens):
            self._keys_at.pop()
        if self._memory is not None:
            self._memory.truncate(len(self._tokens))
        self.is_terminated = False

    def copy(self) -> Matcher:
        """An independent cursor at the same place."""
        other = Matcher(self._compiled)
        other._automaton = self._automaton
        other._configs = self._configs.copy()
        other._distinct, other._places = self._distinct, self._places.copy()
        other._tokens = self._tokens.copy()
        other._prefix = self._prefix
        other._keys_at = self._keys_at.copy()
        other.is_terminated = self.is_terminated
        return other

    def reset(self) -> None:
        """Back to the beginning."""
        self._automaton = self._compiled.automaton
        self._configs = [self._automaton.start]
        self._tokens = []
        self._prefix = b""
        self._keys_at = []
        self._memory = None
        self._follow_distinct(self._automaton)
        self.is_terminated = False

    @property
    def is_complete(self) -> bool:
        """Whether what was accepted so far is a whole value, so that EOS is legal now."""
        automaton, config = self._here()
        return not self.is_terminated and automaton.is_final(config)

    @property
    def min_tokens_to_complete(self) -> int:
        """An upper bound of the tokens, EOS included, that completion takes from here; 0 when terminated."""
        automaton, config = self._here()
        if self.is_terminated:
            return 0
        return automaton.cost(config) if self._distinct is None else self._distinct.needed(self._places[-1])

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as the tokenizer would spell them; changes nothing.

        Forced bytes are certain, tokens are not: how a text is split depends on what comes before and after it. So
        it is encoded together with the tokens before it and with each of the few ways in which it can go on, and
        what these have in common is kept; with many ways, what no token could reach beyond the end from.
        """
        if self.is_terminated:
            return []
        automaton, config = self._here()
        text = automaton.forced_bytes(config, FORCED_BYTES)
        if not text:
            return []
        key = (config, *self._tokens[-_CONTEXT_TOKENS:])
        known = automaton.forced_ids.get(key)
        if known is None:
            known = tuple(self._forced_ids(automaton, config, text))
            automaton.remember_forced(key, known)
        return list(known)

    def _forced_ids(self, automaton: Automaton, config: int, text: bytes) -> list[int]:
        """`forced_tokens` of a text that must come; depends on the configuration and the tokens of the context only."""
        ids = self._encoded(text)
        end = automaton.after_bytes(config, text)
        following = automaton.possible_bytes(end)
        if len(following) > FORCED_BRANCHES:
            ids = self._without_open_end(text, ids, following)
        else:
            for byte in following:
                ahead = automaton.after_bytes(end, bytes((byte,)))
                more = bytes((byte,)) + automaton.forced_bytes(ahead, FORCED_AHEAD)
                ids = _shared_start(ids, self._encoded(text + more))
        return self._allowed_start(config, ids)

    def _encoded(self, text: bytes) -> list[int]:
        """The tokens of `text` behind those accepted."""
        vocabulary = self._compiled.vocabulary
        context = self._tokens[-_CONTEXT_TOKENS:]
        ids = vocabulary.encode(b"".join(map(self._spelled, context)) + text)
        return ids[len(context) :] if ids[: len(context)] == context else vocabulary.encode(text)

    def _without_open_end(self, text: bytes, ids: list[int], following: list[int]) -> list[int]:
        """`ids` up to where some token could begin that reaches beyond the end of `text`."""
        vocabulary, position = self._compiled.vocabulary, 0
        places = [0]
        for token in ids:
            position += len(self._spelled(token))
            places.append(position)
        first = places[max(0, len(ids) - _CONTEXT_TOKENS)]
        for start in range(first, len(text)):
            if not set(following).isdisjoint(vocabulary.continuations(text[start:])):
                return ids[: sum(place <= start for place in places) - 1]
        return ids

    def _allowed_start(self, config: int, ids: list[int]) -> list[int]:
        for count, token in enumerate(ids):
            config = self._automaton.after_token(config, token)
            if config < 0:
                return ids[:count]
        return ids


def _certain(place: Place | None) -> Place:
    """The place after what was accepted before."""
    assert place is not None
    return place


def _shared_start(one: list[int], other: list[int]) -> list[int]:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]
