"""captured: work on the GPU as a graph that is replayed in one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def captured(work: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Runs the work twice first, which must do no harm: it compiles what must be compiled, and lets libraries allocate.

    torch.cuda.graph would collect garbage and empty the allocator's cache each time: with dozens of graphs, and a
    large heap of grammars, that takes seconds. It is enough that no collection happens in between.
    """
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin()
            try:
                work()
            finally:
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
    return graph
