"""Character sets, their spelling in UTF-8, Unicode properties."""

from __future__ import annotations

import random

import pytest

from structgen.grammar.charset import (
    ANY,
    EMPTY,
    MAX_CODE_POINT,
    CharSet,
    charset,
    contains,
    intersect,
    negate,
    partition,
    singleton,
    subtract,
    union,
    utf8_sequences,
)
from structgen.grammar.unicode_property import unicode_property

pytestmark = pytest.mark.nojit

EDGES = [
    0,
    1,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0x1000,
    0xD7FF,
    0xE000,
    0xFFFF,
    0x10000,
    0x3FFFF,
    0x40000,
    MAX_CODE_POINT,
]


def some_set(chance: random.Random) -> CharSet:
    ends = [chance.choice(EDGES) + chance.choice([-1, 0, 0, 1, 5]) for _ in range(2 * chance.randrange(4))]
    ends = [min(max(end, 0), MAX_CODE_POINT) for end in ends]
    return charset(zip(ends[::2], ends[1::2], strict=True))


def probes(*sets: CharSet) -> list[int]:
    near = {end + step for one in sets for pair in one for end in pair for step in (-1, 0, 1)} | set(EDGES)
    return sorted(one for one in near if 0 <= one <= MAX_CODE_POINT and not 0xD800 <= one <= 0xDFFF)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], ()),
        ([(5, 3)], ()),
        ([(3, 5), (6, 9)], ((3, 9),)),
        ([(6, 9), (3, 7), (20, 20)], ((3, 9), (20, 20))),
        ([(0xD000, 0xE100)], ((0xD000, 0xD7FF), (0xE000, 0xE100))),
        ([(0xD800, 0xDFFF)], ()),
        ([(0, MAX_CODE_POINT)], ANY),
    ],
)
def test_normal_form(ranges: list[tuple[int, int]], expected: CharSet) -> None:
    assert charset(ranges) == expected


@pytest.mark.parametrize("seed", range(40))
def test_algebra(seed: int) -> None:
    chance = random.Random(seed)
    one, other = some_set(chance), some_set(chance)
    results = {"or": union(one, other), "and": intersect(one, other), "not": negate(one), "minus": subtract(one, other)}
    for code in probes(one, other):
        a, b = contains(one, code), contains(other, code)
        expected = {"or": a or b, "and": a and b, "not": not a, "minus": a and not b}
        assert {name: contains(result, code) for name, result in results.items()} == expected, code
    assert all(charset(result) == result for result in results.values())
    assert negate(negate(one)) == one


def test_small_sets() -> None:
    assert singleton("é") == ((0xE9, 0xE9),)
    assert union() == EMPTY
    assert union(ANY) == ANY
    assert negate(EMPTY) == ANY
    assert negate(ANY) == EMPTY


@pytest.mark.parametrize("seed", range(20))
def test_partition(seed: int) -> None:
    chance = random.Random(seed)
    sets = [some_set(chance) for _ in range(4)]
    parts = partition(sets)
    assert union(*parts) == ANY
    signatures = []
    for part in parts:
        inside = [one for one in sets if intersect(part, one)]
        assert all(subtract(part, one) == EMPTY for one in inside), "a part lies in a set or outside of it"
        signatures.append(tuple(map(id, inside)))
    assert len({(tuple(sets[i] for i, one in enumerate(sets) if intersect(part, one))) for part in parts}) == len(parts)


@pytest.mark.parametrize("seed", range(40))
def test_utf8(seed: int) -> None:
    one = some_set(random.Random(seed))
    sequences = utf8_sequences(one)
    for code in probes(one):
        spelled = chr(code).encode()
        fitting = [
            sequence
            for sequence in sequences
            if len(sequence) == len(spelled)
            and all(low <= byte <= high for (low, high), byte in zip(sequence, spelled, strict=True))
        ]
        assert len(fitting) == contains(one, code), hex(code)


def test_utf8_never_spells_what_is_not_utf8() -> None:
    for sequence in utf8_sequences(ANY):
        for end in (0, 1):
            bytes(pair[end] for pair in sequence).decode()


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("L", "aéж漢", "1 _"),
        ("Lu", "AÉЖ", "aéж漢"),
        ("Nd", "0٣", "a½"),
        ("Script=Greek", "αΩ", "aж"),
        ("Emoji", "😀", "a"),
        ("White_Space", " \u00a0\u2029", "x"),
    ],
)
def test_properties(name: str, inside: str, outside: str) -> None:
    chars = unicode_property(name)
    assert chars is not None
    assert all(contains(chars, ord(char)) for char in inside)
    assert not any(contains(chars, ord(char)) for char in outside)


@pytest.mark.parametrize("name", ["", "Nope", "Script=", "L}x{L", "L|a", "Script=Nope", "."])
def test_unknown_properties(name: str) -> None:
    assert unicode_property(name) is None
