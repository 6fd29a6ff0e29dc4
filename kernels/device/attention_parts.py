"""Parts of the attention on their way from the programs that computed them to those that multiply them by Output."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.nonzero import joined, polled_parts, put_nonzero
from structgen.kernels.device.products import high_and_low, put_halves
from structgen.kernels.device.triton_names import block_barrier

EMPTY = gl.constexpr(-1.0e30)


@gluon.jit
def store_partial(partial, partial_max, partial_sum, best, sums, out, group, row, part, cfg: gl.constexpr):
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    P: gl.constexpr = cfg.schedule.parts
    LO: gl.constexpr = out.type.layout
    z = fresh_zero()
    item = (group * P + part) * cfg.schedule.batch_slots + row
    heads = gl.arange(0, cfg.head_tile, layout=best.type.layout) + z
    gl.store(partial_max + item * G + heads, best, mask=heads < G)
    gl.store(partial_sum + item * G + heads, sums, mask=heads < G)
    head = (gl.arange(0, cfg.head_tile, layout=gl.SliceLayout(0, LO)) + z)[None, :]
    d = (gl.arange(0, D, layout=gl.SliceLayout(1, LO)) + z)[:, None]
    gl.store(partial + (item * G + head) * D + d, out, mask=(head < G) & (d < D))


@gluon.jit
def part_record(parts, group, part, row, head, cfg: gl.constexpr):
    """Where, in the parts of a layer that are polled, one of a head lies: its output, its maximum, its sum."""
    item = (group * cfg.schedule.parts + part) * cfg.schedule.batch_slots + row
    return parts + (item * cfg.schedule.shape.group + head) * cfg.part_values


@gluon.jit
def put_part(parts, best, sums, out, group, row, part, cfg: gl.constexpr):
    """One item's part to where it is polled."""
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    LO: gl.constexpr = out.type.layout
    z = fresh_zero()
    head = (gl.arange(0, cfg.head_tile, layout=gl.SliceLayout(0, LO)) + z)[None, :]
    d = (gl.arange(0, D, layout=gl.SliceLayout(1, LO)) + z)[:, None]
    put_nonzero(part_record(parts, group, part, row, head, cfg) + d, out, (head < G) & (d < D))
    heads = gl.arange(0, cfg.head_tile, layout=best.type.layout) + z
    ends = part_record(parts, group, part, row, heads, cfg) + D
    put_nonzero(ends, best, heads < G)
    put_nonzero(ends + 1, sums, heads < G)


@gluon.jit
def leave_part(partial, partial_max, partial_sum, best, sums, out, group, row, part, cfg: gl.constexpr):
    if cfg.polled_parts:
        put_part(partial, best, sums, out, group, row, part, cfg)
    else:
        store_partial(partial, partial_max, partial_sum, best, sums, out, group, row, part, cfg)


