"""What the environment says: the only place that reads it.

STRUCTGEN_CACHE      folder in which `structgen/` keeps fetched models, compiled code and vocabularies' tables
                     (default: XDG_CACHE_HOME or ~/.cache)
STRUCTGEN_MODEL      model used when none is named: a known name, a .gguf file or a Hugging Face folder
STRUCTGEN_OFFLINE    1: never download
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where fetched models are kept, beside what grammar/numba_cache.py keeps; not created here."""
    parent = os.environ.get("STRUCTGEN_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(parent).expanduser() / "structgen"


def default_model() -> str | None:
    """The model to use when none is named; None when the environment has no wish."""
    return os.environ.get("STRUCTGEN_MODEL") or None


def offline() -> bool:
    """Whether downloads are forbidden."""
    return os.environ.get("STRUCTGEN_OFFLINE", "").lower() not in ("", "0", "false", "no")
