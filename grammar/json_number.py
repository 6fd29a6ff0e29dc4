"""Sets of JSON numbers: bounds, multiples, and numbers taken out; all of them exact decimals of any size.

Numbers with any such constraint are written without an exponent (with free exponents, bounds are not regular);
`number_automaton.py` makes automata of their spellings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from math import ceil, floor, lcm

# Free numbers are bounded in digits, so that a model that repeats itself ends, and no reader overflows.
FREE_INTEGER = r"0|-?[1-9]\d{0,307}"
_FRACTION = r"(?:\.\d{1,307})?"
_EXPONENT = r"[eE](?:[+-]?0?\d\d?|\+?[12]\d\d|\+?30[0-7]|-[123]\d\d)"
FREE_NUMBER = rf"-?(?:0|[1-9]\d{{0,307}}){_FRACTION}|-?(?:0|[1-9]){_FRACTION}{_EXPONENT}"

ONE = Decimal(1)
MAX_TRIED = 20_000  # multiples looked at in search of one that is not taken out


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Which numbers: None, or nothing in the list, where there is no such constraint.

    Attributes:
        integer: integral numbers, spelled as integers.
        whole_fraction: integers may also be written 1.0.
        multiple_of: above zero. Without `integer`, an integral multiple may be written 1.0.
        not_multiple_of: each above zero, sorted; no multiple of any of them. 1 stands for "not integral".
        excluded: these values, however they are spelled.
    """

    low: Decimal | None = None
    low_open: bool = False
    high: Decimal | None = None
    high_open: bool = False
    integer: bool = False
    whole_fraction: bool = False
    multiple_of: Decimal | None = None
    not_multiple_of: tuple[Decimal, ...] = ()
    excluded: frozenset[Decimal] = frozenset()

    @property
    def is_free(self) -> bool:
        """Whether nothing is asked but, perhaps, that numbers are integers."""
        return (
            self.low is None
            and self.high is None
            and self.multiple_of is None
            and not self.not_multiple_of
            and not self.excluded
        )

    @property
    def modulus(self) -> Decimal | None:
        """What the numbers are multiples of, `integer` included."""
        if not self.integer:
            return self.multiple_of
        return ONE if self.multiple_of is None else least_common_multiple(self.multiple_of, ONE)

    @property
    def is_empty(self) -> bool:
        """Whether there is no such number. (With very many numbers taken out, it may be missed that there is none.)"""
        if self.low is not None and self.high is not None:
            if self.low > self.high:
                return True
            if self.low == self.high:
                return self.low_open or self.high_open or not self.admits(self.low)
        modulus = self.modulus
        if modulus is None:
            return False  # an interval holds more numbers than can be taken out
        first, last = self._multipliers(Fraction(modulus))
        if first is not None and last is not None and first > last:
            return True
        if not self.not_multiple_of and not self.excluded:
            return False
        if any(is_multiple(modulus, one) for one in self.not_multiple_of):
            return True
        tried = islice(_count(first, last), MAX_TRIED)
        return all(not self.admits(_times(modulus, factor)) for factor in tried) and (
            first is not None and last is not None and last - first < MAX_TRIED
        )

    def listed(self, most: int) -> list[Decimal] | None:
        """The numbers, ascending, where they are multiples between two bounds and at most `most` before some are
        taken out; else None."""
        modulus = self.modulus
        if modulus is None:
            return None
        first, last = self._multipliers(Fraction(modulus))
        if first is None or last is None or last - first >= most:
            return None
        values = (_times(modulus, factor) for factor in range(first, last + 1))
        return [value for value in values if self.admits(value)]

    def _multipliers(self, modulus: Fraction) -> tuple[int | None, int | None]:
        """The first and the last multiple within the bounds, as numbers of moduli."""
        first = last = None
        if self.low is not None:
            low = Fraction(self.low) / modulus
            first = ceil(low) + (self.low_open and low.denominator == 1)
        if self.high is not None:
            high = Fraction(self.high) / modulus
            last = floor(high) - (self.high_open and high.denominator == 1)
        return first, last

    def admits(self, value: Decimal) -> bool:
        if self.integer and value != value.to_integral_value():
            return False
        if self.low is not None and not (value > self.low or (value == self.low and not self.low_open)):
            return False
        if self.high is not None and not (value < self.high or (value == self.high and not self.high_open)):
            return False
        if self.multiple_of is not None and not is_multiple(value, self.multiple_of):
            return False
        return value not in self.excluded and not any(is_multiple(value, one) for one in self.not_multiple_of)

    def meet(self, other: NumberRange) -> NumberRange:
        """The numbers in both."""
        low = max((b for b in (self._low_key(), other._low_key()) if b is not None), default=None)
        high = min((b for b in (self._high_key(), other._high_key()) if b is not None), default=None)
        multiple_of = self.multiple_of or other.multiple_of
        if self.multiple_of is not None and other.multiple_of is not None:
            multiple_of = least_common_multiple(self.multiple_of, other.multiple_of)
        return NumberRange(
            low[0] if low else None,
            bool(low and low[1]),
            high[0] if high else None,
            bool(high and not high[1]),
            self.integer or other.integer,
            self.whole_fraction or other.whole_fraction,
            multiple_of,
            tuple(sorted({*self.not_multiple_of, *other.not_multiple_of})),
            self.excluded | other.excluded,
        )

    def complement(self) -> tuple[NumberRange, ...]:
        """All other numbers, as ranges that have nothing in common."""
        parts = []
        rest = NumberRange()  # what the parts so far leave
        if self.low is not None:
            parts.append(NumberRange(high=self.low, high_open=not self.low_open))
            rest = replace(rest, low=self.low, low_open=self.low_open)
        if self.high is not None:
            parts.append(rest.meet(NumberRange(low=self.high, low_open=not self.high_open)))
            rest = replace(rest, high=self.high, high_open=self.high_open)
        modulus = self.modulus
        if modulus is not None:
            parts.append(replace(rest, not_multiple_of=(modulus,)))
            rest = replace(rest, multiple_of=modulus)
        for one in self.not_multiple_of:
            parts.append(rest.meet(NumberRange(multiple_of=one)))
            rest = rest.meet(NumberRange(not_multiple_of=(one,)))
        parts += [rest.meet(NumberRange(low=one, high=one)) for one in sorted(self.excluded)]
        return tuple(part for part in parts if not part.is_empty)

    def _low_key(self) -> tuple[Decimal, bool] | None:
        return None if self.low is None else (self.low, self.low_open)

    def _high_key(self) -> tuple[Decimal, bool] | None:
        return None if self.high is None else (self.high, not self.high_open)


