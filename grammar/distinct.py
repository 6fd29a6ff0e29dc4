"""What must not come twice where it could run out: items of unique arrays, and keys whose names can.

Which of them were used is no finite state, so a matcher remembers it (`json_reading.py`), and forbids tokens that
would complete one again, and tokens after which nothing else could be completed. Whether there is a way out is found
by search: only beginnings of what came before have to be followed, since all else is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_reading import BLANKS, KEY, OPEN_ARRAY, SCALAR, START, STRING, Reading, step
from structgen.grammar.ops import CALLED
from structgen.grammar.program import Distinct
from structgen.grammar.repetition import may_repeat
from structgen.grammar.tables import COUNT, INFINITE, LENGTH, PARENT, RETURN_TO, Array
from structgen.grammar.tables import START as FIRST

if TYPE_CHECKING:
    from structgen.grammar.automaton import Automaton
    from structgen.grammar.vocabulary import Vocabulary

FUEL = 4_000  # beginnings of what came before that one search follows
CLOSERS = b',"]}'  # are tried first


class JointTokens(NamedTuple):
    """Tokens that may end one key or item and lead to or into another."""

    quoted: Array  # int64[n]: with a quote, and another or a comma behind it
    listed: Array  # int64[m]: these, and those with a comma behind something


class Place(NamedTuple):
    """Where an output is: in the automaton, and in its own text."""

    config: int
    reading: Reading


class DistinctMemory:
    """Follows one output on one automaton. Places are kept by the matcher; nothing here changes."""

    def __init__(self, automaton: Automaton, distinct: Distinct) -> None:
        self._automaton = automaton
        self._distinct = distinct
        self._depths: dict[int, int] = {}

    @property
    def start(self) -> Place:
        return Place(self._automaton.start, START)

    def after(self, place: Place, text: bytes) -> Place | None:
        """The place after some bytes that the automaton allows; None where something comes again."""
        config, reading = place
        for byte in text:
            following = self._step(config, reading, byte)
            if following is None:
                return None
            config, reading = following
        return Place(config, reading)

    def _step(self, config: int, reading: Reading, byte: int) -> Place | None:
        config = self._automaton.after_byte(config, byte)
        if config < 0:
            return None
        opens = byte == OPEN_ARRAY and reading.mode not in (STRING, KEY) and self._opens_unique(config, reading)
        following = step(reading, byte, opens)
        return None if following is None else Place(config, following)

    def _opens_unique(self, config: int, reading: Reading) -> bool:
        """Whether the array that has just begun is unique: whether a stack says more than the open arrays do."""
        if not self._distinct.unique_arrays:
            return False
        count, level = 0, reading.level
        while level is not None:
            count += level.is_unique
            level = level.below
        return self._depth(config) > count

    def _depth(self, config: int) -> int:
        """In how many unique arrays a configuration is.

        Raises:
            GrammarLimitError: its ways of reading the text do not agree about that.
        """
        known = self._depths.get(config)
        if known is None:
            tables = self._automaton.tables
            start = tables.config[config, FIRST]
            stacks = {int(key) >> 32 for key in tables.elements[start : start + tables.config[config, LENGTH]]}
            depths = {self._unique_below(tables.stack, stack) for stack in stacks}
            if len(depths) > 1:
                raise GrammarLimitError(
                    "an array may be read with uniqueItems or without",
                    hint="say uniqueItems in all alternatives, or tell them apart earlier",
                )
            known = self._depths[config] = depths.pop()
        return known

    def _unique_below(self, stacks: Array, stack: int) -> int:
        count = 0
        while stack:
            row = stacks[stack]
            count += row[COUNT] == CALLED and int(row[RETURN_TO]) in self._distinct.unique_arrays
            stack = int(row[PARENT])
        return count

    def needed(self, place: Place, enough: int = 0) -> int:
        """An upper bound of the tokens, EOS included, that completion takes; INFINITE where there is no way.

        It is the least over all ways out of what came before, and of each the most that is needed along it: so a step
        on the best lowers the bound by one. Once it is known to be at most `enough`, it may be more than the least.
        """
        cost = self._automaton.cost(place.config)
        if not self._at_risk(place.reading):
            return cost
        best, pushed = INFINITE, 0
        heap = [(cost, 0, 0, place)]
        while heap and pushed < FUEL:
            most, steps, _, one = heappop(heap)
            if most >= best or best <= enough:
                break
            steps += 1
            for following in self._following(one):
                value = max(most, steps + self._automaton.cost(following.config))
                if value >= best:
                    continue
                if self._at_risk(following.reading):
                    pushed += 1
                    heappush(heap, (value, steps, pushed, following))
                    continue
                best = value
                if best <= enough:
                    break
        return best

    def _following(self, place: Place) -> Iterator[Place]:
        """The places one byte on, likely ends first."""
        possible = self._automaton.next_bytes(place.config)
        if place.reading.mode not in (STRING, KEY):
            others = {byte for byte in possible if byte not in BLANKS}
            possible = [byte for byte in possible if byte in others or self._says_something(place.config, byte, others)]
        for byte in sorted(possible, key=CLOSERS.find, reverse=True):
            following = self._step(place.config, place.reading, byte)
            if following is not None:
                yield following

    def _says_something(self, config: int, blank: int, others: set[int]) -> bool:
        """Whether a blank takes away something that could come instead; else it leads nowhere."""
        following = self._automaton.after_byte(config, blank)
        return not others or (following >= 0 and not others <= set(self._automaton.next_bytes(following)))

    def _at_risk(self, reading: Reading) -> bool:
        return may_repeat(reading, self._distinct.finite_names)

    def lives(self, place: Place, limit: int) -> bool:
        """Whether completion takes at most `limit` tokens."""
        return not self._at_risk(place.reading) or self.needed(place, limit) <= limit

    def forbid(self, row: Array, place: Place, limit: int) -> bool:
        """Clear the bits of tokens of a mask after which more than `limit` tokens would be needed, or none would do.

        Returns whether any was set.
        """
        vocabulary = self._automaton.vocabulary
        forbidden = []
        mode = place.reading.mode
        joint = _joint_tokens(vocabulary)
        several = joint.quoted if mode in (STRING, KEY) else joint.listed
        bits = row[several >> 5] >> (several & 31) & 1
        for token in several[bits != 0].tolist():
            following = self.after(place, vocabulary.tokens[token] or b"")
            if following is None or not self.lives(following, limit):
                forbidden.append(token)
        if mode not in (STRING, KEY) or self._at_risk(place.reading):
            self._search_tokens(row, place, limit, forbidden)
        for token in forbidden:
            row[token >> 5] &= ~np.int32(np.uint32(1 << (token & 31)).astype(np.int32))
        return bool(forbidden)

    def _search_tokens(self, row: Array, place: Place, limit: int, forbidden: list[int]) -> None:
        """Follow all tokens as long as they begin what came before, or stand between values."""
        trie = self._automaton.vocabulary.trie
        todo: list[tuple[int, int, Place]] = [(0, len(trie.byte), place)]
        while todo:
            node, stop, here = todo.pop()
            while node < stop:
                end, byte = int(trie.end[node]), int(trie.byte[node])
                if self._automaton.after_byte(here.config, byte) < 0:
                    node = end
                    continue
                following = self._step(here.config, here.reading, byte)
                if following is None:
                    forbidden += [token for inner in range(node, end) for token in self._allowed(row, inner)]
                else:
                    risky = self._at_risk(following.reading)
                    if risky:
                        tokens = self._allowed(row, node)
                        if tokens and self.needed(following, limit) > limit:
                            forbidden += tokens
                    if node + 1 < end and (risky or following.reading.mode not in (STRING, KEY, SCALAR)):
                        todo.append((node + 1, end, following))
                node = end

    def _allowed(self, row: Array, node: int) -> list[int]:
        """The tokens of a node of the trie that a mask allows."""
        trie, found = self._automaton.vocabulary.trie, []
        token = int(trie.token[node])
        while token >= 0:
            if row[token >> 5] >> (token & 31) & 1:
                found.append(token)
            token = int(trie.same[token])
        return found


@lru_cache(maxsize=8)
def _joint_tokens(vocabulary: Vocabulary) -> JointTokens:
    quoted, listed = [], []
    for token_id, token in enumerate(vocabulary.tokens):
        _, quote, behind = (token or b"").partition(b'"')
        if quote and (b'"' in behind or b"," in behind):
            quoted.append(token_id)
            listed.append(token_id)
        elif token and b"," in token[1:]:
            listed.append(token_id)
    return JointTokens(np.array(quoted, np.int64), np.array(listed, np.int64))
