"""Attention of a decode step in plain Triton: the phases Attention and Output, one launch each."""

from __future__ import annotations

import triton
import triton.language as tl

from structgen.kernels.device.portable_dense import own_blocks
from structgen.kernels.device.portable_products import (
    add_rows,
    batch_rows,
    block_of,
    block_product,
    both_halves,
    field,
    input_rows,
    layer_block,
    split_tile,
)


@triton.jit
def rotated(source, cos, sin, mask, cfg: tl.constexpr):
    """x * cos + swapped x * sin, where sin has the sign; source: where each row begins [N, 1]; cos, sin: likewise."""
    DIM: tl.constexpr = cfg.schedule.shape.head_dim
    d = tl.arange(0, DIM)[None, :]
    x = tl.load(source + d, mask=mask, other=0.0)
    swapped = tl.load(source + (d + DIM // 2) % DIM, mask=mask, other=0.0)
    return x * tl.load(cos + d) + swapped * tl.load(sin + d)


@triton.jit
def attention_phase(
    table, qkv, cache, partial, highest, sums, positions, table_of, tables, max_pages, cos, sin, cfg: tl.constexpr
):
    """partial [kv_heads, parts, batch_slots, group, head_dim]; highest and sums the same without head_dim."""
    BATCH: tl.constexpr = cfg.schedule.batch
    PARTS: tl.constexpr = cfg.schedule.parts
    KV: tl.constexpr = cfg.schedule.shape.kv_heads
    DIM: tl.constexpr = cfg.schedule.shape.head_dim
    GROUP: tl.constexpr = cfg.schedule.shape.group
    ROWS: tl.constexpr = cfg.schedule.shape.group_rows
    group = field(table, "attention_group", cfg)
    d = tl.arange(0, DIM)[None, :]
    row = tl.arange(0, 8)
    inside = row < BATCH
    # Everybody appends the keys and values of all rows: the same bytes, and what this program reads it has written.
    position = tl.load(positions + row, mask=inside, other=0)
    pages = tables + tl.load(table_of + row, mask=inside, other=0) * max_pages + position // 16
    token = tl.load(pages, mask=inside, other=0).to(tl.int64) * 16 + position % 16
    source = (qkv + (row * KV + group) * ROWS + GROUP * DIM)[:, None]
    place = cache + (token * (2 * KV) + group)[:, None] * DIM + d
    key = rotated(source, (cos + position * DIM)[:, None], (sin + position * DIM)[:, None], inside[:, None], cfg)
    tl.store(place, key.to(cache.dtype.element_ty), mask=inside[:, None])
    value = tl.load(source + DIM + d, mask=inside[:, None], other=0.0)
    tl.store(place + KV * DIM, value.to(cache.dtype.element_ty), mask=inside[:, None])
    tl.debug_barrier()
    for item in range(field(table, "attention_member", cfg), PARTS * BATCH, field(table, "attention_members", cfg)):
        attend_part(
            qkv, cache, partial, highest, sums, positions, table_of, tables, max_pages, cos, sin,
            group, item % BATCH, item // BATCH, cfg,
        )  # fmt: skip


@triton.jit
def attend_part(
    qkv, cache, partial, highest, sums, positions, table_of, tables, max_pages, cos, sin,
    group, row, part, cfg: tl.constexpr,
):  # fmt: skip
    """One share of one row's context."""
    KV: tl.constexpr = cfg.schedule.shape.kv_heads
    DIM: tl.constexpr = cfg.schedule.shape.head_dim
    GROUP: tl.constexpr = cfg.schedule.shape.group
    PARTS: tl.constexpr = cfg.schedule.parts
    HEADS: tl.constexpr = cfg.heads_padded
    head, slot = tl.arange(0, HEADS), tl.arange(0, 16)
    d = tl.arange(0, DIM)[None, :]
    real = (head < GROUP)[:, None]
    position = tl.load(positions + row)
    used = position // 16 + 1
    share = (used + PARTS - 1) // PARTS
    source = (qkv + (row * KV + group) * cfg.schedule.shape.group_rows + head * DIM)[:, None]
    query = rotated(source, cos + position * DIM, sin + position * DIM, real, cfg) * (1.4426950408889634 * DIM**-0.5)
    top = tl.full([HEADS], -1.0e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, DIM], tl.float32)
    pages = tables + tl.load(table_of + row) * max_pages
    for page in range(part * share, tl.minimum(part * share + share, used)):
        token = tl.load(pages + page).to(tl.int64) * 16 + slot
        here = page * 16 + slot <= position
        keys = cache + (token * (2 * KV) + group)[:, None] * DIM + d
        k = tl.load(keys, mask=here[:, None], other=0.0).to(tl.float32)
        v = tl.load(keys + KV * DIM, mask=here[:, None], other=0.0).to(tl.float32)
        score = tl.where(here[None, :], tl.sum(query[:, None, :] * k[None, :, :], 2), -1.0e30)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.where(here[None, :], tl.exp2(score - higher[:, None]), 0.0)
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * v[None, :, :], 1)
        top = higher
    at = ((group * PARTS + part) * cfg.schedule.batch_slots + row) * GROUP + head
    tl.store(highest + at, top, mask=head < GROUP)
    tl.store(sums + at, total, mask=head < GROUP)
    tl.store(partial + at[:, None] * DIM + d, acc, mask=real)


