"""What must not come twice where it could run out: items of unique arrays, and keys whose names can.

Which of them were used is no finite state, so a matcher remembers it (`json_reading.py`), and forbids tokens that
would complete one again, and tokens after which nothing else could be completed. Whether there is a way out is found
by search: only beginnings of what came before have to be followed, since all else is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from structgen.grammar.json_reading import (
    BACKSLASH,
    BLANKS,
    COMMA,
    KEY,
    MEMBER,
    OPEN_ARRAY,
    QUOTE,
    SCALAR,
    START,
    STRING,
    VALUE,
    Reading,
    ends_in_escape,
    letters_of,
    step,
    unlike,
    with_fresh_text,
)
from structgen.grammar.ops import CALLED
from structgen.grammar.program import Distinct
from structgen.grammar.repetition import may_repeat
from structgen.grammar.tables import COUNT, DEAD, INFINITE, LENGTH, PARENT, RETURN_TO, Array
from structgen.grammar.tables import START as FIRST
from structgen.grammar.token_trie import TokenTrie

if TYPE_CHECKING:
    from structgen.grammar.automaton import Automaton
    from structgen.grammar.vocabulary import Vocabulary

UNLIMITED = INFINITE - 1  # a limit on tokens
FUEL = 4_000  # beginnings of what came before that one search follows
CLOSERS = b',"]}'  # are tried first
_ALL_BYTES = np.ones(256, np.bool_)


class JointTokens(NamedTuple):
    """Tokens that may end one key or item and lead to or into another."""

    several: Array  # int64[n]: with three quotes or more
    quoted: Array  # int64[n]: with a quote, and another or a comma behind it
    listed: Array  # int64[n]: these, and those with a comma behind something
    opening: Array  # int64[n]: with an opening bracket, and a comma behind it


class Place(NamedTuple):
    """Where an output is: in the automaton, and in its own text."""

    config: int
    reading: Reading


class DistinctMemory:
    """Follows one output on one automaton. Places are kept by the matcher; nothing here changes."""

    def __init__(self, automaton: Automaton, distinct: Distinct) -> None:
        self._automaton = automaton
        self._distinct = distinct
        self._known_frames: dict[int, dict[int, frozenset[int]]] = {}
        self._bytes: dict[int, list[int]] = {}
        self._blanks: dict[tuple[int, int], bool] = {}

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
        after = self._automaton.after_byte(config, byte)
        if after < 0:
            return None
        if byte == OPEN_ARRAY and reading.mode not in (STRING, KEY):
            frames = self._new_frames(config, after)
            is_free = all(self._return_of(frame) in self._distinct.free_arrays for frame in frames)
            following = step(reading, byte, frames, is_free)
        else:
            following = step(reading, byte)
        if following is None:
            return self._without_unique(config, reading, byte)
        return Place(after, following)

    def _without_unique(self, config: int, reading: Reading, byte: int) -> Place | None:
        """On where an item has come again, for those ways of reading the text by which it may."""
        for frames, changed in unlike(reading):
            following = step(changed, byte)
            if following is not None:
                config = self._without_frames(config, frames)
                after = self._automaton.after_byte(config, byte) if config >= 0 else DEAD
                return Place(after, following) if after >= 0 else None
        return None

    def _without_frames(self, config: int, frames: frozenset[int]) -> int:
        """The configuration of those pairs that have none of some frames on their stacks; DEAD when none is left."""
        found = [stack for stack, nodes in self._frames(config).items() if nodes.isdisjoint(frames)]
        return self._automaton.with_stacks(config, found) if found else DEAD

    def _new_frames(self, before: int, after: int) -> frozenset[int]:
        """The frames of unique arrays that a byte has pushed."""
        if not self._distinct.unique_arrays:
            return frozenset()
        old: set[int] = set().union(*self._frames(before).values())
        return frozenset(max(nodes) for nodes in self._frames(after).values() if nodes and max(nodes) not in old)

    def _frames(self, config: int) -> dict[int, frozenset[int]]:
        """The stacks of a configuration, each with those of its frames that tell unique arrays."""
        known = self._known_frames.get(config)
        if known is None:
            tables = self._automaton.tables
            start = tables.config[config, FIRST]
            stacks = {int(key) >> 32 for key in tables.elements[start : start + tables.config[config, LENGTH]]}
            known = self._known_frames[config] = {stack: self._frames_below(stack) for stack in stacks}
        return known

    def _frames_below(self, stack: int) -> frozenset[int]:
        rows, found = self._automaton.tables.stack, []
        while stack:
            if rows[stack, COUNT] == CALLED and self._return_of(stack) in self._distinct.unique_arrays:
                found.append(stack)
            stack = int(rows[stack, PARENT])
        return frozenset(found)

    def _return_of(self, stack: int) -> int:
        return int(self._automaton.tables.stack[stack, RETURN_TO])

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
        in_text = place.reading.mode in (STRING, KEY)
        for byte in self._next_bytes(place.config):
            if byte in BLANKS and not in_text and not self._says_something(place.config, byte):
                continue
            following = self._step(place.config, place.reading, byte)
            if following is not None:
                yield following

    def _next_bytes(self, config: int) -> list[int]:
        """The bytes that might follow, likely ends first."""
        known = self._bytes.get(config)
        if known is None:
            known = self._bytes[config] = sorted(self._automaton.next_bytes(config), key=CLOSERS.find, reverse=True)
        return known

    def _says_something(self, config: int, blank: int) -> bool:
        """Whether a blank takes away something that could come instead, or must come; else it leads nowhere."""
        known = self._blanks.get((config, blank))
        if known is None:
            others = set(self._next_bytes(config)) - BLANKS
            following = self._automaton.after_byte(config, blank)
            known = not others or (following >= 0 and not others <= set(self._next_bytes(following)))
            self._blanks[config, blank] = known
        return known

    def _at_risk(self, reading: Reading) -> bool:
        return may_repeat(reading, self._distinct.finite_names)

    def lives(self, place: Place, limit: int) -> bool:
        """Whether completion takes at most `limit` tokens."""
        if self._automaton.cost(place.config) > limit:
            return False
        if limit >= UNLIMITED and self._is_free(place.reading) and self._has_choice(place):
            return True
        return not self._at_risk(place.reading) or self.needed(place, limit) <= limit

    def _is_free(self, reading: Reading) -> bool:
        """Whether nothing can run out: neither names, nor the items of the open arrays that are unique."""
        level = reading.level
        while level is not None and level.unique != 1:
            level = level.below
        return level is None and not self._distinct.finite_names

    def _has_choice(self, place: Place) -> bool:
        """Whether there are plainly ways on where nothing can run out: before a value, or within a free text."""
        mode = place.reading.mode
        if mode not in (STRING, KEY):
            return mode in (VALUE, MEMBER) and (place.reading.level is None or place.reading.level.unique > 0)
        return self._is_plain(place.config)

    def _is_plain(self, config: int) -> bool:
        """Whether plain text changes nothing."""
        return all(self._automaton.after_byte(config, byte) == config for byte in b"a 0~")

    def is_outside(self, place: Place) -> bool:
        """Whether nothing but keys must not come again here, and they cannot run out."""
        level = place.reading.level
        return not self._distinct.finite_names and (level is None or not level.is_kept)

    def forbid_opening(self, row: Array, place: Place) -> None:
        """As `forbid`, where a place is outside: tokens that begin an array and repeat an item."""
        forbidden = self._failing(row, _joint_tokens(self._automaton.vocabulary).opening, place, UNLIMITED)
        _clear(row, forbidden)

    def forbid(self, row: Array, place: Place, limit: int) -> bool:
        """Clear the bits of tokens of a mask after which more than `limit` tokens would be needed, or none would do.

        Returns whether any was set.
        """
        in_text = place.reading.mode in (STRING, KEY)
        joint = _joint_tokens(self._automaton.vocabulary)
        forbidden: list[int] = []
        if not in_text:
            forbidden += self._failing(row, joint.listed, place, limit)
        elif limit >= UNLIMITED and self._is_free(place.reading):
            forbidden += self._failing(row, joint.several, place, limit)
        elif self._is_plain(place.config):
            forbidden += self._failing(row, joint.several, place, limit)
            self._search_exits(place, limit, forbidden)
        else:
            forbidden += self._failing(row, joint.quoted, place, limit)
        if not in_text or self._at_risk(place.reading):
            trie = self._automaton.vocabulary.trie
            self._search(trie, place, limit, lambda node: forbidden.extend(self._allowed(row, node)))
        return _clear(row, forbidden)

    def _failing(self, row: Array, tokens: Array, place: Place, limit: int) -> list[int]:
        """Those of some tokens that a mask allows and this forbids."""
        spelled, failing = self._automaton.vocabulary.tokens, []
        for token in tokens[(row[tokens >> 5] >> (tokens & 31) & 1) != 0].tolist():
            following = self.after(place, spelled[token] or b"")
            if following is None or not self.lives(following, limit):
                failing.append(token)
        return failing

    def _search_exits(self, place: Place, limit: int, forbidden: list[int]) -> None:
        """Tokens that end a text which is not one that came before, and go on: by what stands behind the quote."""
        config = self._automaton.after_byte(place.config, QUOTE)
        if config < 0:
            return
        plain = self._automaton.vocabulary.plain_text
        behind = Place(config, with_fresh_text(place.reading))

        def forbid_group(node: int) -> None:
            group = int(plain.exits.token[node])
            if group >= 0:
                forbidden.extend(plain.group_tokens[plain.group_start[group] : plain.group_start[group + 1]].tolist())

        if not self.lives(behind, limit):
            forbid_group_0 = plain.group_tokens[: plain.group_start[1]]
            forbidden.extend(forbid_group_0.tolist())
        self._search(plain.exits, behind, limit, forbid_group)

    def _search(self, trie: TokenTrie, place: Place, limit: int, forbid: Callable[[int], None]) -> None:
        """Follow a trie as long as it begins what came before, or stands between values; `forbid` is given nodes."""
        # With each node, the configuration after the bytes before it if nothing is taken out: what the mask goes by.
        todo = [(node, place, place.config) for node in self._first_nodes(trie, place)]
        while todo:
            node, here, config = todo.pop()
            byte, end = int(trie.byte[node]), int(trie.end[node])
            config = self._automaton.after_byte(config, byte)
            if config < 0:
                continue
            following = self._step(here.config, here.reading, byte)
            if following is None:
                for inner in range(node, end):
                    forbid(inner)
                continue
            in_text = following.reading.mode in (STRING, KEY)
            risky = following.config != config or self._at_risk(following.reading)
            if (
                risky
                and trie.token[node] >= 0
                and not (self._is_idle(here, byte, following, limit) or self.lives(following, limit))
            ):
                forbid(node)
            if risky or (not in_text and following.reading.mode != SCALAR):
                is_narrow = in_text and node + 1 < end and following.config == config
                letters = _letters_of(following.reading) if is_narrow else _ALL_BYTES
                node += 1
                while node < end:
                    if letters[trie.byte[node]]:
                        todo.append((node, following, config))
                    node = int(trie.end[node])

    def _is_idle(self, here: Place, byte: int, following: Place, limit: int) -> bool:
        """Whether a blank has changed nothing where tokens do not count: there is a way on as there was before."""
        if limit < UNLIMITED or following.reading is not here.reading:
            return False
        return not self._says_something(here.config, byte)

    def _first_nodes(self, trie: TokenTrie, place: Place) -> list[int]:
        """The nodes of first bytes that may come, and may matter."""
        row = self._automaton.tables.transitions[place.config] != DEAD
        if place.reading.mode in (STRING, KEY):
            row = row & _letters_of(place.reading)
        return [node for node in trie.root[row].tolist() if node >= 0]

    def _allowed(self, row: Array, node: int) -> list[int]:
        """The tokens of a node of the trie that a mask allows."""
        trie, found = self._automaton.vocabulary.trie, []
        token = int(trie.token[node])
        while token >= 0:
            if row[token >> 5] >> (token & 31) & 1:
                found.append(token)
            token = int(trie.same[token])
        return found


def _letters_of(reading: Reading) -> Array:
    """bool[256]: bytes that may spell what came before, escapes included."""
    if ends_in_escape(reading.partial) or b"\\u" in reading.partial[-6:]:
        return _ALL_BYTES
    letters = np.zeros(256, np.bool_)
    letters[[QUOTE, BACKSLASH]] = True
    level = reading.level
    while level is not None:
        for key in level.keys:
            letters[list(key)] = True
        for value in level.values if level.unique else ():
            letters[list(letters_of(value))] = True
        level = level.below
    return letters


def _clear(row: Array, tokens: list[int]) -> bool:
    """Clear bits of a mask; whether there were any to clear."""
    for token in tokens:
        row[token >> 5] &= ~np.int32(np.uint32(1 << (token & 31)).astype(np.int32))
    return bool(tokens)


@lru_cache(maxsize=8)
def _joint_tokens(vocabulary: Vocabulary) -> JointTokens:
    several, quoted, listed, opening = [], [], [], []
    blob, starts = vocabulary.token_bytes
    places = np.flatnonzero((blob == QUOTE) | (blob == COMMA))
    for token_id in np.unique(np.searchsorted(starts, places, side="right") - 1).tolist():
        token = vocabulary.tokens[token_id] or b""
        quotes, (_, _, behind) = token.count(b'"'), token.partition(b'"')
        if quotes >= 3:
            several.append(token_id)
        if quotes >= 2 or (quotes and b"," in behind):
            quoted.append(token_id)
        if quotes >= 2 or b"," in token[1:]:
            listed.append(token_id)
        if b"," in token.partition(b"[")[2]:
            opening.append(token_id)
    return JointTokens(*(np.array(ids, np.int64) for ids in (several, quoted, listed, opening)))