@gluon.jit
def put_heads(sums, out, place, cfg: gl.constexpr):
    """The finished heads of a batch of one to `place` [blocks * columns, 64]."""
    BLOCKS: gl.constexpr = cfg.output_blocks * cfg.fold
    L: gl.constexpr = cfg.activation_layout
    inverse = gl.convert_layout(1.0 / sums, gl.SliceLayout(0, out.type.layout))
    x = gl.reshape(gl.permute(out * inverse[None, :], (1, 0)), (BLOCKS, 64))
    high, low = high_and_low(x)
    if cfg.fold > 1:
        high = gl.reshape(high, (BLOCKS // cfg.fold, cfg.fold, 64))
        low = gl.reshape(low, (BLOCKS // cfg.fold, cfg.fold, 64))
    else:
        row = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :][:, :, None]
        none = gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.bfloat16, L)
        high = gl.where(row < 1, gl.convert_layout(high, gl.SliceLayout(1, L))[:, None, :], none)
        low = gl.where(row < 1, gl.convert_layout(low, gl.SliceLayout(1, L))[:, None, :], none)
    block_barrier()
    put_halves(high, low, place)


@gluon.jit
def put_merged(partial, partial_max, partial_sum, place, group, k_begin, k_end, cfg: gl.constexpr):
    """The attention output of the group's heads, columns [k_begin, k_end) in blocks, merged from all parts."""
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    P: gl.constexpr = cfg.schedule.parts
    BS: gl.constexpr = cfg.schedule.batch_slots
    BLOCKS: gl.constexpr = cfg.output_blocks * cfg.fold
    L: gl.constexpr = cfg.merge_layout
    LS: gl.constexpr = gl.SliceLayout(3, L)
    L3: gl.constexpr = gl.SliceLayout(0, L)
    part = (gl.arange(0, P, layout=gl.SliceLayout(1, gl.SliceLayout(2, LS))) + z)[:, None][:, :, None]
    row = (gl.arange(0, BS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LS))) + z)[None, :][:, :, None]
    k = (gl.arange(0, BLOCKS, layout=gl.SliceLayout(0, gl.SliceLayout(1, LS))) + z)[None, :][:, None, :]
    within = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(0, L))))[None, :][None, :, :][
        None, :, :, :
    ]
    STAGES: gl.constexpr = cfg.output_stages
    for stage in gl.static_range(STAGES):
        block = k_begin + stage * BLOCKS + k
        wanted = (row < B) & (block < k_end)
        item = ((group * P + part) * BS + row) * (G * D) + block * 64
        value = gl.load(
            partial + item[:, :, :, None] + within,
            mask=wanted[:, :, :, None] & (within < 64),
            other=0.0,
            cache_modifier=".cg",
        )
        top = gl.load(partial_max + item // D, mask=wanted, other=EMPTY, cache_modifier=".cg")
        total = gl.load(partial_sum + item // D, mask=wanted, other=0.0, cache_modifier=".cg")
        best = gl.max(top, 0)
        weight = gl.exp2(top - best[None, :, :])
        sums = gl.sum(total * weight, 0)
        mixed = gl.sum(value * weight[:, :, :, None], 0)
        inverse = gl.where(sums > 0, 1.0 / sums, 0.0)
        inverse = gl.convert_layout(inverse, gl.SliceLayout(2, L3))
        high, low = high_and_low(gl.permute(mixed * inverse[:, :, None], (1, 0, 2)))
        if cfg.fold > 1:
            high = gl.reshape(high, (cfg.output_blocks, cfg.fold, 64))
            low = gl.reshape(low, (cfg.output_blocks, cfg.fold, 64))
            high = gl.convert_layout(high, cfg.activation_layout)
            low = gl.convert_layout(low, cfg.activation_layout)
        else:
            rows = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, cfg.activation_layout)))
            real = (rows < B)[None, :][:, :, None]
            none = gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.bfloat16, cfg.activation_layout)
            high = gl.where(real, gl.convert_layout(high, cfg.activation_layout), none)
            low = gl.where(real, gl.convert_layout(low, cfg.activation_layout), none)
        put_halves(high, low, place.index(stage))


@gluon.jit
def put_merged_polled(parts, place, group, k_begin, error, cfg: gl.constexpr):
    """put_merged, from block k_begin on, of parts that put_part put, as soon as they are there."""
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    D: gl.constexpr = cfg.schedule.shape.head_dim
    P: gl.constexpr = cfg.schedule.parts
    BS: gl.constexpr = cfg.schedule.batch_slots
    BLOCKS: gl.constexpr = cfg.merged_blocks
    STAGES: gl.constexpr = cfg.output_stages
    LAST: gl.constexpr = cfg.schedule.shape.group_blocks - 1
    L: gl.constexpr = cfg.polled_layout
    L3: gl.constexpr = gl.SliceLayout(3, L)
    part = (gl.arange(0, P, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3))) + z)[:, None][:, :, None][:, :, :, None]
    row = (gl.arange(0, BS, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3))) + z)[None, :][:, :, None][:, :, :, None]
    k = (gl.arange(0, BLOCKS, layout=gl.SliceLayout(0, gl.SliceLayout(1, L3))) + z)[None, :][:, None, :][:, :, :, None]
    quad = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L)))) + z
    quad = quad[None, :][:, None, :][:, :, None, :]
    block_barrier()  # all warps are done with what lies in place
    for stage in gl.static_range(STAGES):
        # Rows and blocks that nobody wants are taken from others, which somebody writes.
        column = gl.minimum(k_begin + stage * BLOCKS + k, LAST) * 64
        record = part_record(parts, group, part, gl.minimum(row, B - 1), column // D, cfg)
        a, b, c, d, top, total = polled_parts(
            record + column % D + quad * 4, record + quad * 0 + D, error, cfg.merged_words
        )
        weight = gl.exp2(top - gl.max(top, 0)[None, :, :, :])
        inverse = 1.0 / gl.sum(total * weight, 0)
        a, b = gl.sum(a * weight, 0) * inverse, gl.sum(b * weight, 0) * inverse
        c, d = gl.sum(c * weight, 0) * inverse, gl.sum(d * weight, 0) * inverse
        x = joined(a, b, c, d)
        if cfg.fold > 1:
            x = gl.reshape(x, (cfg.output_blocks, cfg.fold, 64))
        else:
            x = gl.permute(x, (1, 0, 2))
        high, low = high_and_low(x)
        put_halves(high, low, place.index(stage))