@triton.jit
def output_phase(
    table, weights, partial, highest, sums, source, ids, last_tokens, middle, layer,
    EMBEDDED: tl.constexpr, cfg: tl.constexpr,
):  # fmt: skip
    """The group's merged attention times the program's blocks, and the input of carried rows, added to `middle`."""
    KV: tl.constexpr = cfg.schedule.shape.kv_heads
    rows = input_rows(ids, last_tokens, EMBEDDED, cfg)
    _, high_rows = batch_rows(cfg)
    group = field(table, "output_group", cfg)
    k_begin, k_end = field(table, "output_k_begin", cfg), field(table, "output_k_end", cfg)
    index = own_blocks(table, "qkv", cfg)
    for row in range(field(table, "output_row_begin", cfg), field(table, "output_row_end", cfg)):
        acc = tl.zeros([16, 64], tl.float32)
        for k in range(k_begin, k_end):
            x = merged(partial, highest, sums, group, k, cfg)
            place = layer_block(table, layer, index + k - k_begin, cfg)
            acc += block_product(split_tile(x, high_rows), weights, place, cfg)
        y = both_halves(acc)
        if (k_begin == 0) & (row % KV == group):
            y += block_of(source, rows, row, cfg)
        add_rows(middle, row, y, cfg.schedule.shape.hidden, cfg)
        index += k_end - k_begin


@triton.jit
def merged(partial, highest, sums, group, k, cfg: tl.constexpr):
    """Columns [64 k, 64 k + 64) of the group's attention output, [16, 64], from all parts of the context."""
    DIM: tl.constexpr = cfg.schedule.shape.head_dim
    GROUP: tl.constexpr = cfg.schedule.shape.group
    PARTS: tl.constexpr = cfg.schedule.parts
    batch_mask, _ = batch_rows(cfg)
    row = tl.arange(0, 16) % 8
    column = k * 64 % DIM + tl.arange(0, 64)
    top = tl.full([16], -1.0e30, tl.float32)
    for part in range(PARTS):
        at = ((group * PARTS + part) * cfg.schedule.batch_slots + row) * GROUP + k * 64 // DIM
        top = tl.maximum(top, tl.load(highest + at, mask=batch_mask, other=-1.0e30))
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, 64], tl.float32)
    for part in range(PARTS):
        at = ((group * PARTS + part) * cfg.schedule.batch_slots + row) * GROUP + k * 64 // DIM
        weight = tl.exp2(tl.load(highest + at, mask=batch_mask, other=-1.0e30) - top)
        total += weight * tl.load(sums + at, mask=batch_mask, other=0.0)
        values = partial + at[:, None] * DIM + column[None, :]
        acc += weight[:, None] * tl.load(values, mask=batch_mask[:, None], other=0.0)
    return acc / tl.where(total > 0, total, 1.0)[:, None]
