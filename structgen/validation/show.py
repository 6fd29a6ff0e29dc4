"""Values in messages: as JSON, and short."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

_LIMIT = 80


def show(value: Any, limit: int = _LIMIT) -> str:
    """JSON text of a value, cut to `limit` characters, without ever building the whole of a large one."""
    text = _write(value, limit)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _write(value: Any, budget: int) -> str:
    if isinstance(value, str):
        return json.dumps(value[: budget + 1], ensure_ascii=False)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() < 4096 else "an integer of more than 1200 digits"
    if isinstance(value, list):
        return f"[{_join((_write(item, budget // 2) for item in value[:budget]), budget)}]"
    pairs = (f"{_write(key, budget // 2)}: {_write(item, budget // 2)}" for key, item in value.items())
    return f"{{{_join(pairs, budget)}}}"


def _join(parts: Any, budget: int) -> str:
    taken: list[str] = []
    used = 0
    for part in parts:
        taken.append(part)
        used += len(part) + 2
        if used > budget:
            break
    return ", ".join(taken)
