"""JSON numbers between bounds, as automata over their decimal spelling.

Bounds are exact decimals of any size. A number with bounds is written without an exponent (with free exponents,
bounds are not regular); digits before the point have no leading zeros, `-0` is spelled only with a fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA, explore
from structgen.grammar.charset import CharSet

CLASSES: tuple[CharSet, ...] = (((0x2D, 0x2D),), ((0x2E, 0x2E),), *(((0x30 + d, 0x30 + d),) for d in range(10)))
MINUS, POINT, ZERO = 0, 1, 2

# Free numbers are bounded in digits, so that a model that repeats itself ends, and no reader overflows.
FREE_INTEGER = r"0|-?[1-9]\d{0,307}"
_FRACTION = r"(?:\.\d{1,307})?"
_EXPONENT = r"[eE](?:[+-]?0?\d\d?|\+?[12]\d\d|\+?30[0-7]|-[123]\d\d)"
FREE_NUMBER = rf"-?(?:0|[1-9]\d{{0,307}}){_FRACTION}|-?(?:0|[1-9]){_FRACTION}{_EXPONENT}"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Which numbers: bounds are None where there are none."""

    low: Decimal | None = None
    low_open: bool = False
    high: Decimal | None = None
    high_open: bool = False
    integer: bool = False
    whole_fraction: bool = False  # integers may also be written 1.0

    @property
    def is_free(self) -> bool:
        return self.low is None and self.high is None

    @property
    def is_empty(self) -> bool:
        """Whether the bounds contradict each other (integers between them are the automaton's matter)."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def admits(self, value: Decimal) -> bool:
        if self.integer and value != value.to_integral_value():
            return False
        if self.low is not None and not (value > self.low or (value == self.low and not self.low_open)):
            return False
        return self.high is None or value < self.high or (value == self.high and not self.high_open)

    def meet(self, other: NumberRange) -> NumberRange:
        """The numbers in both."""
        low = max((b for b in (self._low_key(), other._low_key()) if b is not None), default=None)
        high = min((b for b in (self._high_key(), other._high_key()) if b is not None), default=None)
        return NumberRange(
            low[0] if low else None,
            bool(low and low[1]),
            high[0] if high else None,
            bool(high and not high[1]),
            self.integer or other.integer,
            self.whole_fraction or other.whole_fraction,
        )

    def _low_key(self) -> tuple[Decimal, bool] | None:
        return None if self.low is None else (self.low, self.low_open)

    def _high_key(self) -> tuple[Decimal, bool] | None:
        return None if self.high is None else (self.high, not self.high_open)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A magnitude in digits: integer part without leading zeros (but "0"), fraction without trailing zeros."""

    integer: str
    fraction: str

    @classmethod
    def of(cls, value: Decimal) -> _Bound:
        # copy_abs, since arithmetic would round to the precision of the decimal context.
        whole, _, fraction = format(value.copy_abs(), "f").partition(".")
        return cls(whole.lstrip("0") or "0", fraction.rstrip("0"))


# (phase, sign, digits read of this part, comparison with the low bound, comparison with the high bound)
# Comparisons are of the magnitude: -1 below, 0 equal so far, 1 above.
_State = tuple[str, int, int, int, int]


