"""How the functions of the fused step are compiled: once per version of these sources, into the disk cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as _config

from structgen.grammar.numba_cache import cache_folder

config: Any = _config
F = TypeVar("F", bound=Callable[..., Any])
# Sums may be split over lanes, products and sums fused. NaN and infinity keep their meaning: a request that computes
# them must be seen to.
FAST = {"reassoc", "contract", "arcp", "nsz"}


def _sources_key() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("fused_*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = cache_folder() / "numba" / f"fused-{_sources_key()}"


def jit(function: F) -> F:
    """`numba.njit` without the GIL and without reference counts, with the disk cache where it can be written."""
    options: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "_nrt": False}
    previous = config.CACHE_DIR
    try:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(_FOLDER)
        return cast(F, numba.njit(cache=True, **options)(function))
    except (OSError, RuntimeError):  # a read-only home: compile in every process
        return cast(F, numba.njit(**options)(function))
    finally:
        config.CACHE_DIR = previous