def is_multiple(value: Decimal, unit: Decimal) -> bool:
    """Exactly, whatever the number of digits."""
    if unit == 1:
        return value == value.to_integral_value()
    return (Fraction(value) / Fraction(unit)).denominator == 1


def scaled(unit: Decimal) -> tuple[int, int]:
    """A number above zero as (integer, places): `unit = integer / 10**places` with the fewest places."""
    _, digits, exponent = unit.as_tuple()
    assert isinstance(exponent, int)
    integer = int("".join(map(str, digits)))
    if exponent >= 0:
        return integer * 10**exponent, 0
    places = -exponent
    while places and integer % 10 == 0:
        integer, places = integer // 10, places - 1
    return integer, places


def least_common_multiple(one: Decimal, other: Decimal) -> Decimal:
    """The multiples of both are the multiples of this."""
    (left, left_places), (right, right_places) = scaled(one), scaled(other)
    places = max(left_places, right_places)
    both = lcm(left * 10 ** (places - left_places), right * 10 ** (places - right_places))
    return Decimal(f"{both}E-{places}")


def _times(unit: Decimal, factor: int) -> Decimal:
    integer, places = scaled(unit)
    return Decimal(f"{integer * factor}E-{places}")


def _count(first: int | None, last: int | None) -> Iterator[int]:
    """Whole numbers from one end on; from zero where there are no ends."""
    if first is None and last is not None:
        yield from range(last, last - MAX_TRIED, -1)
        return
    start = first or 0
    yield from range(start, start + MAX_TRIED if last is None else last + 1)