class _Comparer:
    """Compares a decimal being read with two signed bounds."""

    def __init__(self, wanted: NumberRange) -> None:
        self.wanted = wanted
        self.low = None if wanted.low is None else _Bound.of(wanted.low)
        self.high = None if wanted.high is None else _Bound.of(wanted.high)
        bounds = [bound for bound in (self.low, self.high) if bound]
        self.integer_cap = max((len(b.integer) for b in bounds), default=0) + 1
        self.fraction_cap = max((len(b.fraction) for b in bounds), default=0)

    def step(self, state: _State, index: int) -> _State | None:
        phase, sign, count, low, high = state
        if index == MINUS:
            return ("minus", -1, 0, 0, 0) if phase == "start" else None
        if index == POINT:
            return self._point(state)
        digit = index - ZERO
        if phase in ("start", "minus"):
            return (
                "zero" if digit == 0 else "int", sign, 1,
                self._compare_integer(self.low, 0, 0, digit), self._compare_integer(self.high, 0, 0, digit),
            )  # fmt: skip
        if phase == "int":
            compared = [self._compare_integer(b, c, count, digit) for b, c in ((self.low, low), (self.high, high))]
            return "int", sign, min(count + 1, self.integer_cap), compared[0], compared[1]
        if phase in ("point", "frac"):
            if self.wanted.integer and digit:
                return None
            compared = [self._compare_fraction(b, c, count, digit) for b, c in ((self.low, low), (self.high, high))]
            return "frac", sign, min(count + 1, self.fraction_cap), compared[0], compared[1]
        return None

    def _point(self, state: _State) -> _State | None:
        phase, sign, count, low, high = state
        if phase not in ("zero", "int") or (self.wanted.integer and not self.wanted.whole_fraction):
            return None
        return "point", sign, 0, self._whole(self.low, low, count), self._whole(self.high, high, count)

    @staticmethod
    def _compare_integer(bound: _Bound | None, so_far: int, count: int, digit: int) -> int:
        if bound is None or so_far or count >= len(bound.integer):
            return so_far
        other = int(bound.integer[count])
        return (digit > other) - (digit < other)

    @staticmethod
    def _compare_fraction(bound: _Bound | None, so_far: int, count: int, digit: int) -> int:
        if bound is None or so_far:
            return so_far
        other = int(bound.fraction[count]) if count < len(bound.fraction) else 0
        return (digit > other) - (digit < other)

    @staticmethod
    def _whole(bound: _Bound | None, so_far: int, count: int) -> int:
        """The comparison once the integer part has `count` digits and ends: length decides first."""
        if bound is None:
            return 0
        length = len(bound.integer)
        return so_far if count == length else (1 if count > length else -1)

    def accepts(self, state: _State) -> bool:
        phase, sign, count, low, high = state
        if phase not in ("zero", "int", "frac") or (phase == "zero" and sign < 0):
            return False
        if phase != "frac":
            low, high, count = self._whole(self.low, low, count), self._whole(self.high, high, count), 0
        return self._above_low(sign, low, count) and self._below_high(sign, high, count)

    @staticmethod
    def _finished(bound: _Bound, compared: int, count: int) -> int:
        """A number that ends while it is equal to a longer bound is below it."""
        return -1 if compared == 0 and count < len(bound.fraction) else compared

    def _order(self, bound: _Bound, value: Decimal, sign: int, compared: int, count: int) -> int:
        """Signed comparison of the finished number with a bound. The number is zero only if it equals zero."""
        compared = self._finished(bound, compared, count)
        bound_sign = -1 if value < 0 else 1
        if value == 0:
            return 0 if compared == 0 else sign
        if sign != bound_sign:
            return sign
        return compared * sign

    def _above_low(self, sign: int, compared: int, count: int) -> bool:
        if self.low is None or self.wanted.low is None:
            return True
        order = self._order(self.low, self.wanted.low, sign, compared, count)
        return order > 0 or (order == 0 and not self.wanted.low_open)

    def _below_high(self, sign: int, compared: int, count: int) -> bool:
        if self.high is None or self.wanted.high is None:
            return True
        order = self._order(self.high, self.wanted.high, sign, compared, count)
        return order < 0 or (order == 0 and not self.wanted.high_open)


def number_length(wanted: NumberRange) -> int:
    """How many characters a number may have: as free numbers, and enough for the bounds."""
    bounds = [format(bound, "f") for bound in (wanted.low, wanted.high) if bound is not None]
    return 310 + max(map(len, bounds), default=0)


@lru_cache(maxsize=4096)
def number_dfa(wanted: NumberRange) -> CharDFA:
    """The decimal spellings of the numbers in a range; without states when there are none."""
    comparer = _Comparer(wanted)
    start: _State = ("start", 1, 0, 0, 0)
    return explore(start, CLASSES, comparer.step, comparer.accepts)
