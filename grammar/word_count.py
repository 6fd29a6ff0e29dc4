"""How many words a character automaton has, and whether they can run out."""

from __future__ import annotations

from structgen.grammar.char_dfa import CharDFA, topological_order
from structgen.grammar.charset import CharSet, intersect

MAX_LENGTH = 64  # up to which words are counted
PLAIN: CharSet = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # characters of one byte that JSON does not escape


def count_words(dfa: CharDFA) -> int | None:
    """How many words there are; None for infinitely many."""
    order = topological_order(dfa.rows)
    if order is None:
        return None
    sizes = [_size(chars) for chars in dfa.classes]
    counts = [int(state in dfa.accepting) for state in range(len(dfa.rows))]
    for state in reversed(order):
        counts[state] += sum(sizes[i] * counts[target] for i, target in enumerate(dfa.rows[state]) if target >= 0)
    return counts[0] if counts else 0


def lengths_of_words(dfa: CharDFA, count: int, *, same: bool) -> int | None:
    """A length up to which there are `count` words of plain characters, or with `same`, so many of that length.

    None where that is more than MAX_LENGTH.
    """
    if dfa.is_empty:
        return None
    sizes = [_size(intersect(chars, PLAIN)) for chars in dfa.classes]
    layer, total = {0: 1}, 0
    for length in range(MAX_LENGTH + 1):
        words = sum(ways for state, ways in layer.items() if state in dfa.accepting)
        total = words if same else total + words
        if total >= count:
            return length
        following: dict[int, int] = {}
        for state, ways in layer.items():
            for index, target in enumerate(dfa.rows[state]):
                if target >= 0 and sizes[index]:
                    following[target] = min(following.get(target, 0) + ways * sizes[index], count)
        layer = following
    return None


def can_run_out(dfa: CharDFA) -> bool:
    """Whether some beginning of a word has only finitely many ends, which could all have been used."""
    # A state without successors ends in a finite set; without one, every state leads into a circle.
    return any(all(target < 0 for target in row) for row in dfa.rows)


def _size(chars: CharSet) -> int:
    return sum(high - low + 1 for low, high in chars)
