"""The products of a layer whose sums several programs add up: rows of Qkv, of Output and of Down, and where they go."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.flagged import put_flagged
from structgen.kernels.device.nonzero import put_nonzero
from structgen.kernels.device.norm import input_values
from structgen.kernels.device.products import begin_row, finish_row, row_product, staged_product


@gluon.jit
def put_sums(place, total, wanted, cfg: gl.constexpr):
    """Sums of Qkv: a part of them, which is polled, or added to those of other programs."""
    if cfg.polled_sums:
        put_nonzero(place, total, wanted)
    else:
        gl.atomic_add(place, total, mask=wanted, sem="relaxed")


@gluon.jit
def multiply_qkv(
    ring, full, free, slot_trace, index, activations, place, rows, blocks, wanted, cfg: gl.constexpr
):  # fmt: skip
    """`rows` rows of Qkv, of `blocks` blocks each, their sums to `place` and 64 further each. -> next slot index."""
    ROWS: gl.constexpr = cfg.qkv_rows
    if ROWS > 0:
        index, o0, o1, o2, o3 = begin_row(ring, full, slot_trace, index, activations, cfg)
        for r in gl.static_range(1, ROWS):
            index, n0, n1, n2, n3 = begin_row(ring, full, slot_trace, index, activations, cfg)
            total = finish_row(free, index - 2, o0, o1, o2, o3, 4, cfg)
            put_sums(place + (r - 1) * 64, total, wanted, cfg)
            o0, o1, o2, o3 = n0, n1, n2, n3
        total = finish_row(free, index, o0, o1, o2, o3, 0, cfg)
        put_sums(place + (ROWS - 1) * 64, total, wanted, cfg)
    else:
        for _ in range(rows):
            index, total = row_product(ring, full, free, slot_trace, index, activations, blocks, cfg)
            gl.atomic_add(place, total, mask=wanted, sem="relaxed")
            place += 64
    return index


@gluon.jit
def multiply_output(
    ring, full, free, slot_trace, index, activations, middle, lowest, before, embedding, ids, last_tokens,
    group, row_begin, row_end, k_begin, k_end, wanted, batch_row, sums_row, cfg: gl.constexpr,
):  # fmt: skip
    """Rows of Output, added to `middle`; in turns of groups also the layer's input. -> next slot index."""
    B: gl.constexpr = cfg.batch
    H: gl.constexpr = cfg.schedule.shape.hidden
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    ROWS: gl.constexpr = cfg.output_rows
    CARRIES: gl.constexpr = not cfg.relayed  # else Qkv does it
    if ROWS > 0:
        index, o0, o1, o2, o3 = begin_row(ring, full, slot_trace, index, activations, cfg)
        for r in gl.static_range(ROWS):
            column = (row_begin + r) * 64 + sums_row
            carried = wanted & ((row_begin + r) % KV == group) & (k_begin == 0) & CARRIES
            carry = input_values(lowest, before, embedding, ids, last_tokens, batch_row, column,
                                 carried, batch_row < B, cfg)  # fmt: skip
            if r + 1 < ROWS:
                index, n0, n1, n2, n3 = begin_row(ring, full, slot_trace, index, activations, cfg)
                total = finish_row(free, index - 2, o0, o1, o2, o3, 4, cfg) + carry
                o0, o1, o2, o3 = n0, n1, n2, n3
            else:
                total = finish_row(free, index, o0, o1, o2, o3, 0, cfg) + carry
            gl.atomic_add(middle + batch_row * H + column, total, mask=wanted, sem="relaxed")
    else:
        for r in range(row_begin, row_end):
            column = r * 64 + sums_row
            carried = wanted & (r % KV == group) & (k_begin == 0) & CARRIES
            carry = input_values(lowest, before, embedding, ids, last_tokens, batch_row, column,
                                 carried, batch_row < B, cfg)  # fmt: skip
            index, total = row_product(ring, full, free, slot_trace, index, activations, k_end - k_begin, cfg)
            gl.atomic_add(middle + batch_row * H + column, total + carry, mask=wanted, sem="relaxed")
    return index


@gluon.jit
def multiply_down(
    ring, full, free, slot_trace, index, activations, staged, odd, middle, after, relays, flag, relays_on,
    group, row_begin, row_end, k_begin, k_end, wanted, batch_row, sums_row, cfg: gl.constexpr,
):  # fmt: skip
    """Rows of Down, and in turns of groups what is in `middle`: to the group's part of `relays`, with `flag`, where
    they are relayed and `relays_on`, else added to `after`. -> next slot index."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    FIRST: gl.constexpr = cfg.stages + 1
    for r in range(row_begin, row_end):
        place = batch_row * H + (r * 64 + sums_row)
        carried = wanted & (r % KV == group) & (k_begin == 0)
        carry = gl.load(middle + place, mask=carried, other=0.0, cache_modifier=".cg")
        if cfg.staged:
            index, total = staged_product(
                ring, full, free, slot_trace, index, activations, k_end - k_begin, staged, FIRST, cfg.down_blocks, odd,
                cfg,
            )  # fmt: skip
        else:
            index, total = row_product(ring, full, free, slot_trace, index, activations, k_end - k_begin, cfg)
        if cfg.relayed:
            if relays_on:
                put_flagged(relays + group * H + place, total + carry, flag, wanted)
            else:
                gl.atomic_add(after + place, total + carry, mask=wanted, sem="relaxed")
        else:
            gl.atomic_add(after + place, total + carry, mask=wanted, sem="relaxed")
    return index
