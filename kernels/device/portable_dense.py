"""The matrix products of a decode step in plain Triton, one launch a phase: Qkv, GateUp, Down, Head.

One program does its own instruction of the schedule. A launch's end is the barrier that the persistent kernel has
counters for, so nothing here waits. See instructions.py for what each one reads and adds to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structgen.kernels.device.portable_products import (
    add_rows,
    batch_rows,
    block_of,
    block_product,
    both_halves,
    clear_share,
    field,
    input_rows,
    inverse_rms,
    layer_block,
    normed_product,
    split_tile,
)


@triton.jit
def qkv_phase(table, weights, source, ids, last_tokens, norm, qkv, layer, EMBEDDED: tl.constexpr, cfg: tl.constexpr):
    """source: the embedding, or the residual [batch, hidden]; qkv [batch, kv_heads, group_rows] is added to."""
    WIDTH: tl.constexpr = cfg.schedule.shape.kv_heads * cfg.schedule.shape.group_rows
    GROUP_BLOCKS: tl.constexpr = cfg.schedule.shape.group_rows // 64
    rows = input_rows(ids, last_tokens, EMBEDDED, cfg)
    batch_mask, _ = batch_rows(cfg)
    factor = inverse_rms(source, rows, batch_mask, cfg)
    k_begin, k_end = field(table, "qkv_k_begin", cfg), field(table, "qkv_k_end", cfg)
    index = 0
    for row in range(field(table, "qkv_row_begin", cfg), field(table, "qkv_row_end", cfg)):
        y = normed_product(source, rows, norm, factor, weights, table, layer, index, k_begin, k_end, 0, False, cfg)
        add_rows(qkv, field(table, "qkv_group", cfg) * GROUP_BLOCKS + row, y, WIDTH, cfg)
        index += k_end - k_begin


@triton.jit
def gate_up_phase(
    table, weights, middle, ids, last_tokens, norm, neurons, next_middle, before, qkv, layer, cfg: tl.constexpr
):
    """silu(gate) * up of the program's neurons to `neurons` [batch, intermediate]; clears its shares of buffers."""
    BATCH: tl.constexpr = cfg.schedule.batch
    HIDDEN: tl.constexpr = cfg.schedule.shape.hidden
    KB: tl.constexpr = cfg.schedule.shape.hidden_blocks
    INTER: tl.constexpr = cfg.schedule.shape.intermediate
    clear_share(next_middle, BATCH * HIDDEN, cfg)
    clear_share(before, BATCH * HIDDEN, cfg)
    clear_share(qkv, BATCH * cfg.schedule.shape.kv_heads * cfg.schedule.shape.group_rows, cfg)
    rows = input_rows(ids, last_tokens, False, cfg)
    batch_mask, _ = batch_rows(cfg)
    factor = inverse_rms(middle, rows, batch_mask, cfg)
    index = own_blocks(table, "qkv", cfg) + own_blocks(table, "output", cfg)
    batch, column = tl.arange(0, 8), tl.arange(0, 64)
    for block in range(field(table, "gateup_neuron_begin", cfg), field(table, "gateup_neuron_end", cfg)):
        gate = normed_product(middle, rows, norm, factor, weights, table, layer, index, 0, KB, 0, False, cfg)
        up = normed_product(middle, rows, norm, factor, weights, table, layer, index + KB, 0, KB, 0, False, cfg)
        place = batch[:, None] * INTER + block * 64 + column[None, :]
        tl.store(neurons + place, gate / (1.0 + tl.exp(-gate)) * up, mask=(batch < BATCH)[:, None])
        index += 2 * KB


@triton.jit
def down_phase(table, weights, neurons, middle, ids, last_tokens, residual, layer, cfg: tl.constexpr):
    """The group's neurons times the program's blocks, and what `middle` holds of carried rows, added to `residual`."""
    KB: tl.constexpr = cfg.schedule.shape.hidden_blocks
    KV: tl.constexpr = cfg.schedule.shape.kv_heads
    rows = input_rows(ids, last_tokens, False, cfg)
    batch_mask, high_rows = batch_rows(cfg)
    inner = tl.arange(0, 16) % 8 * cfg.schedule.shape.intermediate
    k_begin, k_end = field(table, "down_k_begin", cfg), field(table, "down_k_end", cfg)
    first = field(table, "down_first_neuron", cfg) + k_begin
    neuron_blocks = field(table, "gateup_neuron_end", cfg) - field(table, "gateup_neuron_begin", cfg)
    index = own_blocks(table, "qkv", cfg) + own_blocks(table, "output", cfg) + 2 * KB * neuron_blocks
    for row in range(field(table, "down_row_begin", cfg), field(table, "down_row_end", cfg)):
        acc = tl.zeros([16, 64], tl.float32)
        for k in range(k_end - k_begin):
            column = (first + k) * 64 + tl.arange(0, 64)
            x = tl.load(neurons + inner[:, None] + column[None, :], mask=batch_mask[:, None], other=0.0)
            place = layer_block(table, layer, index + k, cfg)
            acc += block_product(split_tile(x, high_rows), weights, place, cfg)
        y = both_halves(acc)
        if (k_begin == 0) & (row % KV == field(table, "down_group", cfg)):
            y += block_of(middle, rows, row, cfg)
        add_rows(residual, row, y, cfg.schedule.shape.hidden, cfg)
        index += k_end - k_begin


@triton.jit
def head_phase(table, weights, residual, ids, last_tokens, norm, logits, cfg: tl.constexpr):
    """logits float32 [batch, vocab]."""
    VOCAB: tl.constexpr = cfg.schedule.shape.vocab_size
    KB: tl.constexpr = cfg.schedule.shape.hidden_blocks
    rows = input_rows(ids, last_tokens, False, cfg)
    batch_mask, _ = batch_rows(cfg)
    factor = inverse_rms(residual, rows, batch_mask, cfg)
    batch, column = tl.arange(0, 8), tl.arange(0, 64)
    block = field(table, "head_block_begin", cfg)
    for _ in range(field(table, "head_block_count", cfg)):
        slot = field(table, "head_base", cfg).to(tl.int64) + block * field(table, "head_stride", cfg)
        first = slot * cfg.schedule.slot_blocks
        y = normed_product(residual, rows, norm, factor, weights, table, 0, 0, 0, KB, first, True, cfg)
        token = block * 64 + column
        wanted = (batch < cfg.schedule.batch)[:, None] & (token < VOCAB)[None, :]
        tl.store(logits + batch[:, None].to(tl.int64) * VOCAB + token[None, :], y, mask=wanted)
        block += field(table, "head_block_stride", cfg)


@triton.jit
def own_blocks(table, NAME: tl.constexpr, cfg: tl.constexpr):
    """Blocks of the program's rectangle of the matrix."""
    rows = field(table, NAME + "_row_end", cfg) - field(table, NAME + "_row_begin", cfg)
    return rows * (field(table, NAME + "_k_end", cfg) - field(table, NAME + "_k_begin", cfg))
