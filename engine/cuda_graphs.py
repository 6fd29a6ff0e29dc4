"""GraphMaker: work on the GPU as graphs that are replayed in one launch each."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


class GraphMaker:
    """Captures on one stream, on which the graphs are also replayed, one after the other.

    So all of them share one pool of memory: what a graph keeps in it counts for nothing once the graph is through, and
    results go to buffers outside. A pool for each would take 2 MB and more a graph, and there are hundreds.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Runs the work twice first, which must do no harm: it compiles what must be compiled, lets libraries allocate.

        torch.cuda.graph would collect garbage and empty the allocator's cache each time: with dozens of graphs, and a
        large heap of grammars, that takes seconds. It is enough that no collection happens in between.
        """
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                work()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            collects = gc.isenabled()
            gc.disable()
            try:
                graph.capture_begin(pool=self._pool)
                try:
                    work()
                finally:
                    graph.capture_end()
            finally:
                if collects:
                    gc.enable()
        return graph
