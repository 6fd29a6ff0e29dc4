"""Algebra of character automata: and, difference, and the lengths of words."""

from __future__ import annotations

from structgen.grammar.char_dfa import MAX_WORK, CharDFA, explore
from structgen.grammar.charset import CharSet, intersect
from structgen.grammar.errors import GrammarLimitError


def both(one: CharDFA, other: CharDFA) -> CharDFA:
    """The intersection."""
    if one.is_empty or other.is_empty:
        return CharDFA((), (), frozenset())
    classes, left, right = _common_classes(one, other)

    def step(state: tuple[int, int], index: int) -> tuple[int, int] | None:
        a, b = one.rows[state[0]][left[index]], other.rows[state[1]][right[index]]
        return (a, b) if a >= 0 and b >= 0 else None

    return explore((0, 0), classes, step, lambda s: s[0] in one.accepting and s[1] in other.accepting)


def difference(one: CharDFA, other: CharDFA) -> CharDFA:
    """What is in `one` and not in `other`."""
    if one.is_empty or other.is_empty:
        return one
    classes, left, right = _common_classes(one, other)

    def step(state: tuple[int, int], index: int) -> tuple[int, int] | None:
        a = one.rows[state[0]][left[index]]
        b = other.rows[state[1]][right[index]] if state[1] >= 0 else -1
        return (a, b) if a >= 0 else None

    return explore((0, 0), classes, step, lambda s: s[0] in one.accepting and s[1] not in other.accepting)


def word_lengths(dfa: CharDFA) -> tuple[list[list[int | None]], int]:
    """For each state and k, the least length of a word from there that is at least k; None when there is none.

    Which states have a word of length k is a sequence of sets that ends in a circle; the rows are as long as the
    way into it and once around. Returns the rows and the length of the circle: beyond the end of its row, an entry
    is the one a whole number of rounds before it, plus those rounds.

    Raises:
        GrammarLimitError: the circle is too long.
    """
    successors = [sum(1 << target for target in {t for t in row if t >= 0}) for row in dfa.rows]
    layers: list[int] = []
    places: dict[int, int] = {}
    layer = sum(1 << state for state in dfa.accepting)
    while layer not in places:
        places[layer] = len(layers)
        layers.append(layer)
        if len(layers) * len(dfa.rows) > MAX_WORK:
            raise GrammarLimitError(
                "the lengths of the texts that match are too irregular to be limited",
                hint="drop minLength or maxLength",
            )
        layer = sum(1 << state for state, mask in enumerate(successors) if mask & layer)
    count, period = len(layers), len(layers) - places[layer]
    rows: list[list[int | None]] = []
    for state in range(len(dfa.rows)):
        row: list[int | None] = [None] * count
        # In the circle, the next length may lie one round ahead.
        following = next((k + period for k in range(count - period, count) if layers[k] >> state & 1), None)
        for k in range(count - 1, -1, -1):
            if layers[k] >> state & 1:
                following = k
            row[k] = following
        rows.append(row)
    return rows, period


def _common_classes(one: CharDFA, other: CharDFA) -> tuple[tuple[CharSet, ...], list[int], list[int]]:
    """A partition finer than both, and for each part its class in either."""
    classes, left, right = [], [], []
    for i, first in enumerate(one.classes):
        for j, second in enumerate(other.classes):
            part = intersect(first, second)
            if part:
                classes.append(part)
                left.append(i)
                right.append(j)
    return tuple(classes), left, right
