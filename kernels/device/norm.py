"""RMS norm, redundantly in every program. The factor 1 / rms is applied after the product, which it commutes with."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.flagged import flagged_values
from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.products import put_activations


@gluon.jit
def token_of(ids, last_tokens, row, wanted, V: gl.constexpr):
    """A negative id -1 - lane stands for the token that the lane sampled last, which the host may not know yet.

    Where nothing could be sampled that is no token: any will do, for the host drops such a row.
    """
    token = gl.load(ids + row, mask=wanted, other=0).to(gl.int32)
    last = gl.load(last_tokens + (-1 - token), mask=wanted & (token < 0), other=0).to(gl.int32)
    return gl.minimum(gl.maximum(gl.where(token < 0, last, token), 0), V - 1)


@gluon.jit
def input_values(first, residual, embedding, ids, last_tokens, row, column, wanted, row_wanted, cfg: gl.constexpr):
    """The residual at (row, column), two broadcastable index tensors; the embedding while `first`."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    if first:
        token = token_of(ids, last_tokens, row, row_wanted, cfg.schedule.shape.vocab_size)
        x = gl.load(embedding + token.to(gl.int64) * H + column, mask=wanted, other=0.0).to(gl.float32)
    else:
        x = gl.load(residual + row * H + column, mask=wanted, other=0.0, cache_modifier=".cg")
    return x


@gluon.jit
def tile_places(BLOCKS: gl.constexpr, cfg: gl.constexpr):
    """Index tensors of [BLOCKS, batch_tile, 64] activations: block, row, column within the block."""
    z = fresh_zero()
    L: gl.constexpr = cfg.activation_layout
    k = (gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))) + z)[:, None][:, :, None]
    row = (gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))) + z)[None, :][:, :, None]
    within = (gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))) + z)[None, :][:, None, :]
    return k, row, within


@gluon.jit
def unfolded(k, row, begin, cfg: gl.constexpr):
    """-> (block, row of the batch) of a tile's elements: folded, it holds four blocks of one row in place of one block
    of four rows."""
    block = begin + k
    batch = row
    if cfg.fold > 1:
        block = begin + k * cfg.fold + row
        batch = row * 0
    return block, batch


@gluon.jit
def load_input(
    first, residual, embedding, ids, last_tokens, norm, k, row, within, k_begin, k_end, cfg: gl.constexpr
):  # fmt: skip
    """Input and norm weight of the tiles k from block k_begin on."""
    block, batch = unfolded(k, row, k_begin, cfg)
    column = block * 64 + within
    wanted = (block < k_end) & (batch < cfg.batch) & (within < 64)
    x = input_values(first, residual, embedding, ids, last_tokens, batch, column, wanted, batch < cfg.batch, cfg)
    if cfg.staged:
        weight = load_norm_pairs(norm, k_begin, k_end, k.shape[0], cfg)
    else:
        weight = gl.load(norm + column, mask=(block < k_end) & (within < 64), other=0.0)
    return x, weight


@gluon.jit
def load_norm_pairs(norm, k_begin, k_end, BLOCKS: gl.constexpr, cfg: gl.constexpr):
    """Norm weights of BLOCKS blocks from k_begin on, two bfloat16 in an int32: [BLOCKS, 1, 32].

    As integers they stay on their way until they are used; bfloat16 would be taken apart, and waited for, here.
    """
    z = fresh_zero()
    L: gl.constexpr = cfg.norm_pair_layout
    block = k_begin + (gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))) + z)[:, None][:, :, None]
    pair = (gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))) + z)[None, :][:, None, :]
    pairs = norm.to(gl.pointer_type(gl.int32))
    return gl.load(pairs + (block * 32 + pair), mask=(block < k_end) & (pair < 32), other=0)


@gluon.jit
def norm_weights(loaded, cfg: gl.constexpr):
    """Of what load_input loaded: float32 [BLOCKS, 1, 64]."""
    if cfg.staged:
        low = (loaded << 16).to(gl.float32, bitcast=True)
        high = (loaded & -65536).to(gl.float32, bitcast=True)
        both = gl.reshape(gl.join(low, high), (loaded.shape[0], 1, 64))
        weight = gl.convert_layout(both, cfg.activation_layout, assert_trivial=True)
    else:
        weight = loaded.to(gl.float32)
    return weight


