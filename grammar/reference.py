"""The slow twin of the configuration automaton and the token masks, in plain Python.

It interprets a `Program` straight from the meaning of its operations: a configuration is a set of
`(state, stack)` pairs, a stack is nested tuples, every token is tried. Nothing is interned, cached or counted.
What the fast path says must be the same; tests compare them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from structgen.grammar.program import LimitField, Op, Program, TextField
from structgen.grammar.reference_distinct import can_complete, comes_twice, remembers
from structgen.grammar.vocabulary import Vocabulary

Stack = tuple[Any, ...]  # () is empty; else (return state, count, stack below)
Pairs = frozenset[tuple[int, Stack]]

# Counts of the frames that OBJECT and CALL push; with n other members, an object's frame counts OPENED - 2 * n.
OPENED, CALLED = -1, -2

_PIECE = re.compile(rb'"((?:[^"\\]|\\.)*)("|\\?\Z)|[{}\[\],]', re.DOTALL)


def repeats_a_key(text: bytes) -> bool:
    """Whether some object in the beginning of a JSON text, finished or not, has a finished key twice."""
    levels: list[set[bytes] | None] = []  # the keys of each open object; None for an array
    expects_key = False
    for piece in _PIECE.finditer(text):
        if piece[1] is not None:
            keys = levels[-1] if expects_key and piece[2] == b'"' else None
            if keys is not None:
                if piece[1] in keys:
                    return True
                keys.add(piece[1])
        elif piece[0] in b"{[":
            levels.append(set() if piece[0] == b"{" else None)
        elif piece[0] in b"}]":
            levels.pop()
        expects_key = piece[1] is None and piece[0] in b"{," and bool(levels) and levels[-1] is not None
    return False


class Reader:
    """A program whose words are in plain lists."""

    def __init__(self, program: Program) -> None:
        self.code: list[list[int]] = program.code.tolist()
        self.edges: list[int] = program.edges.tolist()

    def groups(self, state: int, width: int, skip: int = 0) -> list[tuple[int, ...]]:
        """The `b` groups of edges of a state, behind `skip` others."""
        _, first, count, _ = self.code[state]
        return [tuple(self.edges[i : i + width]) for i in range(first + skip, first + skip + count * width, width)]

    def byte_edges(self, state: int) -> Iterator[tuple[Iterable[int], int]]:
        """`(bytes, next)` of a state that consumes."""
        op, a, b, c = self.code[state]
        if op == Op.BYTE:
            yield (a,), b
        elif op == Op.RANGES:
            for low, high, following in self.groups(state, 3):
                yield range(low, high + 1), following
        elif op == Op.EXCEPT:
            own = {byte: following for byte, following in self.groups(state, 2)}  # noqa: C416
            yield from (((byte,), following) for byte, following in own.items())
            for values, following in self.byte_edges(c):
                yield [byte for byte in values if byte not in own], following

    def text(self, state: int) -> tuple[dict[TextField, int], list[tuple[int, ...]]]:
        """The fields of a TEXT state, and its (body, target) pairs."""
        at = self.code[state][1]
        fields = {one: self.edges[at + one] for one in list(TextField)[: TextField.FIRST]}
        first = at + TextField.FIRST + fields[TextField.LENGTHS]
        stop = first + 2 * fields[TextField.TARGETS]
        return fields, [tuple(self.edges[i : i + 2]) for i in range(first, stop, 2)]

    def ends_text(self, state: int) -> bool:
        """Whether the empty word leads from a TEXT state to its exit."""
        return self.edges[self.code[state][1] + TextField.FIRST] == 0

    def required(self, object_: int) -> list[tuple[int, ...]]:
        return self.groups(object_, 2, skip=2)

    def limits(self, object_: int) -> tuple[int, float, list[tuple[int, ...]]]:
        """The least and the most members of an object, and those that may be chosen freely."""
        at = self.code[object_][3]
        if at == 0:
            return 0, float("inf"), []
        least, most, count = self.edges[at : at + LimitField.FIRST_FILLER]
        first = at + LimitField.FIRST_FILLER
        fillers = [tuple(self.edges[i : i + 2]) for i in range(first, first + 2 * count, 2)]
        return least, float("inf") if most < 0 else most, fillers


class Liveness:
    """Which states can reach the RETURN of their frame with given single bytes and, along literals, given words."""

    def __init__(self, reader: Reader, single: Collection[int], words: Collection[bytes] = ()) -> None:
        self._reader, self._single, self._words = reader, frozenset(single), frozenset(words)
        self._longest = max(map(len, words), default=0)
        self.alive = [False] * len(reader.code)
        changed = True
        while changed:
            changed = False
            for state in reversed(range(len(self.alive))):
                if not self.alive[state] and self._lives(state):
                    self.alive[state] = changed = True

    def _lives(self, state: int) -> bool:
        reader, alive = self._reader, self.alive
        op, a, b, _ = reader.code[state]
        if op == Op.RETURN:
            return True
        if op == Op.SPLIT:
            return any(alive[target] for (target,) in reader.groups(state, 1))
        if op == Op.CALL:
            return alive[a] and alive[b]
        if op == Op.LOOP:
            body, exit_ = reader.edges[a : a + 2]
            return alive[exit_] and (b == 0 or alive[body])
        if op == Op.TEXT:
            return self._text_lives(state, 0)
        if op == Op.OBJECT:
            return alive[reader.edges[a]] and self._members_live(state)
        if op == Op.CHOOSE:
            return any(alive[start] for _, start in reader.groups(state, 2))
        if op in (Op.CLOSE, Op.KEY_END, Op.RESERVE):
            return alive[b]
        steps = reader.byte_edges(state)
        return any(alive[to] and not self._single.isdisjoint(values) for values, to in steps) or self._spelled(state)

    def _text_lives(self, state: int, count: int) -> bool:
        """Whether some number of characters leads from a TEXT state to its exit, with a length that fits."""
        fields, _ = self._reader.text(state)
        least, most = fields[TextField.LEAST], fields[TextField.MOST]
        level, seen = frozenset((state,)), set()
        while level and level not in seen and (most < 0 or count <= most):
            if count >= least:
                if any(self._reader.ends_text(one) for one in level):
                    return self.alive[fields[TextField.EXIT]]
                seen.add(level)
            pairs = [pair for one in level for pair in self._reader.text(one)[1]]
            level = frozenset(target for body, target in pairs if self.alive[body])
            count += 1
        return False

    def _members_live(self, object_: int) -> bool:
        required = self._reader.required(object_)
        after = self._reader.edges[self._reader.code[object_][1] + 1]
        least, _, fillers = self._reader.limits(object_)
        missing = least - len(required)
        if not required and missing <= 0:
            return True
        free = [member for member, start in fillers if self.alive[start]]
        enough = missing <= 0 or -1 in free or len(free) >= missing
        return enough and self.alive[after] and all(self.alive[start] for _, start in required)

    def _spelled(self, state: int) -> bool:
        """Whether a word of several bytes leads along BYTE states to a live one."""
        text = b""
        while self._reader.code[state][0] == Op.BYTE and len(text) < self._longest:
            text += bytes((self._reader.code[state][1],))
            state = self._reader.code[state][2]
            if text in self._words and self.alive[state]:
                return True
        return False

    def pair(self, state: int, stack: Stack) -> bool:
        """Whether a pair can be completed."""
        if not self.alive[state]:
            return False
        while stack:
            ret, count, stack = stack
            if count == CALLED:
                fine = self.alive[ret]
            elif self._reader.code[ret][0] == Op.LOOP:
                _, a, least, _ = self._reader.code[ret]
                body, exit_ = self._reader.edges[a : a + 2]
                fine = self.alive[exit_] and (count + 1 >= least or self.alive[body])
            elif self._reader.code[ret][0] == Op.TEXT:
                fine = self._text_lives(ret, count)
            else:
                fine = count >= 0 or self._members_live(ret)
            if not fine:
                return False
        return True


def _members(stack: Stack) -> tuple[list[int], Stack]:
    """The members seen so far of the object on top of the stack, and its own frame."""
    seen = []
    while stack[1] >= 0:
        seen.append(stack[1])
        stack = stack[2]
    return seen, stack


def _others(frame: Stack) -> int:
    """How many other members the frame of an object has counted."""
    return int(OPENED - frame[1]) // 2


class ReferenceMatcher:
    """Follows one output: `allowed_tokens`, `accept`, `is_complete` mean what they mean for `Matcher`."""

    def __init__(self, program: Program, vocabulary: Vocabulary) -> None:
        self._reader = Reader(program)
        self._vocabulary = vocabulary
        words = {token for token in vocabulary.tokens if token}
        self._possible = Liveness(self._reader, range(256))
        self._spellable = Liveness(self._reader, {word[0] for word in words if len(word) == 1}, words)
        self._has_other_keys = any(word[0] == Op.KEY_END for word in self._reader.code)
        self._pairs = self._closure([(program.start, ())])
        self._text = b""
        self._distinct = program.distinct
        self._distance = program.byte_distance  # only to try likely completions first
        self._unique: frozenset[int] = frozenset()  # where in the text arrays begin whose items must differ
        self.is_terminated = False

    @property
    def is_complete(self) -> bool:
        return not self.is_terminated and any(self._reader.code[state][0] == Op.RETURN for state, _ in self._pairs)

    def allowed_tokens(self) -> set[int]:
        """All tokens that may come next, EOS included."""
        if self.is_terminated:
            return set()
        fitting = {i for i, token in enumerate(self._vocabulary.tokens) if token and self._allows(token)}
        return fitting | (set(self._vocabulary.eos_token_ids) if self.is_complete else set())

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False changes nothing."""
        if token_id in self._vocabulary.eos_token_ids:
            ends = self.is_complete
            self.is_terminated = self.is_terminated or ends
            return ends
        token = self._vocabulary.tokens[token_id] if 0 <= token_id < len(self._vocabulary.tokens) else None
        if token is None or self.is_terminated:
            return False
        if not self._allows(token):
            return False
        self._pairs, self._unique = self._read(self._pairs, self._text, self._unique, token)
        self._text += token
        return True

    def accept_string(self, text: bytes) -> bool:
        """Advance by raw bytes."""
        pairs, unique = self._read(self._pairs, self._text, self._unique, text)
        if not pairs or not self._has_way_out(pairs, self._text + text, unique):
            return False
        self._pairs, self._text, self._unique = pairs, self._text + text, unique
        return True

    def _allows(self, token: bytes) -> bool:
        pairs, unique = self._read(self._pairs, self._text, self._unique, token)
        return self._lives(pairs) and self._has_way_out(pairs, self._text + token, unique)

    def _has_way_out(self, pairs: Pairs, text: bytes, unique: frozenset[int]) -> bool:
        """Whether a text can be completed although some things must not come again."""
        if self._distinct is None or not remembers(text, unique):
            return True

        def steps(state: tuple[Pairs, frozenset[int]], so_far: bytes) -> Iterator[tuple[bytes, Any]]:
            found = {}
            for byte in self._worth_trying(state[0], so_far):
                following = self._read(state[0], so_far, state[1], bytes((byte,)))
                if self._lives(following[0]):
                    found[byte] = following
            others = {byte for byte in found if byte not in b" \t\n\r"}
            for byte, one in found.items():
                # A blank that can be left out leads nowhere.
                if byte in others or not others or not others <= self._worth_trying(one[0], so_far):
                    yield so_far + bytes((byte,)), one

        ends = self._reader.code
        return can_complete(
            (pairs, unique),
            text,
            steps,
            lambda state: min(self._guess(*pair) for pair in state[0]),
            lambda state: any(ends[one][0] == Op.RETURN for one, _ in state[0]),
        )

    def _guess(self, state: int, stack: Stack) -> int:
        """About how many bytes complete a pair."""
        total = int(self._distance[state, 0])
        while stack:
            ret, count, stack = stack
            op, a, least, _ = self._reader.code[ret]
            if count == CALLED:
                total += int(self._distance[ret, 0])
            elif op == Op.LOOP:
                body, exit_ = self._reader.edges[a : a + 2]
                total += int(self._distance[exit_, 0]) + max(least - count - 1, 0) * int(self._distance[body, 0])
        return total

    def _worth_trying(self, pairs: Pairs, text: bytes) -> set[int]:
        """Bytes that may follow; of the many that mean the same, some that are in the text, and one that is not."""
        found: set[int] = set()
        for state, _ in pairs:
            for values, _ in self._reader.byte_edges(state):
                several = list(values)
                new = [byte for byte in several if byte not in text]
                found |= set(several if len(several) < 12 else [b for b in several if b in text] + new[:1])
        return found

    def _lives(self, pairs: Pairs) -> bool:
        return any(self._spellable.pair(state, stack) for state, stack in pairs)

    def _read(self, pairs: Pairs, before: bytes, unique: frozenset[int], text: bytes) -> tuple[Pairs, frozenset[int]]:
        for place, byte in enumerate(text, len(before)):
            outside = self._unique_levels(pairs)
            pairs = self._closure(
                (following, stack)
                for state, stack in pairs
                for values, following in self._reader.byte_edges(state)
                if byte in values
            )
            if byte == ord("[") and self._unique_levels(pairs) > outside:
                unique |= {place}
        if self._distinct is not None:
            fits = bool(pairs) and not comes_twice(before + text, unique)
        else:
            fits = bool(pairs) and not (self._has_other_keys and repeats_a_key(before + text))
        return pairs if fits else frozenset(), unique

    def _unique_levels(self, pairs: Pairs) -> int:
        """In how many arrays with unique items the text is."""
        if self._distinct is None or not pairs:
            return 0
        _, stack = next(iter(pairs))
        count = 0
        while stack:
            count += stack[1] == CALLED and stack[0] in self._distinct.unique_arrays
            stack = stack[2]
        return count

    def _closure(self, pairs: Iterable[tuple[int, Stack]]) -> Pairs:
        """Follow all that consumes nothing; keeps pairs that consume a byte or accept."""
        todo, seen, found = list(pairs), set(), set()
        while todo:
            pair = todo.pop()
            if pair in seen or not self._possible.pair(*pair):
                continue
            seen.add(pair)
            op = self._reader.code[pair[0]][0]
            if op in (Op.BYTE, Op.RANGES, Op.EXCEPT) or (op == Op.RETURN and not pair[1]):
                found.add(pair)
            else:
                todo += self._followed(*pair)
        return frozenset(found)

    def _followed(self, state: int, stack: Stack) -> list[tuple[int, Stack]]:
        reader = self._reader
        op, a, b, most = reader.code[state]
        if op == Op.SPLIT:
            return [(target, stack) for (target,) in reader.groups(state, 1)]
        if op == Op.CALL:
            return [(a, (b, CALLED, stack))]
        if op == Op.RETURN:
            return self._returned(*stack)
        if op == Op.LOOP:
            body, exit_ = reader.edges[a : a + 2]
            again = [] if most == 0 else [(body, (state, 0, stack))]
            return again + ([(exit_, stack)] if b == 0 else [])
        if op in (Op.KEY_END, Op.RESERVE):
            return [(b, stack)]
        if op == Op.TEXT:
            return self._read_on(state, 0, stack)
        if op == Op.OBJECT:
            return [(reader.edges[a], (state, OPENED, stack))]
        if op == Op.CHOOSE:
            return self._chosen(state, stack)
        if op == Op.CLOSE:
            seen, frame = _members(stack)
            enough = len(seen) + _others(frame) >= reader.limits(a)[0]
            return [(b, frame[2])] if enough and {member for member, _ in reader.required(a)} <= set(seen) else []
        return []

    def _returned(self, ret: int, count: int, below: Stack) -> list[tuple[int, Stack]]:
        if count == CALLED:
            return [(ret, below)]
        if self._reader.code[ret][0] == Op.TEXT:
            return self._read_on(ret, count, below)
        _, a, least, most = self._reader.code[ret]
        body, exit_ = self._reader.edges[a : a + 2]
        done = count + 1
        following = [(exit_, below)] if done >= least else []
        if most < 0 or done < most:
            kept = done if most >= 0 else min(done, least)  # an open end needs no counting beyond the least
            following.append((body, (ret, kept, below)))
        return following

    def _read_on(self, state: int, count: int, stack: Stack) -> list[tuple[int, Stack]]:
        """On from a TEXT state after `count` characters."""
        fields, pairs = self._reader.text(state)
        least, most = fields[TextField.LEAST], fields[TextField.MOST]
        ends = count >= least and self._reader.ends_text(state)
        following = [(fields[TextField.EXIT], stack)] if ends else []
        if most < 0 or count < most:
            kept = count + 1 if most >= 0 else min(count + 1, least)
            following += [(body, (target, kept, stack)) for body, target in pairs]
        return following

    def _chosen(self, state: int, stack: Stack) -> list[tuple[int, Stack]]:
        seen, frame = _members(stack)
        required = {member for member, _ in self._reader.required(frame[0])}
        least, most, _ = self._reader.limits(frame[0])
        following = []
        for member, start in self._reader.groups(state, 2):
            total = len(seen) + _others(frame) + 1 + len(required - {*seen, member})
            if member in seen or total > most:
                continue
            now: Stack = frame
            if member < 0 and self._reader.code[frame[0]][3]:
                others = _others(frame) + 1
                now = (frame[0], OPENED - 2 * (others if most < float("inf") else min(others, least)), frame[2])
            for one in sorted([*seen, member] if member >= 0 else seen):
                now = (frame[0], one, now)
            following.append((start, now))
        return following
