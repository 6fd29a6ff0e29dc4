"""read_json_object: the small JSON files beside a model's or an adapter's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from structgen.engine.errors import ModelError


def read_json_object(file: Path, *, missing: ModelError) -> dict[str, Any]:
    """The file's object. Raises `missing` where it cannot be read, ModelError where it is something else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise missing from None
    except ValueError as problem:
        raise ModelError(f"{file.name} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file.name} is not a JSON object")
    return value
