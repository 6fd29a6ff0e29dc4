"""prepare: work that would otherwise be done when a request first wants it, within bounds of time and memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import torch

log = logging.getLogger("structgen.engine")

WARM_UP_SECONDS = 120.0  # compiling takes half a minute on a machine that has not done so before
LOAD_SECONDS = 20.0  # while others wait: all is compiled by then, and graphs are made in a second or two
LEAST_FREE = 512 << 20  # octets of the device's memory that are left alone


def prepare(
    pieces: Iterable[Callable[[], None]], device: torch.device, what: str, *, seconds: float = WARM_UP_SECONDS
) -> bool:
    """Do one piece after the other; whether all are done. What is left out waits until it is wanted, and is told of."""
    log.info("runner: preparing %s on %s", what, device)
    started, done = time.perf_counter(), 0
    for piece in pieces:
        elapsed = time.perf_counter() - started
        why = f"took {elapsed:.0f} s so far" if elapsed > seconds else _short_of_memory(device)
        if not why:
            try:
                piece()
            except torch.OutOfMemoryError:
                why = "ran out of memory"
        if why:
            log.warning("runner: preparing %s %s and ends after %d pieces; the rest comes with use", what, why, done)
            return False
        done += 1
    log.info("runner: prepared %s in %.1f s (%d pieces)", what, time.perf_counter() - started, done)
    return True


def _short_of_memory(device: torch.device) -> str:
    free, _ = torch.cuda.mem_get_info(device)
    return f"found {free >> 20} MB of memory left" if free < LEAST_FREE else ""
