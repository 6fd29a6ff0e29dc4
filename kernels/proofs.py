"""prove_once: a schedule is proven once by the same sources; on later starts a file says that it was.

A proof takes a second or more for each batch size, and depends on nothing but the schedule and the code that draws
conclusions from it: so its answer is kept under a hash of both.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from structgen.kernels.relayed_order import prove
from structgen.kernels.schedule import Schedule

log = logging.getLogger("structgen.kernels")

SOURCES = (  # all that a proof depends on, this rule included
    "dataflow",
    "instructions",
    "model_shape",
    "proofs",
    "relayed_order",
    "schedule",
    "step_numbers",
    "step_sizes",
    "validator",
)


def prove_once(schedule: Schedule, folder: Path) -> None:
    """relayed_order.prove, unless a file in `folder` says that these sources have proven this very schedule.

    ScheduleError as from there; what fails is not kept. A folder that cannot be written costs time alone.
    """
    known = folder / _key(schedule)
    if known.exists():
        return
    prove(schedule)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known.touch()
    except OSError as problem:
        log.info("the proof of a schedule is not kept: %s", problem)


def _key(schedule: Schedule) -> str:
    digest = hashlib.sha256(repr(schedule).encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:32]