@gluon.jit
def put_input(
    first, residual, embedding, ids, last_tokens, norm, place, k_begin, k_end,
    BLOCKS: gl.constexpr, STAGES: gl.constexpr, cfg: gl.constexpr,
):  # fmt: skip
    """Input times norm weight, blocks [k_begin, k_end) of hidden, to `place` [STAGES, BLOCKS * columns, 64].

    Returns the squares of the input, [BLOCKS, batch_tile, 64], added up over the stages.
    """
    STEP: gl.constexpr = BLOCKS * cfg.fold
    LA: gl.constexpr = cfg.activation_layout
    k, row, within = tile_places(BLOCKS, cfg)
    squares = gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.float32, LA)
    x, weight = load_input(first, residual, embedding, ids, last_tokens, norm, k, row, within, k_begin, k_end, cfg)
    for stage in gl.static_range(STAGES):
        next_x, next_weight = x, weight
        if stage + 1 < STAGES:  # loaded before this stage is converted
            next_x, next_weight = load_input(
                first, residual, embedding, ids, last_tokens, norm, k, row, within,
                k_begin + (stage + 1) * STEP, k_end, cfg,
            )  # fmt: skip
        put_activations(x * norm_weights(weight, cfg), place.index(stage))
        squares += x * x
        x, weight = next_x, next_weight
    return squares


@gluon.jit
def put_relayed_input(
    first, parts, middle, embedding, ids, last_tokens, norm, place, k_begin, group, carries, flag, error,
    cfg: gl.constexpr,
):  # fmt: skip
    """put_input for one tile of a folded batch of one, whose input is polled as the sums of eight groups, `parts`
    [8, hidden]. Who `carries` also adds it, in turns of groups, to `middle`."""
    z = fresh_zero()
    H: gl.constexpr = cfg.schedule.shape.hidden
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    L: gl.constexpr = cfg.parts_layout
    LA: gl.constexpr = cfg.activation_layout
    LB: gl.constexpr = gl.SliceLayout(0, L)
    block = k_begin + (gl.arange(0, 4, layout=gl.SliceLayout(1, LB)) + z)[:, None]
    column = block * 64 + (gl.arange(0, 64, layout=gl.SliceLayout(0, LB)) + z)[None, :]
    weight = gl.load(norm + column).to(gl.float32)
    if first:
        token = token_of(ids, last_tokens, 0, True, cfg.schedule.shape.vocab_size)
        x = gl.load(embedding + token.to(gl.int64) * H + column).to(gl.float32)
    else:
        part = (gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))) + z)[:, None][:, :, None]
        x = gl.sum(flagged_values(parts + part * H + column[None, :, :], flag, error, 16), 0)
    gl.atomic_add(middle + column, x, mask=carries & (block % KV == group), sem="relaxed")
    put_activations((x * weight)[None, :, :], place.index(0))
    x = gl.convert_layout(x, gl.SliceLayout(0, LA))[None, :, :]
    return x * x


@gluon.jit
def row_factors(squares, cfg: gl.constexpr):
    """1 / rms [batch_tile] from the squares of whole rows that put_input returned."""
    sums = gl.sum(gl.sum(squares, 2), 0)
    if cfg.fold > 1:
        sums = sums * 0.0 + gl.sum(sums, 0)
    return gl.rsqrt(sums / cfg.schedule.shape.hidden + cfg.schedule.shape.norm_eps)


@gluon.jit
def inverse_rms_of(squares, LR: gl.constexpr, cfg: gl.constexpr):
    """1 / rms [1, batch_tile], in the layout LR of sums."""
    return gl.convert_layout(row_factors(squares, cfg), gl.SliceLayout(0, LR))[None, :]


@gluon.jit
def load_neurons(neurons, k, row, within, first, k_begin, k_end, flag, error, cfg: gl.constexpr):
    """Neurons of the tiles k from block first + k_begin on; flagged, they are waited for."""
    INTER: gl.constexpr = cfg.schedule.shape.intermediate
    block, batch = unfolded(k, row, k_begin, cfg)
    wanted = (block < k_end) & (batch < cfg.batch) & (within < 64)
    if cfg.relayed:
        # What is not wanted is read from the first block, which somebody writes.
        column = gl.where(wanted, (first + block) * 64 + within, first * 64 + within)
        h = flagged_values(neurons.to(gl.pointer_type(gl.int64)) + batch * INTER + column, flag, error, 8)
        h = gl.where(wanted, h, 0.0)
    else:
        column = (first + block) * 64 + within
        h = gl.load(neurons + batch * INTER + column, mask=wanted, other=0.0, cache_modifier=".cg")
    return h


@gluon.jit
def put_neurons(neurons, place, first, k_begin, k_end, flag, error, cfg: gl.constexpr):
    """Blocks first + [k_begin, k_end) of the neurons [batch, intermediate] to `place`."""
    STAGES: gl.constexpr = cfg.down_stages
    STEP: gl.constexpr = cfg.down_blocks * cfg.fold
    k, row, within = tile_places(cfg.down_blocks, cfg)
    h = load_neurons(neurons, k, row, within, first, k_begin, k_end, flag, error, cfg)
    for stage in gl.static_range(STAGES):
        next_h = h
        if stage + 1 < STAGES:
            next_h = load_neurons(neurons, k, row, within, first, k_begin + (stage + 1) * STEP, k_end, flag, error, cfg)
        put_activations(h, place.index(stage))
        h = next_h
