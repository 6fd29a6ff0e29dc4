"""What the environment says: the only place that reads it.

STRUCTGEN_CACHE      folder for fetched models (default: XDG_CACHE_HOME or ~/.cache, then `structgen`)
STRUCTGEN_MODEL      model used when none is named: a known name, a .gguf file or a Hugging Face folder
STRUCTGEN_OFFLINE    1: never download
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where fetched models are kept; not created here."""
    if own := os.environ.get("STRUCTGEN_CACHE"):
        return Path(own).expanduser() / "structgen"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "structgen"


def default_model() -> str | None:
    """The model to use when none is named; None when the environment has no wish."""
    return os.environ.get("STRUCTGEN_MODEL") or None


def offline() -> bool:
    """Whether downloads are forbidden."""
    return os.environ.get("STRUCTGEN_OFFLINE", "").lower() not in ("", "0", "false", "no")
