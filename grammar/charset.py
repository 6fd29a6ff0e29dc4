"""Sets of Unicode code points as sorted inclusive ranges, and their spelling in UTF-8.

A `CharSet` is a tuple of `(low, high)` pairs: sorted, disjoint, never adjacent, so that equal sets are equal
tuples and can be dictionary keys. Surrogates (U+D800 to U+DFFF) are in no set: no valid text holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

CharSet = tuple[tuple[int, int], ...]
ByteRanges = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
EMPTY: CharSet = ()
ANY: CharSet = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
ASCII_DIGIT: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# ECMA-262: WhiteSpace and LineTerminator together.
SPACE: CharSet = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_END: CharSet = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Normalise any inclusive ranges: sorted, merged, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(_without_surrogates(merged))


def _without_surrogates(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if high < 0xD800 or low > 0xDFFF:
            yield low, high
            continue
        if low < 0xD800:
            yield low, 0xD7FF
        if high > 0xDFFF:
            yield 0xE000, high


def singleton(char: str) -> CharSet:
    return charset([(ord(char), ord(char))])


def union(*sets: CharSet) -> CharSet:
    if len(sets) == 1:
        return sets[0]
    return charset(pair for one in sets for pair in one)


def negate(one: CharSet) -> CharSet:
    gaps, start = [], 0
    for low, high in one:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(_without_surrogates(gaps))


def intersect(one: CharSet, other: CharSet) -> CharSet:
    out, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            out.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(one: CharSet, other: CharSet) -> CharSet:
    return intersect(one, negate(other))


def contains(one: CharSet, code_point: int) -> bool:
    return any(low <= code_point <= high for low, high in one)


def partition(sets: Iterable[CharSet]) -> list[CharSet]:
    """The coarsest split of all characters such that every given set is a union of parts."""
    return split(sets)[0]


def split(sets: Iterable[CharSet]) -> tuple[list[CharSet], dict[CharSet, list[int]]]:
    """`partition`, and the parts of each set by number."""
    unique = list(dict.fromkeys(sets))
    # Where sets begin and end, as bits that change; surrogates are cut out.
    changes = {0: 0, 0xD800: 0, 0xE000: 0, MAX_CODE_POINT + 1: 0}
    for index, one in enumerate(unique):
        bit = 1 << index
        for low, high in one:
            changes[low] = changes.get(low, 0) ^ bit
            changes[high + 1] = changes.get(high + 1, 0) ^ bit
    groups: dict[int, list[tuple[int, int]]] = {}
    inside = 0
    for low, after in pairwise(sorted(changes)):
        inside ^= changes[low]
        if low == 0xD800:
            continue
        group = groups.setdefault(inside, [])
        if group and group[-1][1] == low - 1:
            group[-1] = (group[-1][0], after - 1)
        else:
            group.append((low, after - 1))
    members: dict[CharSet, list[int]] = {one: [] for one in unique}
    for number, inside in enumerate(groups):
        for index in bits(inside):
            members[unique[index]].append(number)
    return [tuple(group) for group in groups.values()], members


def bits(mask: int) -> Iterator[int]:
    """The places of the ones, ascending."""
    text = bin(mask)[:1:-1]
    place = text.find("1")
    while place >= 0:
        yield place
        place = text.find("1", place + 1)


_LENGTH_LIMITS = (0x7F, 0x7FF, 0xFFFF, MAX_CODE_POINT)


@lru_cache(maxsize=4096)
def utf8_sequences(one: CharSet) -> tuple[ByteRanges, ...]:
    """Spell a set in UTF-8: each item is a sequence of inclusive byte ranges; together they match exactly the set.

    The classical split: first by encoded length, then wherever a range does not cover whole continuation blocks.
    """
    out: list[ByteRanges] = []
    for low, high in one:
        start = low
        for limit in _LENGTH_LIMITS:
            if start <= limit:
                end = min(high, limit)
                if start <= end:
                    _split_range(start, end, out)
                start = max(start, limit + 1)
            if start > high:
                break
    return tuple(out)


def _split_range(low: int, high: int, out: list[ByteRanges]) -> None:
    todo = [(low, high)]
    while todo:
        low, high = todo.pop()
        cut = _first_cut(low, high)
        if cut is None:
            out.append(tuple(zip(chr(low).encode(), chr(high).encode(), strict=True)))
        else:
            todo += [(cut, high), (low, cut - 1)]


def _first_cut(low: int, high: int) -> int | None:
    """Where to split so that each part is a product of byte ranges; None when it is one already."""
    for bits in (6, 12, 18):
        block = 1 << bits
        if high < 0x80 or (low // block == high // block):
            continue
        if low % block:
            return (low // block + 1) * block
        if (high + 1) % block:
            return high // block * block
    return None
