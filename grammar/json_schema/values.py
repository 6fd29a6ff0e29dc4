"""JSON values: equality as JSON means it, and their canonical spelling."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from typing import Any

from structgen.grammar.errors import GrammarLimitError, SchemaError
from structgen.grammar.json_schema.keywords import is_number
from structgen.grammar.json_string import quoted

MAX_DIGITS = 1_000


def exact(value: Any) -> Decimal:
    """A JSON number as an exact decimal; floats by their shortest spelling.

    Raises:
        SchemaError: NaN or an infinity. GrammarLimitError: too many digits.
    """
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise SchemaError(f"{value} is no JSON number", pointer="")
    if abs(number.adjusted()) > MAX_DIGITS or len(number.as_tuple().digits) > MAX_DIGITS:
        raise GrammarLimitError(f"a number of more than {MAX_DIGITS:,} digits", pointer="", hint="use a smaller number")
    return number


def json_key(value: Any) -> Hashable:
    """A key that is equal for values that JSON Schema holds equal: 1 = 1.0, true is not 1, keys in any order."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__, value
    if is_number(value):
        return "number", exact(value)
    if isinstance(value, list | tuple):
        return "array", tuple(json_key(one) for one in value)
    if isinstance(value, dict):
        return "object", frozenset((name, json_key(one)) for name, one in value.items())
    raise SchemaError(f"{type(value).__name__} is no JSON value", pointer="")


def type_of(value: Any) -> str:
    """null, boolean, number, string, array or object."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if is_number(value):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"


def scalar_spellings(value: Any, *, whole: bool = False, fraction: bool = False) -> list[bytes]:
    """How a scalar may be written: as the schema spells it, and as an integer where it is one.

    Args:
        whole: integers only as such. fraction: integers also as 1.0.
    """
    if value is None:
        return [b"null"]
    if isinstance(value, bool):
        return [b"true" if value else b"false"]
    if isinstance(value, str):
        return [quoted(value)]
    number = exact(value)
    spellings = set() if whole else {str(value).encode()}
    if number == number.to_integral_value() and number.adjusted() < 300:
        spellings |= {f"{int(number)}{end}".encode() for end in (("", ".0") if fraction else ("",))}
    return sorted(spellings)
