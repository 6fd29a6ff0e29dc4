"""Attention of one key/value head: rope, append to the paged cache, softmax over a share of the context, merge."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.products import put_activations

LOG2E = gl.constexpr(1.4426950408889634)
EMPTY = gl.constexpr(-1.0e30)


@gluon.jit
def rotated(source, cos, sin, position, d, wanted, D: gl.constexpr):
    """x * cos + swap(x) * sin; sin carries the sign of the first half. source points at the head's first value."""
    x = gl.load(source + d, mask=wanted, other=0.0, cache_modifier=".cg")
    swapped = gl.load(source + (d + D // 2) % D, mask=wanted, other=0.0, cache_modifier=".cg")
    c = gl.load(cos + position * D + d, mask=wanted, other=0.0)
    s = gl.load(sin + position * D + d, mask=wanted, other=0.0)
    return x * c + swapped * s


@gluon.jit
def input_factor(source, cfg: gl.constexpr):
    """1 / rms of the row that the values at `source`, a (row, group) of qkv, were computed from."""
    squares = gl.load(source + cfg.schedule.shape.group_rows, cache_modifier=".cg")
    return gl.rsqrt(squares / cfg.schedule.shape.hidden + cfg.schedule.shape.norm_eps)


@gluon.jit
def append(qkv, cache, positions, table_of, tables, max_pages, cos, sin, group, cfg: gl.constexpr):
    """Keys and values of all rows, rounded to bfloat16, to their places in the cache."""
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    D: gl.constexpr = cfg.schedule.shape.head_dim
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    KEY: gl.constexpr = cfg.schedule.shape.group * cfg.schedule.shape.head_dim
    L: gl.constexpr = cfg.append_layout
    row = gl.arange(0, cfg.batch_padded, layout=gl.SliceLayout(1, L)) + z
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, L)) + z)[None, :]
    position = gl.load(positions + row, mask=row < B, other=0).to(gl.int32)
    table = gl.load(table_of + row, mask=row < B, other=0).to(gl.int32)
    page = gl.load(tables + table * max_pages + position // 16, mask=row < B, other=0).to(gl.int64)
    token = page * 16 + position % 16
    wanted = (row < B)[:, None] & (d < D)
    source = qkv + (row * KV + group) * cfg.qkv_stride
    factor = input_factor(source, cfg)[:, None]
    source = source[:, None]
    key = rotated(source + KEY, cos, sin, position[:, None], d, wanted, D)
    value = gl.load(source + KEY + D + d, mask=wanted, other=0.0, cache_modifier=".cg")
    place = cache + (token * (2 * KV) + group)[:, None] * D + d
    gl.store(place, (key * factor).to(gl.bfloat16), mask=wanted)
    gl.store(place + KV * D, (value * factor).to(gl.bfloat16), mask=wanted)


@gluon.jit
def page_share(positions, row, part, cfg: gl.constexpr):
    """-> position of the row, first and last + 1 page of its `part`."""
    P: gl.constexpr = cfg.schedule.parts
    position = gl.load(positions + row).to(gl.int32)
    pages = position // 16 + 1
    share = (pages + P - 1) // P
    begin = part * share
    return position, begin, gl.minimum(begin + share, pages)


@gluon.jit
def page_ids(table, first, end):
    """Pages first and first + 1, but none from `end` on."""
    last = gl.maximum(end - 1, 0)
    return gl.load(table + gl.minimum(first, last)), gl.load(table + gl.minimum(first + 1, last))


@gluon.jit
def layer_cache(cache_base, cache_offsets, cache_stride, layer):
    """The layer's keys and values: at equal distances, or wherever the list of offsets says."""
    offset = layer.to(gl.int64) * cache_stride
    if cache_stride == 0:
        offset = gl.multiple_of(gl.load(cache_offsets + layer), 16)
    return cache_base + offset


@gluon.jit
def page_pair(cache, id0, id1, group, cfg: gl.constexpr):
    """Keys and values of one head in two pages, as pairs in int32: [16, head_dim / 2] each.

    As integers they stay untouched until they are used; as bfloat16 they would be taken apart, and waited for, at once.
    """
    z = fresh_zero()
    D: gl.constexpr = cfg.schedule.shape.head_dim // 2
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    L: gl.constexpr = gl.SliceLayout(0, cfg.pair_layout)
    token = (gl.arange(0, 16, layout=gl.SliceLayout(1, L)) + z)[:, None]
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, L)) + z)[None, :]
    within = token * (2 * KV * D) + group * D + d
    pairs = cache.to(gl.pointer_type(gl.int32))
    page0 = pairs + id0.to(gl.int64) * (16 * 2 * KV * D)
    page1 = pairs + id1.to(gl.int64) * (16 * 2 * KV * D)
    k0 = gl.load(page0 + within, cache_modifier=".cg")
    k1 = gl.load(page1 + within, cache_modifier=".cg")
    v0 = gl.load(page0 + within + KV * D, cache_modifier=".cg")
    v1 = gl.load(page1 + within + KV * D, cache_modifier=".cg")
    return k0, k1, v0, v1


