"""Attention of one key/value head: rope, append to the paged cache, softmax over a share of the context, merge."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.products import (
    activations_ready,
    column_sums,
    high_and_low,
    put_columns,
    put_halves,
    put_rows,
)
from structgen.kernels.device.triton_names import block_barrier, reinterpret

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
    """Keys and values of all rows, whoever computes them, rounded to bfloat16, to their places in the cache."""
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
def layer_cache(cache_base, cache_offsets, cache_stride, layer):
    """The layer's keys and values: at equal distances, or wherever the list of offsets says."""
    offset = layer.to(gl.int64) * cache_stride
    if cache_stride == 0:
        offset = gl.multiple_of(gl.load(cache_offsets + layer), 16)
    return cache_base + offset


@gluon.jit
def tile_places(table, tile, begin, end, group, cfg: gl.constexpr):
    """Where each of the 64 tokens of a tile of four pages, from page `begin` on, has its keys, in pairs of elements.

    Tokens beyond the last page are taken from that page: they must be finite, and nobody uses them.
    """
    PAIRS: gl.constexpr = cfg.schedule.shape.head_dim // 2
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    token = gl.arange(0, 64, layout=gl.SliceLayout(1, cfg.tile_layout)) + fresh_zero()
    page = gl.minimum(begin + tile * 4 + token // 16, end - 1)
    ids = gl.load(table + gl.maximum(page, 0)).to(gl.int64)
    return (ids * 16 + token % 16) * (2 * KV * PAIRS) + group * PAIRS


@gluon.jit
def load_tile(cache, places, cfg: gl.constexpr):
    """Keys and values of one head, as pairs in int32: [64, head_dim / 2] each.

    As integers they stay untouched until they are stored; as bfloat16 they would be taken apart, and waited for, first.
    """
    PAIRS: gl.constexpr = cfg.schedule.shape.head_dim // 2
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    d = (gl.arange(0, PAIRS, layout=gl.SliceLayout(0, cfg.tile_layout)) + fresh_zero())[None, :]
    place = cache.to(gl.pointer_type(gl.int32)) + gl.multiple_of(places, 16)[:, None] + d
    return gl.load(place, cache_modifier=".cg"), gl.load(place + KV * PAIRS, cache_modifier=".cg")


@gluon.jit
def put_tile(keys, values, tiles, buffer, cfg: gl.constexpr):
    """To keys tiles[2 * buffer] and values tiles[2 * buffer + 1] in shared memory."""
    PAIRS: gl.constexpr = cfg.schedule.shape.head_dim // 2
    words = reinterpret(tiles, gl.int32, [2 * cfg.tiles, 64, PAIRS], cfg.pair_layout)
    words.index(2 * buffer).store(keys)
    words.index(2 * buffer + 1).store(values)


@gluon.jit
def attend(
    qkv, cache, table, cos, sin, group, row, position, begin, end, keys, values,
    tiles, queries, weights, own_place, alone, writes, cfg: gl.constexpr,
):  # fmt: skip
    """One share of one row. -> maximum [heads], sum [heads] and unnormalised output [head_dim, heads].

    The first tiles are in shared memory already, and the one after them in keys, values. If the row is `alone` in its
    sequence they may have been read before its own key and value were known: the share that has its position starts
    with these instead, and if it `writes` puts them in the cache. Otherwise the cache has them already. Scores are
    [64 tokens, heads], a product of the keys and the queries; like activations, queries and weights stand in two
    columns each.
    """
    z = fresh_zero()
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    HEADS: gl.constexpr = cfg.head_tile
    TILES: gl.constexpr = cfg.tiles
    LQ: gl.constexpr = cfg.append_layout
    LS: gl.constexpr = cfg.head_sums(64)
    LO: gl.constexpr = cfg.head_sums(D)
    source = qkv + (row * KV + group) * cfg.qkv_stride
    factor = input_factor(source, cfg)
    head = (gl.arange(0, HEADS, layout=gl.SliceLayout(1, LQ)) + z)[:, None]
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, LQ)) + z)[None, :]
    query = rotated(source + head * D, cos, sin, position, d, (head < G) & (d < D), D) * (factor * (LOG2E * D**-0.5))
    put_rows(query, queries)
    top = gl.full((HEADS,), EMPTY, gl.float32, gl.SliceLayout(0, LS))
    total = gl.full((64, HEADS), 0.0, gl.float32, LS)
    out = gl.full((D, HEADS), 0.0, gl.float32, LO)
    token = (gl.arange(0, 64, layout=gl.SliceLayout(1, LS)) + z)[:, None]
    until = gl.minimum(end * 16, position + 1)
    if alone & (begin * 16 <= position) & (position < end * 16):
        od = gl.arange(0, D, layout=gl.SliceLayout(1, LO)) + z
        own_key = (rotated(source + G * D, cos, sin, position, d, d < D, D) * factor).to(gl.bfloat16)
        own_value = (gl.load(source + (G + 1) * D + od, cache_modifier=".cg") * factor).to(gl.bfloat16)
        gl.store(own_place + d, own_key, mask=(d < D) & writes)
        gl.store(own_place + KV * D + od, own_value, mask=(od < D) & writes)
        score = gl.sum(query * own_key.to(gl.float32), 1)
        top = gl.convert_layout(score, gl.SliceLayout(0, LS))
        total = gl.where(token == 0, 1.0, total)
        out += own_value.to(gl.float32)[:, None]
        until = position
    count = (until - begin * 16 + 63) // 64
    places = tile_places(table, TILES + 1, begin, end, group, cfg)
    for tile in range(count):
        buffer = tile % TILES
        activations_ready()
        acc = gl.full((64, 2 * HEADS), 0.0, gl.float32, cfg.head_accumulator)
        acc = warpgroup_mma(tiles.index(2 * buffer), queries.permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        valid = begin * 16 + tile * 64 + token < until
        score = gl.where(valid, column_sums(acc, LS), EMPTY)
        new_top = gl.maximum(top, gl.max(score, 0))
        shrink = gl.exp2(top - new_top)
        weight = gl.where(valid, gl.exp2(score - new_top[None, :]), 0.0)
        total = total * shrink[None, :] + weight
        put_columns(weight, weights)
        activations_ready()
        mixed = gl.full((D, 2 * HEADS), 0.0, gl.float32, cfg.head_accumulator)
        mixed = warpgroup_mma(
            tiles.index(2 * buffer + 1).permute((1, 0)), weights.permute((1, 0)), mixed, is_async=True
        )
        mixed = warpgroup_mma_wait(0, deps=[mixed])
        out = out * gl.convert_layout(shrink, gl.SliceLayout(0, LO))[None, :] + column_sums(mixed, LO)
        top = new_top
        if tile + TILES < count:
            block_barrier()
            put_tile(keys, values, tiles, buffer, cfg)
            keys, values = load_tile(cache, places, cfg)
            places = tile_places(table, tile + TILES + 2, begin, end, group, cfg)
    return top, gl.sum(total, 0), out


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
def attend_parts(
    qkv, cache, partial, partial_max, partial_sum, table_of, tables, max_pages, positions, cos, sin,
    table, group, member, row, part, position, begin, end, keys, values, tiles, queries, weights,
    own_place, alone, cfg: gl.constexpr,
):  # fmt: skip
    """All (row, part) items of one member of a group; the first one's first tiles have been loaded.

    With more items than members no row counts as alone, but for a batch of one, where all items are of one row.
    """
    ITEMS: gl.constexpr = cfg.schedule.parts * cfg.batch
    TILES: gl.constexpr = cfg.tiles
    M: gl.constexpr = cfg.schedule.members
    B: gl.constexpr = cfg.batch
    if ITEMS <= M:
        if member < ITEMS:
            best, sums, out = attend(
                qkv, cache, table, cos, sin, group, row, position, begin, end, keys, values,
                tiles, queries, weights, own_place, alone, True, cfg,
            )  # fmt: skip
            store_partial(partial, partial_max, partial_sum, best, sums, out, group, row, part, cfg)
    else:
        for item in range(member, ITEMS, M):
            other, other_part = item % B, item // B
            other_table = tables + gl.load(table_of + other).to(gl.int32) * max_pages
            at, first, last = page_share(positions, other, other_part, cfg)
            block_barrier()
            for tile in gl.static_range(TILES):
                places = tile_places(other_table, tile, first, last, group, cfg)
                other_keys, other_values = load_tile(cache, places, cfg)
                put_tile(other_keys, other_values, tiles, tile, cfg)
            places = tile_places(other_table, TILES, first, last, group, cfg)
            other_keys, other_values = load_tile(cache, places, cfg)
            best, sums, out = attend(
                qkv, cache, other_table, cos, sin, group, other, at, first, last, other_keys, other_values,
                tiles, queries, weights, own_place, alone, True, cfg,
            )  # fmt: skip
            store_partial(partial, partial_max, partial_sum, best, sums, out, group, other, other_part, cfg)


@gluon.jit
def put_heads(sums, out, place, cfg: gl.constexpr):
    """The finished heads of a batch of one to `place` [blocks * columns, 64]."""
    BLOCKS: gl.constexpr = cfg.output_blocks * cfg.fold
    L: gl.constexpr = cfg.activation_layout
    inverse = gl.convert_layout(1.0 / sums, gl.SliceLayout(0, out.type.layout))
    x = gl.reshape(gl.permute(out * inverse[None, :], (1, 0)), (BLOCKS, 64))
    high, low = high_and_low(x)
    if cfg.fold > 1:
        high = gl.convert_layout(high, gl.SliceLayout(0, L))[None, :, :]
        low = gl.convert_layout(low, gl.SliceLayout(0, L))[None, :, :]
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
