"""Plain decimals within bounds: a number that is being read is compared with both bounds digit by digit."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from structgen.grammar.json_number import ONE, NumberRange, is_multiple

MINUS, POINT, ZERO = 0, 1, 2  # characters as indices; the digits follow


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


class Bounds:
    """Reads plain decimals within two signed bounds, integral where that is wanted."""

    start: _State = ("start", 1, 0, 0, 0)

    def __init__(self, wanted: NumberRange) -> None:
        self.wanted = wanted
        modulus = wanted.modulus
        self.integral = modulus is not None and is_multiple(modulus, ONE)
        self.signed = wanted.low is not None or wanted.high is not None
        self.pointless = wanted.integer and not wanted.whole_fraction
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
                "zero" if digit == 0 else "int", sign if self.signed or digit == 0 else 1, 1,
                self._compare_integer(self.low, 0, 0, digit), self._compare_integer(self.high, 0, 0, digit),
            )  # fmt: skip
        if phase == "int":
            compared = [self._compare_integer(b, c, count, digit) for b, c in ((self.low, low), (self.high, high))]
            return "int", sign, min(count + 1, self.integer_cap), compared[0], compared[1]
        if phase in ("point", "frac"):
            if self.integral and digit:
                return None
            compared = [self._compare_fraction(b, c, count, digit) for b, c in ((self.low, low), (self.high, high))]
            return "frac", sign, min(count + 1, self.fraction_cap), compared[0], compared[1]
        return None

    def _point(self, state: _State) -> _State | None:
        phase, sign, count, low, high = state
        if phase not in ("zero", "int") or self.pointless:
            return None
        sign = sign if self.signed else 1
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
