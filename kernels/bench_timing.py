"""Times of device work: medians, warmed up; with events, or by the wall clock over replays of a graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def event_milliseconds(launch: Callable[[], object], repeats: int = 20) -> float:
    """Median device time of one launch."""
    for _ in range(3):
        launch()
    times = []
    for _ in range(repeats):
        start, end = _event(), _event()
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def replay_milliseconds(step: Callable[[], object], steps: int = 20, replays: int = 9) -> float:
    """Wall clock of a step in steady state: the median replay of a graph of `steps` steps, launches included."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000 / steps)
    return statistics.median(times)


def loop_milliseconds(step: Callable[[], object], steps: int = 100) -> float:
    """Wall clock of a step, each launched from Python."""
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1000 / steps
