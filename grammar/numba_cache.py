"""Compile numba functions once per version of this folder.

numba's own disk cache looks only at the file of the decorated function and misses edits in the files it calls:
measured, a stale result. So the cache lies in a folder named by a hash of all sources here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as _config

config: Any = _config
F = TypeVar("F", bound=Callable[..., Any])


def cache_folder() -> Path:
    """Where structgen keeps what it can make again: `structgen` in `$STRUCTGEN_CACHE`, or in the user's cache folder.

    The same folder as that of fetched models (structgen/config.py).
    """
    parent = os.environ.get("STRUCTGEN_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(parent).expanduser() / "structgen"


def _sources_key() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_bytes()
        if b"numba_cache import" in text:
            digest.update(path.name.encode() + text)
    return digest.hexdigest()[:16]


_FOLDER = cache_folder() / "numba" / _sources_key()


def jit(function: F) -> F:
    """`numba.njit` without the GIL, with the disk cache where it can be written."""
    return _compiled(function)


def lean(function: F) -> F:
    """`jit` for functions that allocate nothing: no reference is counted.

    Passing a tuple of a dozen arrays otherwise costs two dozen atomic increments a call: measured, 130 ns against 2.
    """
    return _compiled(function, _nrt=False)


def lean_inline(function: F) -> F:
    """`lean`, copied into its callers."""
    return _compiled(function, _nrt=False, forceinline=True)


def _compiled(function: F, **options: Any) -> F:
    options |= {"nogil": True, "boundscheck": False}
    previous = config.CACHE_DIR
    try:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(_FOLDER)
        return cast(F, numba.njit(cache=True, **options)(function))
    except (OSError, RuntimeError):  # a read-only home: compile in every process, still correct
        return cast(F, numba.njit(**options)(function))
    finally:
        config.CACHE_DIR = previous
