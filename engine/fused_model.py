"""FusedModel: an 8-bit LlamaModel's steps of few tokens, as one compiled function (fused_step.py)."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
import torch
from torch import Tensor

from structgen.engine.crew import Crew
from structgen.engine.fused_jit import config
from structgen.engine.fused_ops import LANES, WIDTH
from structgen.engine.fused_step import (
    COUNTER_BYTES,
    MOST_GROUPS,
    MOST_TOKENS,
    PHASES,
    Network,
    Shape,
    Step,
    run_step,
)
from structgen.engine.fused_weights import FusedWeights
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import ForwardInput, LlamaModel


class FusedModel:
    """Packs the weights anew, in blocks of WIDTH outputs; `model` stays the truth, and runs what this one does not.

    One step at a time: the buffers are its own. The cache must be the one that it was made with.
    """

    @staticmethod
    def fits(model: LlamaModel) -> bool:
        """Whether the model has the form, and this machine the registers, that the compiled step is made for."""
        return (
            model.precision == "int8"
            and model.config.head_dim % LANES == 0
            and "+avx512f" in llvmlite.binding.get_host_cpu_features().flatten().split(",")
            and not config.DISABLE_JIT
        )

    def __init__(self, model: LlamaModel, cache: KVCache, context: int) -> None:
        config = model.config
        self._embedding = model.embedding
        self._weights = weights = FusedWeights.of(model)
        layers, hidden, wide = config.layers, config.hidden, config.intermediate
        qkv = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.shape = Shape(
            layers=layers,
            hidden=hidden,
            intermediate=wide,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab_size,
            epsilon=config.norm_eps,
            page_size=cache.page_size,
        )
        self._network = Network(
            blocks=weights.blocks,
            scales=weights.scales,
            head_scales=weights.head_scales,
            norms=weights.norms,
            final_norm=weights.final_norm,
            turns=model.turns(context).numpy(),
            caches=_bits(cache),
        )
        floats = torch.float32
        self._x = torch.zeros(MOST_TOKENS, hidden, dtype=floats)
        self._qkv = np.zeros((MOST_TOKENS, qkv), np.float32)
        self._mixed = np.zeros(MOST_TOKENS * config.heads * config.head_dim, np.float32)
        self._hidden = np.zeros(MOST_TOKENS * wide, np.float32)
        self._counters = np.zeros((PHASES * layers + 2, COUNTER_BYTES // 8), np.int64)
        self._crew = Crew()
        self._lost = False  # a thread did not come back, and may still write into the buffers
        self._scratch: list[tuple[Any, ...]] = []

    def takes(self, step: ForwardInput) -> bool:
        """Whether `logits` may be asked for this step; others are the plain model's."""
        return len(step.ids) <= MOST_TOKENS and step.adapters is None and not self._lost

    def logits(self, step: ForwardInput, sampled: Tensor, out: Tensor, threads: int) -> None:
        """Run the step's tokens, at most MOST_TOKENS; write the logits of the tokens `sampled` [R] to out [>= R, V]."""
        tokens = len(step.ids)
        self._x[:tokens] = self._embedding[step.ids]
        self._counters[:] = 0
        tables, table_at = _tables(step)
        work = Step(
            x=self._x.numpy()[:tokens],
            positions=step.positions.numpy(),
            places=step.places.numpy(),
            tables=tables,
            table_at=table_at,
            sampled=sampled.numpy(),
            logits=out.numpy()[: len(sampled)],
            qkv=self._qkv[:tokens],
            mixed=self._mixed,
            hidden=self._hidden,
            counters=self._counters,
        )
        while len(self._scratch) < threads:
            self._scratch.append(self._buffers())
        try:
            self._crew.run(lambda thread: run_step(self.shape, self._network, work, *self._scratch[thread]), threads)
        except TimeoutError:
            self._lost = True
            raise

    def _buffers(self) -> tuple[Any, ...]:
        """What each thread has for itself; see run_step."""
        shape, context = self.shape, self._network.turns.shape[0]
        group = shape.heads // shape.kv_heads
        return (
            np.zeros(MOST_GROUPS, np.int64),
            np.arange(MOST_TOKENS),
            np.zeros(MOST_TOKENS * shape.hidden, np.float32),
            np.zeros((2, MOST_TOKENS, WIDTH), np.float32),
            np.zeros((group, context), np.float32),
            np.zeros((group, shape.head_dim), np.float32),
        )


def _bits(cache: KVCache) -> Any:
    """uint16 [layers, places, what a token has]."""
    layers, pages, page_size = cache.whole.shape[:3]
    return cache.whole.view(torch.uint16).numpy().reshape(layers, pages * page_size, -1)


def _tables(step: ForwardInput) -> tuple[Any, Any]:
    """All page tables end to end, and where each token's begins."""
    rows = step.decode_table.rows
    parts = [step.decode_table.pages.numpy()]
    width = len(parts[0]) // rows if rows else 0
    starts = [row * width for row in range(rows)]
    at = len(parts[0])
    for chunk in step.chunks:
        parts.append(chunk.table.pages.numpy())
        starts += [at] * chunk.count
        at += len(parts[-1])
    return np.concatenate(parts), np.array(starts, np.int64)
