"""The head of a decode step, as the consumer warps of one program run it: its share of the tokens, best ones kept."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.dense_head import dense_head
from structgen.kernels.device.grid_sync import wait
from structgen.kernels.device.products import stage_places
from structgen.kernels.device.sparse_head import sparse_head
from structgen.kernels.device.step_parts import FULL, mark


@gluon.jit
def run_head(
    ring, full, free, staged, factors, odd, slot_trace, index, activations, table, pid, layers, mode, passes, sparse,
    residuals, counters, error, trace, norms, embedding, head_rows, ids, last_tokens,
    mask, constrained, temperatures, seeds, offsets, logits, best_scores, best_tokens,
    cfg: gl.constexpr,
):  # fmt: skip
    """The head after layer pass number `passes` - 1; unless it is `sparse`, its weights are in the ring from slot
    number `index` on, and its input comes with phase `odd` of `staged`. -> the next slot number."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    NP: gl.constexpr = cfg.schedule.programs
    SIZE: gl.constexpr = cfg.batch_tile * cfg.schedule.shape.hidden
    whole_place = stage_places(activations, cfg.stage_blocks, cfg)
    residual = residuals + (2 + ((passes * layers - 1) & 1)) * SIZE
    if (not cfg.staged) | (sparse != 0):
        wait(counters + FULL, passes * (2 * NP) * layers, error)
    mark(trace, pid, layers, layers, 0, cfg)
    norm = norms + layers * (2 * H)
    if sparse != 0:
        sparse_head(residual, norm, head_rows, mask, constrained, temperatures, seeds, offsets,
                    best_scores, best_tokens, pid, cfg)  # fmt: skip
    else:
        index = dense_head(
            ring, full, free, staged, factors, odd, slot_trace, index, activations, whole_place, table, mode,
            residual, norm, embedding, ids, last_tokens, mask, constrained, temperatures, seeds, offsets, logits,
            best_scores, best_tokens, pid, cfg,
        )  # fmt: skip
    mark(trace, pid, layers, layers, 1, cfg)
    return index
