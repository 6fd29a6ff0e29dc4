"""The slow twin of `distinct.py`: what comes twice is found by parsing the whole text, ways out by trying them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from heapq import heappop, heappush
from typing import Any

TRIES = 200_000  # of one search for a completion
LONGEST = 80  # completions are tried up to this many bytes
_NUMBER = b"+-.0123456789eE"
_BLANKS = b" \t\n\r"


class Repeated(Exception):
    """A key or a unique item has come twice."""


class _Parser:
    """Reads the beginning of a JSON text."""

    def __init__(self, text: bytes, unique: frozenset[int]) -> None:
        self.text, self.unique = text, unique
        self.has_memory = False  # some open container has something that must not come again

    def value(self, at: int) -> tuple[Any, int] | None:
        """The value that begins at a place, or behind blanks, and where it ends; None where the text ends before it."""
        at = self.blanks(at)
        first = self.text[at : at + 1]
        if first == b"{":
            return self.members(at)
        if first == b"[":
            return self.items(at)
        if first == b'"':
            return self.string(at)
        stop = at
        while stop < len(self.text) and self.text[stop] in _NUMBER + b"truefalsn":
            stop += 1
        word = self.text[at:stop]
        if stop == len(self.text):
            return None
        return (("word", word) if word.isalpha() else ("number", Decimal(word.decode()))), stop

    def string(self, at: int) -> tuple[Any, int] | None:
        stop = at + 1
        while stop < len(self.text) and self.text[stop] != 0x22:
            stop += 2 if self.text[stop] == 0x5C else 1
        if stop >= len(self.text):
            return None
        return ("text", json.loads(self.text[at : stop + 1])), stop + 1

    def blanks(self, at: int) -> int:
        while at < len(self.text) and self.text[at] in _BLANKS:
            at += 1
        return at

    def items(self, at: int) -> tuple[Any, int] | None:
        found: list[Any] = []
        is_unique = at in self.unique
        at = self.blanks(at + 1)
        while self.text[at : at + 1] != b"]":
            one = self.value(at)
            if one is None:
                self.has_memory = self.has_memory or (is_unique and bool(found))
                return None
            if is_unique and one[0] in found:
                raise Repeated
            found.append(one[0])
            at = self.blanks(one[1])
            at = self.blanks(at + 1) if self.text[at : at + 1] == b"," else at
            if at >= len(self.text):
                self.has_memory = self.has_memory or is_unique
                return None
        return ("array", tuple(found)), at + 1

    def members(self, at: int) -> tuple[Any, int] | None:
        found: dict[bytes, Any] = {}
        at = self.blanks(at + 1)
        while self.text[at : at + 1] != b"}":
            key = self.string(at)
            if key is None:
                self.has_memory = self.has_memory or bool(found)
                return None
            name = self.text[at : key[1]]
            if name in found:
                raise Repeated
            found[name] = None
            at = self.blanks(self.blanks(key[1]) + 1)
            one = self.value(at) if at < len(self.text) else None
            if one is None:
                self.has_memory = True
                return None
            found[name] = one[0]
            at = self.blanks(one[1])
            at = self.blanks(at + 1) if self.text[at : at + 1] == b"," else at
            if at >= len(self.text):
                self.has_memory = True
                return None
        return ("object", frozenset(found.items())), at + 1


def comes_twice(text: bytes, unique: frozenset[int]) -> bool:
    """Whether a key of an object, or an item of an array that begins at one of some places, has come twice."""
    try:
        _Parser(text, unique).value(0)
    except Repeated:
        return True
    return False


def remembers(text: bytes, unique: frozenset[int]) -> bool:
    """Whether something in an open container must not come again. Nothing has come twice."""
    parser = _Parser(text, unique)
    parser.value(0)
    return parser.has_memory


State = Any
Steps = Callable[[State, bytes], Iterator[tuple[bytes, State]]]


def can_complete(
    start: State, text: bytes, steps: Steps, distance: Callable[[State], int], is_complete: Callable[[State], bool]
) -> bool:
    """Whether some text completes a beginning, by trying them, first those that seem to need the least.

    `distance` is a guess; it only says what is tried first.
    """
    heap, tries = [(distance(start), 0, text, start)], 0
    while heap:
        _, _, so_far, state = heappop(heap)
        tries += 1
        if tries > TRIES:
            raise AssertionError(f"no completion of {text!r} among {TRIES} tried")
        if is_complete(state):
            return True
        if len(so_far) < len(text) + LONGEST:
            for longer, following in steps(state, so_far):
                heappush(heap, (distance(following), -tries, longer, following))
    return False
