"""What the plain-Triton phases share: the weight stream, products of blocks, the norm's factor.

Activations are float32 [rows, columns], rows up to 8. In front of a product they are split into a bfloat16 value and
the bfloat16 rest of it, the 16 rows of one tile, so that the product is as exact as the weights are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def field(table, NAME: tl.constexpr, cfg: tl.constexpr):
    """Of this program's row of the packed schedule."""
    return tl.load(table + tl.program_id(0) * cfg.fields + cfg.field(NAME))


@triton.jit
def layer_block(table, layer, index, cfg: tl.constexpr):
    """Place in the packed weights, in blocks, of block `index` of what the program reads in a layer."""
    SIZE: tl.constexpr = cfg.schedule.slot_blocks
    slots = field(table, "layer_slots", cfg).to(tl.int64)
    slot = (layer * slots + index // SIZE) * field(table, "layer_stride", cfg) + field(table, "layer_base", cfg)
    return slot * SIZE + index % SIZE


@triton.jit
def split_tile(x, high_rows):
    """x [16, 64] float32 whose rows 8 to 15 repeat the first eight -> bfloat16: values above, rests below."""
    high = x.to(tl.bfloat16)
    rest = (x - high.to(tl.float32)).to(tl.bfloat16)
    return tl.where(high_rows, high.to(tl.float32), rest.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def block_product(tile, weights, place, cfg: tl.constexpr):
    """tile [16, 64] times the 64 x 64 block at `place`, transposed -> [16, 64] float32, both halves still apart."""
    row, column = tl.arange(0, 64), tl.arange(0, 64)
    block = tl.load(weights + place * 4096 + row[None, :] * 64 + column[:, None])
    if cfg.upcast:
        return tl.dot(tile.to(tl.float32), block.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(tile, block)


@triton.jit
def both_halves(product):
    """[16, 64] -> [8, 64]."""
    return tl.sum(tl.reshape(product, [2, 8, 64]), 0)


@triton.jit
def normed_tile(source, rows, norm, k, batch_mask, cfg: tl.constexpr):
    """Columns [64 k, 64 k + 64) of the input rows times the norm's weight, [16, 64] float32. rows: [16] row places."""
    column = k * 64 + tl.arange(0, 64)
    x = tl.load(source + rows[:, None] + column[None, :], mask=batch_mask[:, None], other=0.0).to(tl.float32)
    return x * tl.load(norm + column).to(tl.float32)[None, :]


@triton.jit
def inverse_rms(source, rows, batch_mask, cfg: tl.constexpr):
    """1 / root mean square of each input row, [16]."""
    HIDDEN: tl.constexpr = cfg.schedule.shape.hidden
    total = tl.zeros([16, 64], tl.float32)
    for k in range(cfg.schedule.shape.hidden_blocks):
        column = k * 64 + tl.arange(0, 64)
        x = tl.load(source + rows[:, None] + column[None, :], mask=batch_mask[:, None], other=0.0).to(tl.float32)
        total += x * x
    return 1.0 / tl.sqrt(tl.sum(total, 1) / HIDDEN + cfg.schedule.shape.norm_eps)


@triton.jit
def normed_product(
    source,
    rows,
    norm,
    factor,
    weights,
    table,
    layer,
    index,
    k_begin,
    k_end,
    first,
    HEAD: tl.constexpr,
    cfg: tl.constexpr,
):
    """Norm of the input rows, blocks of columns [k_begin, k_end), times a row of blocks -> [8, 64].

    Blocks from `index` on of what the program reads in the layer; for HEAD the blocks that adjoin at place `first`.
    """
    batch_mask, high_rows = batch_rows(cfg)
    acc = tl.zeros([16, 64], tl.float32)
    for k in range(k_begin, k_end):
        tile = split_tile(normed_tile(source, rows, norm, k, batch_mask, cfg), high_rows)
        if HEAD:
            place = first + k
        else:
            place = layer_block(table, layer, index + k - k_begin, cfg)
        acc += block_product(tile, weights, place, cfg)
    return both_halves(acc * factor[:, None])


@triton.jit
def batch_rows(cfg: tl.constexpr):
    """Of the 16 rows of a tile: which exist [16], and which are values, not rests [16, 1]."""
    row = tl.arange(0, 16)
    return row % 8 < cfg.schedule.batch, (row < 8)[:, None]


@triton.jit
def input_rows(ids, last_tokens, EMBEDDED: tl.constexpr, cfg: tl.constexpr):
    """Where the 16 rows of a tile begin: in the embedding, or in a buffer [batch, hidden].

    A negative id -1 - lane stands for the token that the lane sampled last.
    """
    HIDDEN: tl.constexpr = cfg.schedule.shape.hidden
    row = tl.arange(0, 16) % 8
    if EMBEDDED:
        inside = row < cfg.schedule.batch
        token = tl.load(ids + row, mask=inside, other=0).to(tl.int64)
        last = tl.load(last_tokens + (-1 - token), mask=inside & (token < 0), other=0)
        row = tl.where(token < 0, last, token)
    return row.to(tl.int64) * HIDDEN


@triton.jit
def add_rows(target, block, values, WIDTH: tl.constexpr, cfg: tl.constexpr):
    """Atomically add values [8, 64] to columns [64 block, 64 block + 64) of target [batch, WIDTH]."""
    row, column = tl.arange(0, 8), tl.arange(0, 64)
    place = row[:, None] * WIDTH + block * 64 + column[None, :]
    tl.atomic_add(target + place, values, mask=(row < cfg.schedule.batch)[:, None], sem="relaxed")


@triton.jit
def block_of(source, rows, block, cfg: tl.constexpr):
    """Columns [64 block, 64 block + 64) of the first eight rows, [8, 64] float32; rows: [16] places."""
    batch_mask, high_rows = batch_rows(cfg)
    column = block * 64 + tl.arange(0, 64)
    x = tl.load(source + rows[:, None] + column[None, :], mask=batch_mask[:, None], other=0.0).to(tl.float32)
    return both_halves(tl.where(high_rows, x, 0.0))


@triton.jit
def clear_share(buffer, COUNT: tl.constexpr, cfg: tl.constexpr):
    """This program's share of COUNT float32 zeros."""
    SHARE: tl.constexpr = (COUNT + cfg.schedule.programs - 1) // cfg.schedule.programs
    pid = tl.program_id(0)
    for begin in range(0, SHARE, 128):
        within = begin + tl.arange(0, 128)
        place = pid * SHARE + within
        tl.store(buffer + place, tl.zeros([128], tl.float32), mask=(within < SHARE) & (place < COUNT))
