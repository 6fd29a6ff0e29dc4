"""Attention of one key/value head: softmax over a share of the context, two products a tile."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from structgen.kernels.device.attention_heads import LOG2E, input_factor, rotated
from structgen.kernels.device.attention_parts import EMPTY, leave_part
from structgen.kernels.device.context_tiles import load_tile, page_share, put_tile, tile_pages
from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.products import activations_ready, column_sums, put_columns, put_rows
from structgen.kernels.device.triton_names import block_barrier, reinterpret


@gluon.jit
def _attend_tiles(
    cache, table, group, begin, end, until, keys, values, tiles, queries, weights, top, sums, out, cfg: gl.constexpr
):
    """Add the tokens from page `begin` to token `until` to maximum, sum and output, tile by tile."""
    D: gl.constexpr = cfg.schedule.shape.head_dim
    HEADS: gl.constexpr = cfg.head_tile
    TILES: gl.constexpr = cfg.tiles
    LS: gl.constexpr = cfg.head_sums(64)
    LO: gl.constexpr = cfg.head_sums(D)
    token = (gl.arange(0, 64, layout=gl.SliceLayout(1, LS)) + fresh_zero())[:, None]
    total = gl.full((64, HEADS), 0.0, gl.float32, LS)
    count = (until - begin * 16 + 63) // 64
    pages = tile_pages(table, TILES + 1, begin, end, cfg)
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
        sums *= shrink
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
            keys, values = load_tile(cache, pages, group, cfg)
            pages = tile_pages(table, tile + TILES + 2, begin, end, cfg)
    return top, sums + gl.sum(total, 0), out


@gluon.jit
def _attend_pairs(
    cache, table, group, begin, end, until, keys, values, more_keys, more_values,
    tiles, queries, weights, top, sums, out, cfg: gl.constexpr,
):  # fmt: skip
    """As _attend_tiles, two tiles at once: what one costs is mostly that its steps wait for each other.

    The weights of the second one stand where the keys of the first one were.
    """
    D: gl.constexpr = cfg.schedule.shape.head_dim
    HEADS: gl.constexpr = cfg.head_tile
    LS: gl.constexpr = cfg.head_sums(64)
    LO: gl.constexpr = cfg.head_sums(D)
    few: gl.constexpr = 64 * D * 4 // (2 * HEADS * 64)
    query_place = reinterpret(queries, gl.bfloat16, [1, 2 * HEADS, D], cfg.weight_layout)
    weight_place = reinterpret(weights, gl.bfloat16, [1, 2 * HEADS, 64], cfg.weight_layout)
    more_weight_place = reinterpret(tiles, gl.bfloat16, [few, 2 * HEADS, 64], cfg.weight_layout)
    token = (gl.arange(0, 64, layout=gl.SliceLayout(1, LS)) + fresh_zero())[:, None]
    count = (until - begin * 16 + 127) // 128
    for pair in range(count):
        z = fresh_zero()
        activations_ready()
        acc = gl.full((64, 2 * HEADS), 0.0, gl.float32, cfg.head_accumulator)
        more = acc
        acc = warpgroup_mma(tiles.index(z), query_place.index(z).permute((1, 0)), acc, is_async=True)
        more = warpgroup_mma(tiles.index(z + 2), query_place.index(z).permute((1, 0)), more, is_async=True)
        acc, more = warpgroup_mma_wait(0, deps=[acc, more])
        at = begin * 16 + pair * 128 + token
        score = gl.where(at < until, column_sums(acc, LS), EMPTY)
        more_score = gl.where(at + 64 < until, column_sums(more, LS), EMPTY)
        new_top = gl.maximum(top, gl.max(gl.maximum(score, more_score), 0))
        shrink = gl.exp2(top - new_top)
        weight = gl.where(at < until, gl.exp2(score - new_top[None, :]), 0.0)
        more_weight = gl.where(at + 64 < until, gl.exp2(more_score - new_top[None, :]), 0.0)
        put_columns(weight, weight_place.index(z))
        put_columns(
            more_weight, more_weight_place.index(z)
        )  # all warps have read the keys: they have met in the maximum
        activations_ready()
        mixed = gl.full((D, 2 * HEADS), 0.0, gl.float32, cfg.head_accumulator)
        mixed = warpgroup_mma(
            tiles.index(z + 1).permute((1, 0)), weight_place.index(z).permute((1, 0)), mixed, is_async=True
        )
        mixed = warpgroup_mma(
            tiles.index(z + 3).permute((1, 0)), more_weight_place.index(z).permute((1, 0)), mixed, is_async=True
        )
        sums = sums * shrink + gl.sum(weight + more_weight, 0)  # while the product is under way
        mixed = warpgroup_mma_wait(0, deps=[mixed])
        out = out * gl.convert_layout(shrink, gl.SliceLayout(0, LO))[None, :] + column_sums(mixed, LO)
        top = new_top
        if pair + 1 < count:
            block_barrier()
            put_tile(keys, values, tiles, 0, cfg)
            put_tile(more_keys, more_values, tiles, 1, cfg)
            if pair + 2 < count:
                pages = tile_pages(table, 2 * pair + 4, begin, end, cfg)
                keys, values = load_tile(cache, pages, group, cfg)
                pages = tile_pages(table, 2 * pair + 5, begin, end, cfg)
                more_keys, more_values = load_tile(cache, pages, group, cfg)
    return top, sums, out


@gluon.jit
def _own_token(query, own, place, own_place, writes, cfg: gl.constexpr):
    """Scores [heads] and value [head_dim] of a batch of one's own token, by way of `place`, [2 * heads, 64] in shared
    memory; its key and value to the cache if it `writes`."""
    D: gl.constexpr = cfg.schedule.shape.head_dim
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    L: gl.constexpr = cfg.heads_layout
    rows = reinterpret(place, gl.bfloat16, [2, query.shape[0], D], cfg.row_place_layout)
    lines = reinterpret(place, gl.bfloat16, [2 * query.shape[0], D], cfg.kept_layout)
    own = own.to(gl.bfloat16)
    rows.index(0).store(own)
    row = gl.arange(0, query.shape[0], layout=gl.SliceLayout(1, L))[:, None]
    d = gl.arange(0, D, layout=gl.SliceLayout(0, L))[None, :]
    gl.store(own_place + row * (KV * D) + d, own, mask=(row < 2) & writes)
    block_barrier()
    key = lines.index(0).load(gl.SliceLayout(0, L))
    value = lines.index(1).load(gl.SliceLayout(1, cfg.head_sums(D)))
    return gl.sum(query * key.to(gl.float32)[None, :], 1), value.to(gl.float32)


@gluon.jit
def attend(
    qkv, own, cache, table, cos, sin, group, row, position, begin, end, keys, values, more_keys, more_values,
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
    LQ: gl.constexpr = cfg.append_layout
    LS: gl.constexpr = cfg.head_sums(64)
    LO: gl.constexpr = cfg.head_sums(D)
    top = gl.full((HEADS,), EMPTY, gl.float32, gl.SliceLayout(0, LS))
    sums = gl.full((HEADS,), 0.0, gl.float32, gl.SliceLayout(0, LS))
    out = gl.full((D, HEADS), 0.0, gl.float32, LO)
    until = gl.minimum(end * 16, position + 1)
    begins = alone & (begin * 16 <= position) & (position < end * 16)
    if cfg.polled_sums:
        put_rows(qkv, queries)
        if begins:
            score, value = _own_token(qkv, own, weights, own_place, writes, cfg)
            top = gl.convert_layout(score, gl.SliceLayout(0, LS))
            sums += 1.0
            out += value[:, None]
            until = position
    else:
        source = qkv + (row * KV + group) * cfg.qkv_stride
        factor = input_factor(source, cfg)
        head = (gl.arange(0, HEADS, layout=gl.SliceLayout(1, LQ)) + z)[:, None]
        d = (gl.arange(0, D, layout=gl.SliceLayout(0, LQ)) + z)[None, :]
        od = gl.arange(0, D, layout=gl.SliceLayout(1, LO)) + z
        query = rotated(source + head * D, cos, sin, position, d, (head < G) & (d < D), D)
        query *= factor * (LOG2E * D**-0.5)
        put_rows(query, queries)
        if begins:
            key = (rotated(source + G * D, cos, sin, position, d, d < D, D) * factor).to(gl.bfloat16)
            value = (gl.load(source + (G + 1) * D + od, cache_modifier=".cg") * factor).to(gl.bfloat16)
            gl.store(own_place + d, key, mask=(d < D) & writes)
            gl.store(own_place + KV * D + od, value, mask=(od < D) & writes)
            score = gl.sum(query * key.to(gl.float32), 1)
            top = gl.convert_layout(score, gl.SliceLayout(0, LS))
            sums += 1.0
            out += value.to(gl.float32)[:, None]
            until = position
    if cfg.paired:
        top, sums, out = _attend_pairs(
            cache, table, group, begin, end, until, keys, values, more_keys, more_values,
            tiles, queries, weights, top, sums, out, cfg,
        )  # fmt: skip
    else:
        top, sums, out = _attend_tiles(
            cache, table, group, begin, end, until, keys, values, tiles, queries, weights, top, sums, out, cfg
        )
    return top, sums, out


@gluon.jit
def attend_parts(
    qkv, own, cache, partial, partial_max, partial_sum, table_of, tables, max_pages, positions, cos, sin,
    table, group, member, row, part, position, begin, end, keys, values, more_keys, more_values,
    tiles, queries, weights, own_place, alone, cfg: gl.constexpr,
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
                qkv, own, cache, table, cos, sin, group, row, position, begin, end, keys, values,
                more_keys, more_values, tiles, queries, weights, own_place, alone, True, cfg,
            )  # fmt: skip
            leave_part(partial, partial_max, partial_sum, best, sums, out, group, row, part, cfg)
    else:
        for item in range(member, ITEMS, M):
            other, other_part = item % B, item // B
            other_table = tables + gl.load(table_of + other).to(gl.int32) * max_pages
            at, first, last = page_share(positions, other, other_part, cfg)
            block_barrier()
            for tile in gl.static_range(TILES):
                pages = tile_pages(other_table, tile, first, last, cfg)
                other_keys, other_values = load_tile(cache, pages, group, cfg)
                put_tile(other_keys, other_values, tiles, tile, cfg)
            pages = tile_pages(other_table, TILES, first, last, cfg)
            other_keys, other_values = load_tile(cache, pages, group, cfg)
            later_keys, later_values = other_keys, other_values
            if cfg.paired:
                pages = tile_pages(other_table, TILES + 1, first, last, cfg)
                later_keys, later_values = load_tile(cache, pages, group, cfg)
            best, sums, out = attend(
                qkv, own, cache, other_table, cos, sin, group, other, at, first, last, other_keys, other_values,
                later_keys, later_values, tiles, queries, weights, own_place, alone, True, cfg,
            )  # fmt: skip
            leave_part(partial, partial_max, partial_sum, best, sums, out, group, other, other_part, cfg)
