"""RMS norm, redundantly in every program. The factor 1 / rms is applied after the product, which it commutes with."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.products import put_activations


@gluon.jit
def token_of(ids, last_tokens, row, wanted):
    """A negative id -1 - lane stands for the token that the lane sampled last, which the host may not know yet."""
    token = gl.load(ids + row, mask=wanted, other=0).to(gl.int32)
    last = gl.load(last_tokens + (-1 - token), mask=wanted & (token < 0), other=0).to(gl.int32)
    return gl.maximum(gl.where(token < 0, last, token), 0)


@gluon.jit
def input_values(first, residual, embedding, ids, last_tokens, row, column, wanted, row_wanted, H: gl.constexpr):
    """The residual at (row, column), two broadcastable index tensors; the embedding while `first`."""
    if first:
        token = token_of(ids, last_tokens, row, row_wanted)
        x = gl.load(embedding + token.to(gl.int64) * H + column, mask=wanted, other=0.0).to(gl.float32)
    else:
        x = gl.load(residual + row * H + column, mask=wanted, other=0.0, cache_modifier=".cg")
    return x


@gluon.jit
def put_input(
    first,
    residual,
    embedding,
    ids,
    last_tokens,
    norm,
    place,
    k_begin,
    k_end,
    BLOCKS: gl.constexpr,
    STAGES: gl.constexpr,
    cfg: gl.constexpr,
):
    """Input times norm weight, blocks [k_begin, k_end) of hidden, to `place` [STAGES, BLOCKS * columns, 64].

    Returns the squares of the input, [BLOCKS, batch_tile, 64], added up over the stages.
    """
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    H: gl.constexpr = cfg.schedule.shape.hidden
    L: gl.constexpr = cfg.activation_layout
    k = (gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))) + z)[:, None][:, :, None]
    row = (gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))) + z)[None, :][:, :, None]
    within = (gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))) + z)[None, :][:, None, :]
    squares = gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.float32, L)
    for stage in gl.static_range(STAGES):
        block = k_begin + stage * BLOCKS + k
        column = block * 64 + within
        wanted = (block < k_end) & (row < B)
        x = input_values(first, residual, embedding, ids, last_tokens, row, column, wanted & (within < 64), row < B, H)
        weight = gl.load(norm + column, mask=(block < k_end) & (within < 64), other=0.0).to(gl.float32)
        put_activations(x * weight, place.index(stage))
        squares += x * x
    return squares


@gluon.jit
def inverse_rms_of(squares, LR: gl.constexpr, cfg: gl.constexpr):
    """1 / rms [1, batch_tile], in the layout LR of sums, from the squares of whole rows that put_input returned."""
    mean = gl.sum(gl.sum(squares, 2), 0) / cfg.schedule.shape.hidden
    factor = gl.rsqrt(mean + cfg.schedule.shape.norm_eps)
    return gl.convert_layout(factor, gl.SliceLayout(0, LR))[None, :]


@gluon.jit
def put_neurons(neurons, place, first, k_begin, k_end, cfg: gl.constexpr):
    """Blocks first + [k_begin, k_end) of the neurons [batch, intermediate] to `place`."""
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    INTER: gl.constexpr = cfg.schedule.shape.intermediate
    BLOCKS: gl.constexpr = cfg.down_blocks
    STAGES: gl.constexpr = cfg.down_stages
    L: gl.constexpr = cfg.activation_layout
    k = (gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))) + z)[:, None][:, :, None]
    row = (gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))) + z)[None, :][:, :, None]
    within = (gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))) + z)[None, :][:, None, :]
    for stage in gl.static_range(STAGES):
        block = k_begin + stage * BLOCKS + k
        wanted = (block < k_end) & (row < B) & (within < 64)
        column = (first + block) * 64 + within
        h = gl.load(neurons + row * INTER + column, mask=wanted, other=0.0, cache_modifier=".cg")
        put_activations(h, place.index(stage))
