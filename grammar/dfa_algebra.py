"""Algebra of character automata: and, difference, and the lengths of words."""

from __future__ import annotations

from functools import lru_cache
from operator import add

import numpy as np
import numpy.typing as npt

from structgen.grammar.char_dfa import MAX_WORK, CharDFA, minimised, refuse_many, trimmed
from structgen.grammar.charset import CharSet
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.tables import INFINITE

Lengths = npt.NDArray[np.int32]

_DEAD = -(1 << 60)  # stays below zero, whatever is added


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
    """The automaton that runs both; in a difference, `other` may have failed.

    A pair of states is one number, the sum of what either contributes, so that a row of pairs is a sum of two rows.
    """
    pairs = _common_classes(one.classes, other.classes)
    width = len(other.rows) + 1  # the last place: failed
    failed = width - 1 if difference else _DEAD
    firsts = [target * width if target >= 0 else _DEAD for target in (*range(len(one.rows)), -1)]
    seconds = [*range(len(other.rows)), failed]
    left = [[firsts[row[i]] for i, _ in pairs] for row in one.rows]
    right = [[seconds[row[j]] for _, j in pairs] for row in other.rows]
    right.append([failed] * len(pairs))
    numbers, order = {0: 0}, [0]
    rows: list[tuple[int, ...]] = []
    for pair in order:
        row = list(map(add, left[pair // width], right[pair % width]))
        for target in dict.fromkeys(row):
            if target not in numbers:
                numbers[target] = len(order) if target >= 0 else -1
                if target >= 0:
                    order.append(target)
        rows.append(tuple([numbers[target] for target in row]))
        refuse_many(len(order), len(pairs))
    accepting = frozenset(
        number
        for number, pair in enumerate(order)
        if pair // width in one.accepting and (pair % width in other.accepting) is not difference
    )
    return minimised(trimmed(CharDFA(tuple(pairs.values()), tuple(rows), accepting)))


def word_lengths(dfa: CharDFA) -> tuple[Lengths, int]:
    """For each state and k, the least length of a word from there that is at least k; INFINITE when there is none.

    Which states have a word of length k is a sequence of sets that ends in a circle; the rows are as long as the
    way into it and once around. Returns int32[states, k] and the length of the circle: beyond the end of its row, an
    entry is the one a whole number of rounds before it, plus those rounds.

    Raises:
        GrammarLimitError: the circle is too long.
    """
    size = len(dfa.rows)
    table = np.array(dfa.rows, np.int32)
    layer = np.zeros(size + 1, np.bool_)  # the last place is that of -1
    layer[list(dfa.accepting)] = True
    layers: list[npt.NDArray[np.bool_]] = []
    places: dict[bytes, int] = {}
    while (key := layer.tobytes()) not in places:
        places[key] = len(layers)
        layers.append(layer[:size])
        if len(layers) * size > MAX_WORK:
            raise GrammarLimitError(
                "the lengths of the texts that match are too irregular to be limited",
                hint="drop minLength or maxLength",
            )
        layer = np.append(layer[table].any(axis=1), False)
    count, period = len(layers), len(layers) - places[key]
    lengths = np.empty((size, count), np.int32)
    following = np.full(size, INFINITE, np.int32)
    for k in range(count - 1, count - 1 - period, -1):  # in the circle, the next length may lie one round ahead
        following[layers[k]] = k + period
    for k in range(count - 1, -1, -1):
        following[layers[k]] = k
        lengths[:, k] = following
    return lengths, period


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
