"""Number ranges: their automata, by exact arithmetic on random bounds and texts."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from structgen.grammar.json_number import FREE_INTEGER, FREE_NUMBER, NumberRange, number_dfa

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
    assert not between.is_empty
    assert number_dfa(between).is_empty
    assert NumberRange().is_free


@pytest.mark.parametrize("seed", range(30))
def test_meet(seed: int) -> None:
    chance = random.Random(seed)

    def some_range() -> NumberRange:
        low, high = (Decimal(chance.randrange(-5, 5)) if chance.random() < 0.7 else None for _ in range(2))
        opened = [chance.random() < 0.5 for _ in range(2)]
        return NumberRange(
            low, low is not None and opened[0], high, high is not None and opened[1], chance.random() < 0.3
        )

    one, other = some_range(), some_range()
    met = one.meet(other)
    for half in range(-14, 15):
        value = Decimal(half) / 2
        assert met.admits(value) == (one.admits(value) and other.admits(value)), (one, other, value)


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
