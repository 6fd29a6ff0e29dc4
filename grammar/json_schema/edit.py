"""A schema with one thing changed; everything else is shared with the original, which stays as it is."""

from __future__ import annotations

from typing import Any


def segments_of(pointer: str) -> list[str]:
    """The names and indices of a JSON pointer."""
    return [one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:]]


def without(root: Any, pointer: str, *, replace: bool) -> Any:
    """The document without what a pointer leads to: taken out of its object, or (`replace`) made the schema `true`.

    Only the containers along the way are copied.
    """
    segments = segments_of(pointer)
    if not segments:
        return True
    copied = _copy(root)
    holder = copied
    for segment in segments[:-1]:
        key = _key(holder, segment)
        holder[key] = _copy(holder[key])
        holder = holder[key]
    key = _key(holder, segments[-1])
    if replace or isinstance(holder, list):
        holder[key] = True
    else:
        del holder[key]
    return copied


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value)


def _key(holder: Any, segment: str) -> Any:
    return int(segment) if isinstance(holder, list) else segment
