"""The head for all tokens: every row of the vocabulary, then the program's best token of each row of the batch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from structgen.kernels.device.norm import inverse_rms_of, put_input
from structgen.kernels.device.pick_token import allowed, put_best, score_of
from structgen.kernels.device.products import activations_ready, row_product, staged_product
from structgen.kernels.device.step_parts import KEEP_LOGITS, USE_MASK, field


@gluon.jit
def dense_head(
    ring, full, free, staged, factors, odd, slot_trace, index, activations, place, table, mode, residual, norm,
    embedding, ids, last_tokens, mask, constrained, temperatures, seeds, offsets, logits,
    best_scores, best_tokens, pid, cfg: gl.constexpr,
):  # fmt: skip
    """Each program takes the blocks of rows that its schedule gives it. -> the next slot number."""
    B: gl.constexpr = cfg.batch
    BT: gl.constexpr = cfg.batch_tile
    KB: gl.constexpr = cfg.schedule.shape.hidden_blocks
    V: gl.constexpr = cfg.schedule.shape.vocab_size
    W: gl.constexpr = cfg.mask_words
    LH: gl.constexpr = cfg.sums_layout
    if cfg.staged:
        factor = gl.full((1, BT), 1.0, gl.float32, LH)  # comes after the first product
    else:
        squares = put_input(False, residual, embedding, ids, last_tokens, norm, place, 0, KB,
                  cfg.stage_blocks, cfg.stages, cfg)  # fmt: skip
        activations_ready()
        factor = inverse_rms_of(squares, LH, cfg)
    head_row = gl.arange(0, 64, layout=gl.SliceLayout(1, LH))[:, None]
    batch_row = gl.arange(0, BT, layout=gl.SliceLayout(0, LH))[None, :]
    batch = gl.arange(0, BT, layout=gl.SliceLayout(0, LH))
    best = gl.full((64, BT), -float("inf"), gl.float32, LH)
    best_token = gl.full((64, BT), 2147483647, gl.int32, LH)
    temperature = gl.load(temperatures + batch, mask=batch < B, other=0.0)[None, :]
    seed = gl.load(seeds + batch, mask=batch < B, other=0)[None, :]
    offset = gl.load(offsets + batch, mask=batch < B, other=0)[None, :]
    any_drawn = gl.max(gl.load(temperatures + batch, mask=batch < B, other=0.0), 0) > 0
    masked = (gl.load(constrained + batch, mask=batch < B, other=0) != 0)[None, :]
    block = field(table, "head_block_begin", cfg)
    for _ in range(field(table, "head_block_count", cfg)):
        token = block * 64 + head_row + batch_row * 0
        wanted = (token < V) & (batch_row < B)
        if cfg.staged:
            index, total = staged_product(
                ring, full, free, slot_trace, index, activations, KB, staged, 0, cfg.stage_blocks, odd, cfg
            )
            mbarrier.wait(staged.index(cfg.stages), odd)
            factor = factors.load(gl.SliceLayout(0, LH))[None, :]
        else:
            index, total = row_product(ring, full, free, slot_trace, index, activations, KB, cfg)
        y = total * factor
        if (mode & KEEP_LOGITS) != 0:
            gl.store(logits + batch_row.to(gl.int64) * V + token, y, mask=wanted)
        if (mode & USE_MASK) != 0:
            wanted = wanted & allowed(mask, masked, batch_row, token, wanted, W)
        score = y
        if any_drawn:
            score = score_of(y, token, temperature, seed, offset)
        score = gl.where(wanted, score, -float("inf"))
        better = score > best
        best = gl.where(better, score, best)
        best_token = gl.where(better, token, best_token)
        block += field(table, "head_block_stride", cfg)
    if cfg.staged:
        mbarrier.wait(staged.index(cfg.stages), odd)  # also when there was nothing to multiply: no phase passes unseen
    put_best(best, best_token, best_scores, best_tokens, pid, cfg)
    return index
