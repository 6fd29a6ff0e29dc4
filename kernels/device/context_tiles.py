"""The context of one key/value head, a tile of four pages at a time: from the paged cache to shared memory."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.triton_names import reinterpret


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
def tile_pages(table, tile, begin, end, cfg: gl.constexpr):
    """The page of each of the 64 tokens of a tile of four pages, from page `begin` on.

    Tokens beyond the last page are taken from that page: they must be finite, and nobody uses them.
    """
    token = gl.arange(0, 64, layout=gl.SliceLayout(1, cfg.tile_layout)) + fresh_zero()
    page = gl.minimum(begin + tile * 4 + token // 16, end - 1)
    return gl.load(table + gl.maximum(page, 0))


@gluon.jit
def put_pages(place, table, begin, end, cfg: gl.constexpr):
    """The pages of the first tiles to `place`, [tiles, 4] in shared memory."""
    page = begin + gl.arange(0, 4, layout=cfg.page_layout)
    for tile in gl.static_range(4):
        place.index(tile).store(gl.load(table + gl.maximum(gl.minimum(page + tile * 4, end - 1), 0)))


@gluon.jit
def kept_pages(place, tile, cfg: gl.constexpr):
    """tile_pages of a tile whose pages are kept in shared memory."""
    L: gl.constexpr = cfg.page_rows_layout
    pages = place.index(tile + fresh_zero()).load(gl.SliceLayout(1, gl.SliceLayout(2, L)))
    token = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    pages = gl.reshape(pages[:, None] + token[None, :] * 0, (64,))
    return gl.convert_layout(pages, gl.SliceLayout(1, cfg.tile_layout), assert_trivial=True)


@gluon.jit
def load_tile(cache, pages, group, cfg: gl.constexpr):
    """Keys and values of one head, as pairs in int32: [64, head_dim / 2] each.

    As integers they stay untouched until they are stored; as bfloat16 they would be taken apart, and waited for, first.
    """
    PAIRS: gl.constexpr = cfg.schedule.shape.head_dim // 2
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    z = fresh_zero()
    token = gl.arange(0, 64, layout=gl.SliceLayout(1, cfg.tile_layout)) + z
    d = (gl.arange(0, PAIRS, layout=gl.SliceLayout(0, cfg.tile_layout)) + z)[None, :]
    places = (pages.to(gl.int64) * 16 + token % 16) * (2 * KV * PAIRS) + group * PAIRS
    place = cache.to(gl.pointer_type(gl.int32)) + gl.multiple_of(places, 16)[:, None] + d
    return gl.load(place, cache_modifier=".cg"), gl.load(place + KV * PAIRS, cache_modifier=".cg")


@gluon.jit
def put_tile(keys, values, tiles, buffer, cfg: gl.constexpr):
    """To keys tiles[2 * buffer] and values tiles[2 * buffer + 1] in shared memory."""
    PAIRS: gl.constexpr = cfg.schedule.shape.head_dim // 2
    words = reinterpret(tiles, gl.int32, [2 * cfg.tiles, 64, PAIRS], cfg.pair_layout)
    words.index(2 * buffer).store(keys)
    words.index(2 * buffer + 1).store(values)