@gluon.jit
def _unpacked(pairs, L: gl.constexpr):
    """[16, head_dim / 2] int32 -> [1, 16, head_dim] float32 in layout L; the threads keep what they have."""
    tokens: gl.constexpr = pairs.shape[0]
    half: gl.constexpr = pairs.shape[1]
    low = (pairs << 16).to(gl.float32, bitcast=True)
    high = (pairs & -65536).to(gl.float32, bitcast=True)
    x = gl.reshape(gl.join(low, high), (tokens, 2 * half))
    return gl.convert_layout(x, gl.SliceLayout(0, L), assert_trivial=True)[None, :, :]


@gluon.jit
def attend(
    qkv, cache, table, cos, sin, group, row,
    position, begin, end, k0, k1, v0, v1, x0, x1, y0, y1,
    own_place, writes, first_head, HEADS: gl.constexpr, cfg: gl.constexpr,
):  # fmt: skip
    """One share of one row. -> maximum, sum, and unnormalised output [HEADS, head_dim] of each query head from
    first_head on.

    k0, k1, v0, v1 are its first two pages, x0, x1, y0, y1 the next two. With a batch of one they may have been read
    before the row's own key and value were known, which then are put in here, and in the cache at own_place by the
    program that `writes`; else the cache has them.
    """
    z = fresh_zero()
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    P: gl.constexpr = cfg.schedule.parts
    L: gl.constexpr = cfg.attention_layout(HEADS)
    head = (gl.arange(0, HEADS, layout=gl.SliceLayout(1, gl.SliceLayout(1, L))) + z)[:, None]
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))) + z)[None, :]
    source = qkv + (row * KV + group) * cfg.qkv_stride
    factor = input_factor(source, cfg)
    query = rotated(source + (first_head + head) * D, cos, sin, position, d, (first_head + head < G) & (d < D), D)
    token = (gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))) + z)[None, :][:, :, None]
    kd = (gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(0, L))) + z)[None, :]
    if cfg.batch == 1:
        own_key = (rotated(source + G * D, cos, sin, position, kd, kd < D, D) * factor).to(gl.bfloat16)
        own_value = (gl.load(source + (G + 1) * D + kd, cache_modifier=".cg") * factor).to(gl.bfloat16)
        gl.store(own_place + kd, own_key, mask=(kd < D) & writes)
        gl.store(own_place + KV * D + kd, own_value, mask=(kd < D) & writes)
        own_key = own_key.to(gl.float32)[None, :, :]
        own_value = own_value.to(gl.float32)[None, :, :]
    query = (query * (factor * (LOG2E * D**-0.5)))[:, None, :]
    top = gl.full((HEADS, 16), EMPTY, gl.float32, gl.SliceLayout(2, L))
    total = gl.full((HEADS, 16), 0.0, gl.float32, gl.SliceLayout(2, L))
    out = gl.full((HEADS, 16, D), 0.0, gl.float32, L)
    slot = (gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))) + z)[None, :]
    id0, id1 = page_ids(table, begin + 4, end)
    for first in range(begin, end, 2):
        a0, a1, w0, w1 = _unpacked(k0, L), _unpacked(k1, L), _unpacked(v0, L), _unpacked(v1, L)
        if cfg.batch == 1:
            fresh0 = first * 16 + token == position
            fresh1 = first * 16 + 16 + token == position
            a0, w0 = gl.where(fresh0, own_key, a0), gl.where(fresh0, own_value, w0)
            a1, w1 = gl.where(fresh1, own_key, a1), gl.where(fresh1, own_value, w1)
        s0 = gl.sum(query * a0, 2)
        s1 = gl.sum(query * a1, 2)
        k0, k1, v0, v1 = x0, x1, y0, y1
        if first + 4 < end:
            x0, x1, y0, y1 = page_pair(cache, id0, id1, group, cfg)
            id0, id1 = page_ids(table, first + 6, end)
        valid0 = (first * 16 + slot) <= position
        valid1 = ((first + 1) * 16 + slot <= position) & (first + 1 < end)
        s0 = gl.where(valid0, s0, EMPTY)
        s1 = gl.where(valid1, s1, EMPTY)
        new_top = gl.maximum(top, gl.maximum(s0, s1))
        shrink = gl.exp2(top - new_top)
        p0 = gl.where(valid0, gl.exp2(s0 - new_top), 0.0)
        p1 = gl.where(valid1, gl.exp2(s1 - new_top), 0.0)
        total = total * shrink + p0 + p1
        out = out * shrink[:, :, None] + p0[:, :, None] * w0
        out += p1[:, :, None] * w1
        top = new_top
    best = gl.max(top, 1)
    weight = gl.exp2(top - best[:, None])
    return best, gl.sum(total * weight, 1), gl.sum(out * weight[:, :, None], 1)


