"""The head for a mask that allows few tokens: only their rows of the weight are read, one program a token."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.pick_token import NONE, score_of


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def bits_set(words):
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [words], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def nth_bit(word, n):
    """Position of the n-th set bit, counted from 0."""
    return gl.inline_asm_elementwise(
        "fns.b32 $0, $1, 0, $2;", "=r,r,r", [word, n + 1], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def mask_row(mask, constrained, row, cfg: gl.constexpr):
    """-> words of the row's mask, all ones when it has no constraint."""
    W: gl.constexpr = cfg.mask_words
    word = gl.arange(0, cfg.words_padded, layout=cfg.word_layout)
    masked = gl.load(constrained + row) != 0
    words = gl.load(mask + row * W + word, mask=(word < W) & masked, other=-1)
    return gl.where(word < W, words, 0)


@gluon.jit
def count_allowed(mask, constrained, cfg: gl.constexpr):
    """Tokens allowed in all rows together."""
    total = 0
    for row in range(cfg.batch):
        total += gl.sum(bits_set(mask_row(mask, constrained, row, cfg)), 0)
    return total


@gluon.jit
def sparse_head(
    residual, norm, head_rows, mask, constrained, temperatures, seeds, offsets, best_scores, best_tokens, pid,
    cfg: gl.constexpr,
):  # fmt: skip
    """Of each row's allowed tokens, in order, this program takes every programs-th."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    V: gl.constexpr = cfg.schedule.shape.vocab_size
    NP: gl.constexpr = cfg.schedule.programs
    column = gl.arange(0, cfg.hidden_padded, layout=cfg.row_layout)
    word = gl.arange(0, cfg.words_padded, layout=cfg.word_layout)
    weight = gl.load(norm + column, mask=column < H, other=0.0).to(gl.float32)
    for row in range(cfg.batch):
        x = gl.load(residual + row * H + column, mask=column < H, other=0.0, cache_modifier=".cg")
        words = mask_row(mask, constrained, row, cfg)
        count = bits_set(words)
        until = gl.associative_scan(count, 0, _add)
        before = until - count
        total = gl.max(until, 0)
        factor = gl.rsqrt(gl.sum(x * x, 0) / H + cfg.schedule.shape.norm_eps)
        x = x * weight
        temperature, seed, offset = gl.load(temperatures + row), gl.load(seeds + row), gl.load(offsets + row)
        best = -float("inf")
        best_token = NONE
        for rank in range((pid + row * 16) % NP, total, NP):
            here = (before <= rank) & (rank < until)
            which = gl.sum(gl.where(here, word, 0), 0)
            found = gl.sum(gl.where(here, words, 0), 0)
            token = which * 32 + nth_bit(found, rank - gl.sum(gl.where(here, before, 0), 0))
            line = head_rows + token.to(gl.int64) * H
            w = gl.load(line + column, mask=(column < H) & (token < V), other=0.0).to(gl.float32)
            logit = gl.sum(w * x, 0) * factor
            score = score_of(logit, token, temperature, seed, offset)
            better = (score > best) & (token < V)
            best = gl.where(better, score, best)
            best_token = gl.where(better, token, best_token)
        gl.store(best_scores + pid * cfg.batch_tile + row, best)
        gl.store(best_tokens + pid * cfg.batch_tile + row, best_token)
