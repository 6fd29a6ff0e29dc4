"""Names that differ between the Triton releases the kernel compiles with (3.6 to 3.9)."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma


def _first(owner: Any, *names: str) -> Any:
    return next(getattr(owner, name) for name in names if hasattr(owner, name))


block_barrier = _first(gl, "barrier", "thread_barrier")
reinterpret = _first(gl.shared_memory_descriptor, "reinterpret", "_reinterpret")
copy_to_shared = _first(tma, "async_load", "async_copy_global_to_shared")
