"""JSON text and Python objects -> exact values, with a place for everything that is not JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from structgen.validation.numbers import parse_decimal, parse_int
from structgen.validation.pointers import join


class Problem(NamedTuple):
    """Why a document is not acceptable JSON, and where (JSON pointer into it)."""

    pointer: str
    message: str


class NotJsonError(ValueError):
    """The document cannot be read as JSON; `.problem` says why."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(pointer, message)


class TooDeepError(NotJsonError):
    """The document may be JSON, but is nested more deeply than can be read."""


class _Repeated(dict[str, Any]):
    """An object that spelled a key twice (the last value wins, as in Python)."""

    key = ""


def parse_json(text: str | bytes) -> tuple[Any, list[Problem]]:
    """Read one JSON document; numbers become int or Decimal.

    Returns: the value, and what a strict reader objects to (repeated keys, lone surrogates).

    Raises:
        NotJsonError: no value can be read at all.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            decoded,
            parse_int=parse_int,
            parse_float=parse_decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8: byte {error.start} cannot be decoded") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise TooDeepError("nested too deeply to be read") from None
    except ValueError as error:
        raise NotJsonError(f"not JSON: {error}") from None
    return value, list(_objections(value))


def from_python(value: object) -> Any:
    """Copy a Python object into exact JSON values: floats as the decimals they print as, tuples as arrays.

    Raises:
        NotJsonError: something in it is not JSON (NaN, a key that is not a string, a set ...).
    """
    root: list[Any] = [None]
    todo: list[tuple[Any, Any, object, str]] = [(root, 0, value, "")]
    while todo:
        target, key, item, pointer = todo.pop()
        if isinstance(item, dict):
            copy: Any = {}
            for name, child in item.items():
                if not isinstance(name, str):
                    raise NotJsonError(f"the key {name!r} is not a string", pointer)
                copy[_text(name, pointer)] = None  # keeps the order of the keys: the stack is read backwards
                todo.append((copy, name, child, join(pointer, name)))
        elif isinstance(item, list | tuple):
            copy = [None] * len(item)
            todo.extend((copy, index, child, join(pointer, index)) for index, child in enumerate(item))
        else:
            copy = _scalar(item, pointer)
        target[key] = copy
    return root[0]


def _scalar(item: object, pointer: str) -> Any:
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, str):
        return _text(str(item), pointer)
    if isinstance(item, int):
        return int(item)
    if isinstance(item, float):
        if not isfinite(item):
            raise NotJsonError(f"{item} is not a JSON number", pointer)
        return Decimal(repr(item))
    if isinstance(item, Decimal):
        if not item.is_finite():
            raise NotJsonError(f"{item} is not a JSON number", pointer)
        return item
    raise NotJsonError(f"a {type(item).__name__} is not a JSON value", pointer)


def _text(text: str, pointer: str) -> str:
    if not text.isascii() and _has_surrogate(text):
        raise NotJsonError("a lone surrogate is not a character", pointer)
    return text


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeated = _Repeated(plain)
    repeated.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
    return repeated


def _objections(root: Any) -> Iterator[Problem]:
    todo = [("", root)]
    while todo:
        pointer, value = todo.pop()
        if isinstance(value, dict):
            if isinstance(value, _Repeated):
                yield Problem(join(pointer, value.key), f"the key {json.dumps(value.key)} appears twice")
            if any(not key.isascii() and _has_surrogate(key) for key in value):
                yield Problem(pointer, "a key holds a lone surrogate, which is not a character")
            todo.extend((join(pointer, key), child) for key, child in value.items())
        elif isinstance(value, list):
            todo.extend((join(pointer, index), child) for index, child in enumerate(value))
        elif isinstance(value, str) and not value.isascii() and _has_surrogate(value):
            yield Problem(pointer, "a lone surrogate is not a character")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def dump(value: Any) -> str:
    """JSON text of an exact value, nothing rounded. Recursive: for values of bounded depth."""
    if isinstance(value, dict):
        members = ", ".join(f"{json.dumps(key)}: {dump(child)}" for key, child in value.items())
        return f"{{{members}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(dump, value))}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)
