"""`typing.TypedDict` on Python 3.11, which pydantic only takes in the spelling of `typing_extensions`."""

from __future__ import annotations

import sys
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

import typing_extensions


def with_typed_dicts(output_type: Any) -> Any:
    """The same type with every old TypedDict inside it rebuilt; as it is on Python 3.12 and later."""
    return output_type if sys.version_info >= (3, 12) else _rebuild(output_type, ())


def _rebuild(kind: Any, inside: tuple[Any, ...]) -> Any:
    if kind in inside:  # one that contains itself keeps its old spelling, and pydantic says what to change
        return kind
    if is_typeddict(kind):
        return _typed_dict(kind, (*inside, kind))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None or not arguments or not any(_holds_typed_dict(argument) for argument in arguments):
        return kind
    rebuilt = tuple(_rebuild(argument, inside) for argument in arguments)
    if origin in (Union, UnionType):
        return Union[rebuilt]  # noqa: UP007 (its members are only known here)
    if origin is Annotated:
        return Annotated[(rebuilt[0], *kind.__metadata__)]
    return origin[rebuilt]


def _holds_typed_dict(kind: Any) -> bool:
    return is_typeddict(kind) or any(_holds_typed_dict(argument) for argument in get_args(kind))


def _typed_dict(kind: Any, inside: tuple[Any, ...]) -> Any:
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        # Marks inside annotations that are text are not yet counted in __required_keys__.
        marked = get_origin(hint) in (Required, NotRequired)
        bare = get_args(hint)[0] if marked else hint
        mark: Any = get_origin(hint) if marked else Required if name in kind.__required_keys__ else NotRequired
        fields[name] = mark[_rebuild(bare, inside)]
    rebuilt: Any = typing_extensions.TypedDict(kind.__name__, fields)  # type: ignore[misc]
    rebuilt.__doc__ = kind.__doc__
    return rebuilt
