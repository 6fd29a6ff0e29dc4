"""Algebra of character automata: and, difference, and the lengths of words."""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.char_dfa import MAX_WORK, CharDFA, minimised, refuse_many, trimmed
from structgen.grammar.charset import CharSet
from structgen.grammar.errors import GrammarLimitError


def both(one: CharDFA, other: CharDFA) -> CharDFA:
    """The intersection."""
    if one.is_empty or other.is_empty:
        return CharDFA((), (), frozenset())
    return _product(one, other, difference=False)


def difference(one: CharDFA, other: CharDFA) -> CharDFA:
    """What is in `one` and not in `other`."""
    if one.is_empty or other.is_empty:
        return one
    return _product(one, other, difference=True)


def _product(one: CharDFA, other: CharDFA, *, difference: bool) -> CharDFA:
    """The automaton that runs both; in a difference, `other` may have failed (-1)."""
    pairs = _common_classes(one.classes, other.classes)
    # Each state of one of them is looked up once for all pairs of classes.
    left = [tuple([row[i] for i, _ in pairs]) for row in one.rows]
    right = [tuple([row[j] for _, j in pairs]) for row in other.rows]
    failed = (-1,) * len(pairs)
    numbers, order = {(0, 0): 0}, [(0, 0)]
    rows: list[tuple[int, ...]] = []
    for a, b in order:
        row = []
        for target in zip(left[a], right[b] if b >= 0 else failed, strict=True):
            if target[0] < 0 or (target[1] < 0 and not difference):
                row.append(-1)
                continue
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(order)
                order.append(target)
            row.append(number)
        rows.append(tuple(row))
        refuse_many(len(order), len(pairs))
    accepting = frozenset(
        number for number, (a, b) in enumerate(order) if a in one.accepting and (b in other.accepting) is not difference
    )
    return minimised(trimmed(CharDFA(tuple(pairs.values()), tuple(rows), accepting)))


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


@lru_cache(maxsize=256)
def _common_classes(one: tuple[CharSet, ...], other: tuple[CharSet, ...]) -> dict[tuple[int, int], CharSet]:
    """A partition finer than both, by the class in either."""
    left, right = _intervals(one), _intervals(other)
    parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            parts.setdefault((left[i][2], right[j][2]), []).append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return {pair: tuple(ranges) for pair, ranges in parts.items()}


def _intervals(classes: tuple[CharSet, ...]) -> list[tuple[int, int, int]]:
    return sorted((low, high, index) for index, chars in enumerate(classes) for low, high in chars)
