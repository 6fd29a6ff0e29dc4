"""JSON pointers (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable


def join(pointer: str, key: str | int) -> str:
    """The pointer to a member of what `pointer` points at."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def from_path(path: Iterable[str | int]) -> str:
    pointer = ""
    for key in path:
        pointer = join(pointer, key)
    return pointer
