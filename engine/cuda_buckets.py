"""Buckets: steps padded to a few numbers of rows, each slot's with its inputs on the device and its captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.device_input import Rows, packed_size, unpack
from structgen.engine.model_config import ModelConfig
from structgen.kernels.paged_attention import MAX_SPLITS, AttentionWorkspace, is_supported

GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # a step is padded to the next of these
MOST_GRAPH_ROWS = GRAPH_ROWS[-1]
FEW_ROWS = 16


def padded(tokens: int) -> int:
    """How many rows a step of so many tokens is run as."""
    for rows in GRAPH_ROWS:
        if tokens <= rows:
            return rows
    return -(-tokens // MOST_GRAPH_ROWS) * MOST_GRAPH_ROWS


def rows_up_to(tokens: int) -> tuple[int, ...]:
    """The numbers of rows that steps of at most so many tokens are run as, as far as graphs are made of them."""
    most = padded(tokens)
    return tuple(rows for rows in GRAPH_ROWS if rows <= most)


@dataclass
class Bucket:
    """A slot's steps of `count` rows: inputs, page tables and logits on the device, and the graph between them.

    Inputs are the slot's own, so that they can be copied in while the step before runs. Logits and workspace are all
    slots': a step's logits are sampled from before the next step runs.
    `adapted`: some row has an adapter; the others are spared the work.
    """

    inputs: Tensor
    count: int  # of rows
    sampled: int  # of them, at most
    rows: Rows
    tables: Tensor
    logits: Tensor
    workspace: AttentionWorkspace | None
    adapted: bool
    wants_graph: bool  # it has none yet, and shall have one
    graph: torch.cuda.CUDAGraph | None = None


class Buckets:
    """Makes a bucket when it is first asked for, and keeps it. All of this happens on the current stream.

    graphs            None runs every step operation by operation, as those of more than MOST_GRAPH_ROWS always are:
                      their work takes longer than its launches
    attention_kernel  whether our kernel may be used for attention
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_batch: int,
        device: torch.device,
        graphs: GraphMaker | None,
        attention_kernel: bool,
    ) -> None:
        self._config, self._max_batch, self._device, self._graphs = config, max_batch, device, graphs
        self._attention_kernel = attention_kernel and is_supported(config.heads, config.kv_heads, config.head_dim)
        self._made: dict[tuple[int, int, bool], Bucket] = {}  # by slot, rows, adapted
        self._shared: dict[int, tuple[Tensor, AttentionWorkspace | None]] = {}  # by rows: logits and workspace

    def ready(self, slot: int, rows: int, adapted: bool) -> Bucket | None:
        """Such a bucket, if there is one, and its graph, if it shall have one."""
        made = self._made.get((slot, rows, adapted))
        return None if made is None or made.wants_graph else made

    def get(self, slot: int, rows: int, adapted: bool, tables: Tensor, compute: Callable[[Bucket], None]) -> Bucket:
        """`tables` are the slot's; `compute` fills a bucket's logits from its inputs."""
        made = self._made.get((slot, rows, adapted))
        if made is None:
            made = self._make(slot, rows, adapted, tables)
            self._made[slot, rows, adapted] = made
        if made.wants_graph and self._graphs is not None:
            made.wants_graph = False  # also when it fails: the step then runs operation by operation
            made.graph = self._capture(made, self._graphs, compute)
        return made

    @contextmanager
    def blank(self, bucket: Bucket) -> Iterator[None]:
        """The bucket as if no step used it, for work that is tried out on it; a step in flight finds it as it was.

        All rows then write to the scratch page, and no token goes to a lane in use.
        """
        inputs, logits = bucket.inputs.clone(), bucket.logits.clone()
        self._empty(bucket)
        try:
            yield
        finally:
            bucket.inputs.copy_(inputs)
            bucket.logits.copy_(logits)

    def forget_adapted(self) -> None:
        """The adapters' tensors have moved: graphs that read them are made anew."""
        for bucket in self._made.values():
            if bucket.adapted and bucket.graph is not None:
                bucket.graph, bucket.wants_graph = None, True

    def clear(self) -> None:
        self._made.clear()
        self._shared.clear()

    def _make(self, slot: int, rows: int, adapted: bool, tables: Tensor) -> Bucket:
        """With the buffers of its twin, if that is there: a step is adapted or not."""
        wants_graph = self._graphs is not None and rows <= MOST_GRAPH_ROWS
        twin = self._made.get((slot, rows, not adapted))
        if twin is not None:
            return replace(twin, adapted=adapted, wants_graph=wants_graph, graph=None)
        sampled = min(rows, self._max_batch)
        if rows not in self._shared:
            logits = torch.zeros(sampled, self._config.vocab_size, dtype=torch.float32, device=self._device)
            self._shared[rows] = logits, self._workspace(rows)
        inputs = torch.zeros(packed_size(rows, sampled), dtype=torch.int32, device=self._device)
        views = unpack(inputs, rows, sampled)
        bucket = Bucket(inputs, rows, sampled, views, tables, *self._shared[rows], adapted, wants_graph)
        self._empty(bucket)
        return bucket

    def _empty(self, bucket: Bucket) -> None:
        bucket.inputs.zero_()
        bucket.rows.lanes.fill_(self._max_batch)
        bucket.rows.outputs.fill_(-1)
        bucket.rows.targets.fill_(self._max_batch)

    @torch.inference_mode()
    def _capture(self, bucket: Bucket, graphs: GraphMaker, compute: Callable[[Bucket], None]) -> torch.cuda.CUDAGraph:
        with self.blank(bucket):
            return graphs.capture(lambda: compute(bucket))

    def _workspace(self, rows: int) -> AttentionWorkspace | None:
        """For the attention kernel, where it can be used. Many rows keep the GPU busy without being cut up."""
        if not self._attention_kernel:
            return None
        return AttentionWorkspace(
            max_rows=rows,
            heads=self._config.heads,
            kv_heads=self._config.kv_heads,
            head_dim=self._config.head_dim,
            device=self._device,
            splits=MAX_SPLITS if rows <= FEW_ROWS else 4 if rows <= MOST_GRAPH_ROWS else 1,
        )
