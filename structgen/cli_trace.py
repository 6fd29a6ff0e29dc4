"""--trace: where the time of each step went, as a file for chrome://tracing or Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structgen.llm import LLM


@contextmanager
def traced(llm: LLM, out: Path | None) -> Iterator[None]:
    """Record the engine's steps while the block runs, and write them to `out`; nothing without one."""
    if out is None:
        yield
        return
    with out.open("w") as target:  # fails before any work
        llm.engine.trace.record = True
        try:
            yield
        finally:
            json.dump(llm.engine.trace.chrome(), target)
