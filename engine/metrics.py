"""Metrics: what an engine has done since it was made. Plain counters, for people and for a metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Metrics:
    """Counts. `tokens_forced` are output tokens that needed no sampling, `jumps` the places where there were any."""

    steps: int = 0
    prompt_tokens: int = 0
    prompt_tokens_shared: int = 0
    tokens_sampled: int = 0
    tokens_forced: int = 0
    jumps: int = 0
    late_masks: int = 0
    preemptions: int = 0
    void_rows: int = 0
    rescued_steps: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
