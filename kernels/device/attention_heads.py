"""Queries, keys and values of one key/value head out of the sums of Qkv: norm factor, rope, append to the cache."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero
from structgen.kernels.device.nonzero import polled_sums

LOG2E = gl.constexpr(1.4426950408889634)


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
def polled_heads(qkv, cos, sin, position, group, error, cfg: gl.constexpr):
    """A batch of one's queries, scaled, and its key and value in rows 0 and 1: [heads, head_dim] each, from the parts
    of their sums, as soon as these are there."""
    z = fresh_zero()
    D: gl.constexpr = cfg.schedule.shape.head_dim
    G: gl.constexpr = cfg.schedule.shape.group
    L: gl.constexpr = cfg.heads_layout
    head = (gl.arange(0, G, layout=gl.SliceLayout(1, L)) + z)[:, None]
    d = (gl.arange(0, D, layout=gl.SliceLayout(0, L)) + z)[None, :]
    c = gl.load(cos + position * D + d)
    s = gl.load(sin + position * D + d)
    row = (gl.arange(0, G, layout=gl.SliceLayout(1, cfg.quads_layout)) + z)[:, None]
    quad = (gl.arange(0, D // 4, layout=gl.SliceLayout(0, cfg.quads_layout)) + z)[None, :]
    source = qkv + group * (cfg.qkv_parts * cfg.qkv_stride)
    place = source + quad * 4
    first, first_swapped, second, second_swapped, squares = polled_sums(
        place + row * D, place + gl.minimum(row + G, G + 1) * D, source + (G + 2) * D, error
    )
    squares = gl.join(gl.join(squares, squares), gl.join(squares, squares))
    squares = gl.reshape(squares, (G, D))
    factor = gl.rsqrt(squares / cfg.schedule.shape.hidden + cfg.schedule.shape.norm_eps)
    factor = gl.convert_layout(factor, L, assert_trivial=True)
    first = gl.convert_layout(first, L, assert_trivial=True)
    first_swapped = gl.convert_layout(first_swapped, L, assert_trivial=True)
    second = gl.convert_layout(second, L, assert_trivial=True)
    second_swapped = gl.convert_layout(second_swapped, L, assert_trivial=True)
    query = (first * c + first_swapped * s) * (factor * (LOG2E * D**-0.5))
    own = gl.where(head == 0, second * c + second_swapped * s, second) * factor
    return query, own
