"""Remainders of a decimal that is being read.

`unit = integer / 10**places`: a number is a multiple when its digits up to that many behind the point (zeros where it
has fewer) are a multiple of `integer`, and all digits behind those are zeros.
"""

from __future__ import annotations

from decimal import Decimal

from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.json_number import scaled

MAX_REMAINDERS = 4_000  # that a state may have to tell apart
MAX_MODULUS_DIGITS = 40
_FEW = 64  # remainders that are not worth merging

# (number, digits read behind the point or -1 in front of it). In front of the point the number is the remainder; behind
# it, what the digits to come must add up to, modulo the integer. -1: no multiple, whatever follows.
_State = tuple[int, int]
_STRAY: _State = (-1, 0)


class Multiples:
    """Reads the multiples of a unit, or, not `wanted`, all other numbers."""

    start: _State = (0, -1)

    def __init__(self, unit: Decimal, *, wanted: bool) -> None:
        """
        Raises:
            GrammarLimitError: too many remainders.
        """
        self._integer, self._places = scaled(unit)
        self._wanted = wanted
        if self.size(unit) > MAX_REMAINDERS:
            raise GrammarLimitError(
                f"multiples of {unit} need more than {MAX_REMAINDERS:,} remainders",
                hint="use a rounder number, or a minimum and a maximum with few multiples between them",
            )
        self._merged: dict[tuple[int, ...], int] = {}
        # How many further digits still leave a remainder of their own: 10**n < integer.
        self._short = [10**n for n in range(len(str(self._integer))) if 10**n < self._integer]
        self._alike = _without_tens(self._integer)

    @staticmethod
    def size(unit: Decimal) -> int:
        """About how many remainders must be told apart."""
        integer, _ = scaled(unit)
        return integer if integer <= _FEW or len(str(integer)) > MAX_MODULUS_DIGITS else _without_tens(integer)

    def step(self, state: _State, index: int) -> _State | None:
        number, place = state
        if index == 0 or state == _STRAY:  # a minus
            return state
        if index == 1:  # the point
            return self._lacking(-number * 10**self._places % self._integer, 0)
        digit = index - 2
        if place < 0:
            return self._alike_in_front((10 * number + digit) % self._integer), -1
        if place == self._places:
            return state if digit == 0 else self._stray()
        return self._lacking((number - digit * 10 ** (self._places - place - 1)) % self._integer, place + 1)

    def _lacking(self, number: int, place: int) -> _State | None:
        """Behind the point as many digits are to come as make a number; often too few for what is lacking."""
        return self._stray() if number >= 10 ** (self._places - place) else (number, place)

    def _stray(self) -> _State | None:
        return None if self._wanted else _STRAY

    def _alike_in_front(self, remainder: int) -> int:
        """One remainder for all that the same further digits, however many, make multiples.

        n more digits make a multiple when they are, as a number below 10**n, what the remainder lacks. Where
        10**n < integer there is at most one such number; for larger n, remainders that are equal modulo
        integer / gcd(integer, 10**n) lack the same. (The idea of Alexeev's minimal automata for divisibility.)
        """
        integer = self._integer
        if integer <= _FEW:
            return remainder
        key = [remainder % self._alike]
        for shift in self._short:
            missing = -remainder * shift % integer
            key.append(missing if missing < shift else -1)
        return self._merged.setdefault(tuple(key), remainder)

    def accepts(self, state: _State) -> bool:
        number, place = state
        if place < 0:
            number = number * 10**self._places % self._integer
        return (number == 0) == self._wanted


def _without_tens(integer: int) -> int:
    """What is left of an integer without what divides the least power of ten that is not below it."""
    power = 10 ** len(str(integer))
    while power // 10 >= integer:
        power //= 10
    for prime in (2, 5):
        while power % prime == 0 and integer % prime == 0:
            power, integer = power // prime, integer // prime
    return integer
