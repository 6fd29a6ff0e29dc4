"""Number ranges: their automata, by exact arithmetic on random bounds and texts."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_number import (
    FREE_INTEGER,
    FREE_NUMBER,
    NumberRange,
    is_multiple,
    least_common_multiple,
)
from structgen.grammar.number_automaton import number_dfa

pytestmark = pytest.mark.nojit

PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def some_number(chance: random.Random) -> str:
    whole = str(chance.choice([0, 0, 1, 9, 10, 11, 99, 100, 101, 12345, 10**18, 2**63, 10**25, chance.randrange(1000)]))
    fraction = chance.choice(["", "", ".5", ".0", ".05", ".25", ".99", ".001", f".{chance.randrange(1000):03}"])
    return chance.choice(["", "-"]) + whole + fraction


def near(bound: Decimal, chance: random.Random) -> list[str]:
    """Texts around a bound, also with more digits than it has."""
    step = Decimal(10) ** chance.choice([-3, -2, -1, 0, 1])
    values = [bound, bound + step, bound - step, -bound, bound * 10, bound / 10]
    texts = [format(value, "f") for value in values]
    return [*texts, *(text + (".0" if "." not in text else "0") for text in texts), *(text + "1" for text in texts)]


@pytest.mark.parametrize("seed", range(60))
def test_random_bounds(seed: int) -> None:
    chance = random.Random(seed)
    ends = [Decimal(some_number(chance)) if chance.random() < 0.8 else None for _ in range(2)]
    low, high = ends if None in ends else sorted(one for one in ends if one is not None)
    wanted = NumberRange(
        low, low is not None and chance.random() < 0.5, high, high is not None and chance.random() < 0.5,
        integer=chance.random() < 0.4, whole_fraction=chance.random() < 0.5,
    )  # fmt: skip
    dfa = number_dfa(wanted)
    texts = [some_number(chance) for _ in range(60)] + [
        "-0",
        "-0.0",
        "0",
        "0.0",
        "00",
        "01",
        "1.",
        ".5",
        "-",
        "",
        "-.5",
        "1e5",
        "+1",
    ]
    for bound in (low, high):
        texts += near(bound, chance) if bound is not None else []
    for text in texts:
        plain = PLAIN.fullmatch(text) is not None and text != "-0"
        expected = plain and wanted.admits(Decimal(text))
        if expected and wanted.integer and "." in text:
            expected = wanted.whole_fraction
        assert dfa.matches(text) == expected, (wanted, text)


def test_empty_ranges() -> None:
    assert NumberRange(low=Decimal(2), high=Decimal(1)).is_empty
    assert NumberRange(low=Decimal(1), high=Decimal(1), high_open=True).is_empty
    assert not NumberRange(low=Decimal(1), high=Decimal(1)).is_empty
    between = NumberRange(low=Decimal("0.1"), high=Decimal("0.9"), integer=True)
    assert between.is_empty
    assert number_dfa(between).is_empty
    assert NumberRange().is_free


UNITS = ["1", "2", "3", "5", "7", "10", "100", "1000", "0.1", "0.01", "0.5", "0.25", "1.5", "0.07", "1e-10", "0.0001"]
LARGE_UNITS = ["15", "64", "99", "4E+3", "2.125", "10.24"]  # several of these have too many remainders


def some_numbers(chance: random.Random) -> NumberRange:
    """A set of numbers with every kind of constraint."""
    low, high = (Decimal(chance.randrange(-60, 60)) / chance.choice([1, 1, 2, 4]) for _ in range(2))
    return NumberRange(
        low if chance.random() < 0.4 else None, False, high if chance.random() < 0.4 else None, False,
        integer=chance.random() < 0.3, whole_fraction=chance.random() < 0.5,
        multiple_of=Decimal(chance.choice(UNITS + LARGE_UNITS)) if chance.random() < 0.6 else None,
        not_multiple_of=tuple(sorted({Decimal(one) for one in chance.sample(UNITS, chance.choice([0, 0, 1, 2]))})),
        excluded=frozenset(Decimal(chance.randrange(-20, 40)) / 4 for _ in range(chance.choice([0, 0, 1, 4]))),
    )  # fmt: skip


def spellings(value: Decimal, chance: random.Random) -> list[str]:
    """A number and its neighbours, each also with zeros behind it."""
    values = [value, value + 1, value * 10, -value, value / 2, value + Decimal("0.01")]
    texts = [format(one, "f") for one in values]
    return texts + [text + ("0" if "." in text else ".0") * chance.randrange(1, 3) for text in texts]


def is_spelled(text: str, wanted: NumberRange) -> bool:
    """The slow twin: whether a text is a plain decimal of the set, as its options spell it."""
    if PLAIN.fullmatch(text) is None or text == "-0" or not wanted.admits(Decimal(text)):
        return False
    return not wanted.integer or wanted.whole_fraction or "." not in text


@pytest.mark.parametrize("seed", range(150))
def test_random_multiples(seed: int) -> None:
    chance = random.Random(seed)
    wanted = some_numbers(chance)
    dfa = number_dfa(wanted)
    named = [wanted.low, wanted.high, wanted.modulus, *wanted.not_multiple_of, *wanted.excluded, Decimal(0)]
    texts = [some_number(chance) for _ in range(40)]
    for value in named:
        if value is not None:
            texts += spellings(value, chance) + spellings(value * chance.randrange(200), chance)
    if wanted.modulus is not None:
        texts += [format(wanted.modulus * chance.randrange(-40, 10**5), "f") for _ in range(40)]
    for text in texts:
        assert dfa.matches(text) == is_spelled(text, wanted), (wanted, text)
    assert dfa.is_empty == wanted.is_empty


@pytest.mark.parametrize("seed", range(150))
def test_complement(seed: int) -> None:
    """Every number is in exactly one of: the set, the parts of its complement."""
    chance = random.Random(seed)
    wanted = some_numbers(chance)
    parts = wanted.complement()
    assert not any(part.is_empty for part in parts)
    assert all(one.meet(other).is_empty for i, one in enumerate(parts) for other in parts[:i])
    values = [Decimal(chance.randrange(-400, 400)) / 4 for _ in range(60)] + [Decimal(some_number(chance))]
    values += [one * chance.randrange(-9, 9) for one in (wanted.modulus, *wanted.not_multiple_of) if one is not None]
    for value in values:
        assert wanted.admits(value) + sum(part.admits(value) for part in parts) == 1, (wanted, value)


@pytest.mark.parametrize("seed", range(100))
def test_meet(seed: int) -> None:
    chance = random.Random(seed)
    one, other = some_numbers(chance), some_numbers(chance)
    met = one.meet(other)
    for quarter in range(-280, 281):
        value = Decimal(quarter) / 4
        assert met.admits(value) == (one.admits(value) and other.admits(value)), (one, other, value)


@pytest.mark.parametrize(
    "nothing",
    [
        NumberRange(low=Decimal(1), high=Decimal(4), multiple_of=Decimal(5)),
        NumberRange(low=Decimal(0), low_open=True, high=Decimal("0.1"), high_open=True, multiple_of=Decimal("0.1")),
        NumberRange(multiple_of=Decimal(6), not_multiple_of=(Decimal(3),)),
        NumberRange(integer=True, not_multiple_of=(Decimal("0.5"),)),
        NumberRange(low=Decimal(1), high=Decimal(2), integer=True, excluded=frozenset([Decimal(1), Decimal("2.0")])),
        NumberRange(low=Decimal(3), high=Decimal("3.0"), not_multiple_of=(Decimal(1),)),
        NumberRange(low=Decimal(10**30), high=Decimal(10**30 + 1), multiple_of=Decimal(10**20 + 1)),
    ],
)
def test_nothing_is_left(nothing: NumberRange) -> None:
    assert nothing.is_empty
    assert number_dfa(nothing).is_empty


def test_units() -> None:
    assert least_common_multiple(Decimal("0.5"), Decimal("0.2")) == 1
    assert least_common_multiple(Decimal("1.5"), Decimal("0.25")) == Decimal("1.5")
    assert least_common_multiple(Decimal("1E+3"), Decimal("0.3")) == 3000
    assert is_multiple(Decimal("0.3"), Decimal("0.1"))
    assert not is_multiple(Decimal(10**40 + 1), Decimal(10))


def test_multiples_stay_small() -> None:
    """Powers of ten are counted, not multiplied out; what cannot be kept is a limit, and bounds may help."""
    for unit, states in (("1e-10", 30), ("1e12", 40), ("0.01", 12), ("5", 12), ("65536", 3_000), ("3600", 70)):
        assert len(number_dfa(NumberRange(multiple_of=Decimal(unit))).rows) <= states, unit
    large = Decimal("1000003")
    with pytest.raises(GrammarLimitError, match="1000003"):
        number_dfa(NumberRange(multiple_of=large))
    few = number_dfa(NumberRange(low=Decimal(-5), high=large * 3, multiple_of=large))
    assert [text for text in ("0", "1000003.0", "3000009", "4000012", "5", "-0.0", "1.") if few.matches(text)] == [
        "0",
        "1000003.0",
        "3000009",
        "-0.0",
    ]


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        (FREE_INTEGER, ["0", "-5", "120", "9" * 308], ["-0", "01", "1.0", "9" * 309, "1e5"]),
        (
            FREE_NUMBER,
            ["0", "-0", "-0.0", "1.25", "1e5", "1.5E-300", "9e+307", "0e0"],
            ["01", "1.", "1e", "1e999", "12e5", ".5"],
        ),
    ],
)
def test_free_numbers(pattern: str, accepted: list[str], rejected: list[str]) -> None:
    expression = re.compile(pattern, re.ASCII)
    assert [text for text in [*accepted, *rejected] if expression.fullmatch(text)] == accepted


def test_free_numbers_are_finite_doubles() -> None:
    assert float("9" * 308) < float("inf")
    assert float("9." + "9" * 15 + "e307") < float("inf")