@gluon.jit
def store_partial(partial, partial_max, partial_sum, best, sums, mixed, group, row, part, cfg: gl.constexpr):
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    GP: gl.constexpr = cfg.group_padded
    P: gl.constexpr = cfg.schedule.parts
    z = fresh_zero()
    item = (group * P + part) * cfg.schedule.batch_slots + row
    heads = gl.arange(0, GP, layout=best.type.layout) + z
    gl.store(partial_max + item * G + heads, best, mask=heads < G)
    gl.store(partial_sum + item * G + heads, sums, mask=heads < G)
    head = (gl.arange(0, GP, layout=gl.SliceLayout(1, mixed.type.layout)) + z)[:, None]
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, mixed.type.layout)) + z)[None, :]
    gl.store(partial + (item * G + head) * D + d, mixed, mask=(head < G) & (d < D))


@gluon.jit
def attend_parts(
    qkv, cache, partial, partial_max, partial_sum, table_of, tables, max_pages, positions, cos, sin,
    table, group, member, row, part, position, begin, end, k0, k1, v0, v1, x0, x1, y0, y1,
    own_place, cfg: gl.constexpr,
):  # fmt: skip
    """All (row, part) items of one member of a group; the first one's pages have been looked up."""
    ITEMS: gl.constexpr = cfg.schedule.parts * cfg.batch
    M: gl.constexpr = cfg.schedule.members
    B: gl.constexpr = cfg.batch
    if member < ITEMS:
        best, sums, mixed = attend(
            qkv, cache, table, cos, sin, group, row, position, begin, end, k0, k1, v0, v1, x0, x1, y0, y1,
            own_place, member == 0, 0, cfg.group_padded, cfg
        )
        store_partial(partial, partial_max, partial_sum, best, sums, mixed, group, row, part, cfg)
    if ITEMS > M:
        for item in range(member + M, ITEMS, M):
            other, other_part = item % B, item // B
            other_table = tables + gl.load(table_of + other).to(gl.int32) * max_pages
            at, first, last = page_share(positions, other, other_part, cfg)
            id0, id1 = page_ids(other_table, first, last)
            id2, id3 = page_ids(other_table, first + 2, last)
            k0, k1, v0, v1 = page_pair(cache, id0, id1, group, cfg)
            x0, x1, y0, y1 = page_pair(cache, id2, id3, group, cfg)
            best, sums, mixed = attend(
                qkv, cache, other_table, cos, sin, group, other, at, first, last, k0, k1, v0, v1,
                x0, x1, y0, y1, own_place, False, 0, cfg.group_padded, cfg
            )
            store_partial(partial, partial_max, partial_sum, best, sums, mixed, group, other, other_part, cfg)


@gluon.jit
def put_heads(sums, mixed, place, cfg: gl.constexpr):
    """The finished heads of a batch of one to `place` [blocks * columns, 64]."""
    BLOCKS: gl.constexpr = cfg.output_blocks
    L: gl.constexpr = cfg.activation_layout
    inverse = gl.convert_layout(1.0 / sums, gl.SliceLayout(1, mixed.type.layout))
    x = gl.reshape(mixed * inverse[:, None], (BLOCKS, 64))
    x = gl.convert_layout(x, gl.SliceLayout(1, L))[:, None, :]
    row = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :][:, :, None]
    put_activations(gl.where(row < 1, x, 0.0), place)


@gluon.jit
def put_merged(partial, partial_max, partial_sum, place, group, k_begin, k_end, cfg: gl.constexpr):
    """The attention output of the group's heads, columns [k_begin, k_end) in blocks, merged from all parts."""
    z = fresh_zero()
    B: gl.constexpr = cfg.batch
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    P: gl.constexpr = cfg.schedule.parts
    BS: gl.constexpr = cfg.schedule.batch_slots
    BLOCKS: gl.constexpr = cfg.output_blocks
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
        x = gl.convert_layout(mixed * inverse[:, :, None], L3)
        x = gl.convert_layout(gl.permute(x, (1, 0, 2)), cfg.activation_layout)
        x = x + gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.float32, cfg.activation_layout)
        rows = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, gl.SliceLayout(2, cfg.activation_layout))) + z
        x = gl.where((rows < B)[None, :][:, :, None], x, 0.0)
        put_activations(x, place.index(stage))
