"""JSON numbers without rounding: `int` for short integer literals, `Decimal` for the rest."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

Number: TypeAlias = int | Decimal

# Python refuses to read or print an int of more than 4300 digits; such literals stay decimal.
_MAX_INT_DIGITS = 4000


def parse_int(literal: str) -> Number:
    """The number of a JSON literal without fraction and exponent."""
    return int(literal) if len(literal) <= _MAX_INT_DIGITS else Decimal(literal)


def parse_decimal(literal: str) -> Decimal:
    """The number of a JSON literal with fraction or exponent.

    Raises:
        ValueError: an exponent beyond what Decimal can hold (about 10^18).
    """
    try:
        return Decimal(literal)
    except InvalidOperation:
        raise ValueError(f"the exponent of {literal[:40]} is out of range") from None


def is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def is_integral(value: object) -> bool:
    """Whether a JSON value is a number without a fractional part (1.0 and 1e2 are)."""
    if isinstance(value, Decimal):
        coefficient, exponent = _scaled(value)
        return exponent >= 0 or coefficient == 0
    return isinstance(value, int) and not isinstance(value, bool)


def is_integer_literal(value: object) -> bool:
    """Whether a number was written without fraction and exponent, which is what draft 4 calls an integer."""
    if isinstance(value, Decimal):
        digits = value.as_tuple()
        return digits.exponent == 0 and len(digits.digits) > _MAX_INT_DIGITS - 1
    return isinstance(value, int) and not isinstance(value, bool)


def is_multiple(value: Number, step: Number) -> bool:
    """Whether value / step is an integer, exactly, for any size of either.

    With value = a * 10^p and step = b * 10^q the quotient is a * 10^(p-q) / b. For p < q that is never an
    integer, since 10 does not divide a.
    """
    a, p = _scaled(value)
    b, q = _scaled(step)
    if a == 0:
        return True
    return b != 0 and p >= q and a * pow(10, p - q, b) % b == 0


def _scaled(value: Number) -> tuple[int, int]:
    """(coefficient >= 0, exponent) with no trailing zero in the coefficient."""
    _, digits, exponent = (value if isinstance(value, Decimal) else Decimal(value)).as_tuple()
    assert isinstance(exponent, int), "NaN and infinities never get here"
    end = len(digits)
    while end and digits[end - 1] == 0:
        end -= 1
    return int(Decimal((0, digits[:end], 0))) if end else 0, exponent + len(digits) - end


def plain(value: Any) -> Any:
    """A copy of a JSON value with floats in place of Decimals, for readers that know only those; may round."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
