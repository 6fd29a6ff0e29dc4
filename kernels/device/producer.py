"""The producer warp: streams a program's weights and asks for what else its next layer reads."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from structgen.kernels.device.context_prefetch import prefetch_lines, prefetch_pages
from structgen.kernels.device.context_tiles import layer_cache, page_share
from structgen.kernels.device.products import produce
from structgen.kernels.device.step_parts import RUN_HEAD, RUN_LAYERS, field


@gluon.jit
def stream_layers(
    desc, packed, ring, full, free, begun, index, table, since, until, ran,
    qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
    cfg: gl.constexpr,
):  # fmt: skip
    """Layers [since, until) of a pass, after `ran` layers of earlier ones in this launch. -> the next slot number."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    D: gl.constexpr = cfg.schedule.shape.head_dim
    B: gl.constexpr = cfg.batch
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    QS: gl.constexpr = cfg.qkv_stride
    base, stride = field(table, "layer_base", cfg), field(table, "layer_stride", cfg)
    count = field(table, "layer_slots", cfg)
    group, member = field(table, "qkv_group", cfg), field(table, "attention_member", cfg)
    row = member % B
    position, begin, end = page_share(positions, row, member // B, cfg)
    if cfg.whole_heads:
        short = position < cfg.short
        begin = gl.where(short, 0, begin)
        end = gl.where(short, position // 16 + 1, end)
    lane = gl.arange(0, 32, layout=cfg.lane_layout)
    row_table = tables + gl.load(table_of + row).to(gl.int32) * max_pages
    ids = gl.load(row_table + begin + lane, mask=begin + lane < end, other=0)
    pages = gl.minimum(end - begin, 32)
    S: gl.constexpr = cfg.slots
    SB: gl.constexpr = cfg.schedule.slot_blocks
    rows = field(table, "qkv_row_end", cfg) - field(table, "qkv_row_begin", cfg)
    first = rows * (field(table, "qkv_k_end", cfg) - field(table, "qkv_k_begin", cfg)) // SB
    rows = field(table, "output_row_end", cfg) - field(table, "output_row_begin", cfg)
    second = rows * (field(table, "output_k_end", cfg) - field(table, "output_k_begin", cfg)) // SB
    early, late = gl.maximum(S, first), S + first + second
    for layer in range(since, until):
        cache = layer_cache(cache_base, cache_offsets, cache_stride, layer)
        prefetch_lines(norms + layer * (2 * H), 1, 0, 2 * H, cfg)
        if not cfg.polled_sums:
            prefetch_lines(qkv + group * QS, B, KV * QS, QS, cfg)
            if cfg.relayed:
                prefetch_lines(qkv + (KV + group) * QS, B, KV * QS, QS, cfg)
        prefetch_lines(cos + position * D, 1, 0, D, cfg)
        prefetch_lines(sin + position * D, 1, 0, D, cfg)
        prefetch_pages(cache, ids, pages, group, cfg)
        index = produce(desc, packed, ring, full, free, begun, index, base + layer * count * stride, count, stride,
                        (ran + layer) & 1, early, late, cfg)  # fmt: skip
    return index


@gluon.jit
def stream_head(desc, packed, ring, full, free, begun, index, table, cfg: gl.constexpr):
    """-> the next slot number."""
    slots = field(table, "head_slots", cfg)
    step = field(table, "head_block_stride", cfg)
    block = field(table, "head_block_begin", cfg)
    for _ in range(field(table, "head_block_count", cfg)):
        base = field(table, "head_base", cfg) + block * field(table, "head_stride", cfg)
        index = produce(desc, packed, ring, full, free, begun, index, base, slots, 1, 0, -1, -1, cfg)
        block += step
    return index


@gluon.jit
def producer(args, cfg: gl.constexpr):
    (
    desc, packed, ring, full, free, decided, begun, decision, table, layers, mode,
    qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
    ) = args  # fmt: skip
    H: gl.constexpr = cfg.schedule.shape.hidden
    index = 0
    if (mode & RUN_LAYERS) != 0:
        index = stream_layers(
            desc, packed, ring, full, free, begun, index, table, 0, layers, 0,
            qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
            cfg,
        )  # fmt: skip
    if (mode & RUN_HEAD) != 0:
        prefetch_lines(norms + layers * (2 * H), 1, 0, H, cfg)
        mbarrier.wait(decided, 0)
        if gl.load(decision, volatile=True) == 0:
            stream_head(desc, packed, ring, full, free, begun, index, table, cfg)
