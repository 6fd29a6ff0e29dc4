"""Body of decode attention over the paged KV cache in Triton: one program a (split of the context, key head, row).

The row's last program to finish merges the splits (flash-decoding, Dao et al. 2023). The G query heads of a key head
stand together as rows of one product, padded to 16.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def split_tokens(length, SPLITS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr):
    """Context tokens of one split: a function of the length alone, so that a row does not depend on its batch."""
    share = (length + SPLITS - 1) // SPLITS
    return tl.maximum((share + BLOCK - 1) // BLOCK * BLOCK, LEAST)


@triton.jit
def attend(
    query,
    query_stride,
    cache,
    tables,
    tables_stride,
    table_of,
    lengths,
    out,
    out_stride,
    partials,
    highest,
    sums,
    counters,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """partials [N, heads, SPLITS, dim], highest and sums [N, heads, SPLITS]: base-2 softmax of each split, float32."""
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    length = tl.load(lengths + row)
    tokens = split_tokens(length, SPLITS, LEAST, BLOCK)
    active = (length + tokens - 1) // tokens
    head = tl.arange(0, GROUP_PADDED)
    dim = tl.arange(0, DIM)
    real = head < GROUP
    heads = kv_head * GROUP + head
    target = out + row * out_stride + heads[:, None] * DIM + dim[None, :]
    if length <= 0:
        if split == 0:  # a row that is not there
            tl.store(target, tl.zeros([GROUP_PADDED, DIM], out.dtype.element_ty), mask=real[:, None])
    elif split < active:
        q = tl.load(query + row * query_stride + heads[:, None] * DIM + dim[None, :], mask=real[:, None], other=0.0)
        begin = split * tokens
        table = tables + tl.load(table_of + row).to(tl.int64) * tables_stride
        acc, top, total = attend_range(
            q, cache, table, begin, tl.minimum(begin + tokens, length), kv_head, scale * LOG2_E,
            KV_HEADS, DIM, PAGE, BLOCK, GROUP_PADDED, UPCAST,
        )  # fmt: skip
        if active == 1:
            tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
        else:
            slot = (row * HEADS + heads) * SPLITS + split
            tl.store(partials + slot[:, None] * DIM + dim[None, :], acc, mask=real[:, None])
            tl.store(highest + slot, top, mask=real)
            tl.store(sums + slot, total, mask=real)
            tl.debug_barrier()  # the stores of all threads come before the arrival
            counter = counters + row * KV_HEADS + kv_head
            arrived = tl.atomic_add(counter, 1, sem="acq_rel")
            if arrived == active - 1:
                tl.store(counter, 0)  # for the next launch
                first = row * HEADS + kv_head * GROUP
                merged, which = merge(partials, highest, sums, first, active, GROUP, DIM, SPLITS)
                place = out + (first - row * HEADS + which)[:, None] * DIM + dim[None, :] + row * out_stride
                tl.store(place, merged.to(out.dtype.element_ty), mask=(which < GROUP)[:, None])


@triton.jit
def attend_range(
    q,
    cache,
    table,
    begin,
    end,
    kv_head,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Tokens [begin, end) -> weighted values [GROUP_PADDED, DIM] before division, their highest score and sum."""
    WIDTH: tl.constexpr = 2 * KV_HEADS * DIM  # of a token in the cache: keys, then values
    dim = tl.arange(0, DIM)
    acc = tl.zeros([GROUP_PADDED, DIM], tl.float32)
    top = tl.full([GROUP_PADDED], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < end
        page = tl.load(table + at // PAGE, mask=here, other=0).to(tl.int64)
        keys = cache + (page * PAGE + at % PAGE) * WIDTH + kv_head * DIM
        k = tl.load(keys[None, :] + dim[:, None], mask=here[None, :], other=0.0)
        # Values that no token has written may be anything: they must be 0, for their weight 0 does not hide NaN.
        v = tl.load(keys[:, None] + KV_HEADS * DIM + dim[None, :], mask=here[:, None], other=0.0)
        score = product(q, k, UPCAST) * scale
        score = tl.where(here[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + product(weight.to(v.dtype), v, UPCAST)
        top = higher
    return acc, top, total


@triton.jit
def product(a, b, UPCAST: tl.constexpr):
    """Triton's interpreter multiplies bfloat16 by its bits: there, and only there, the factors are float32."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def merge(partials, highest, sums, first, active, GROUP: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """Heads first, first + 1, ... from their splits -> [H, DIM] and arange(H), H = GROUP rounded up to a power of two.

    As many splits at once as fit in registers: what bounds a merge is how often memory is waited for.
    """
    HEADS: tl.constexpr = triton.next_power_of_2(GROUP)
    FIT: tl.constexpr = max(1, 8192 // (HEADS * DIM))
    AT_ONCE: tl.constexpr = SPLITS if SPLITS < FIT else FIT
    which, dim, split = tl.arange(0, HEADS), tl.arange(0, DIM), tl.arange(0, SPLITS)
    slot = (first + which)[:, None] * SPLITS + split[None, :]
    here = (which < GROUP)[:, None] & (split < active)[None, :]
    tops = tl.load(highest + slot, mask=here, other=-float("inf"), cache_modifier=".cg")
    totals = tl.load(sums + slot, mask=here, other=0.0, cache_modifier=".cg")
    top = tl.where(which < GROUP, tl.max(tops, 1), 0.0)
    total = tl.sum(totals * tl.exp2(tops - top[:, None]), 1)
    acc = tl.zeros([HEADS, DIM], tl.float32)
    for begin in range(0, active, AT_ONCE):
        some = begin + tl.arange(0, AT_ONCE)
        at = (first + which)[:, None] * SPLITS + some[None, :]
        inside = (which < GROUP)[:, None] & (some < active)[None, :]
        weight = tl.exp2(tl.load(highest + at, mask=inside, other=-float("inf"), cache_modifier=".cg") - top[:, None])
        parts = partials + at[:, :, None] * DIM + dim[None, None, :]
        values = tl.load(parts, mask=inside[:, :, None], other=0.0, cache_modifier=".cg")
        acc += tl.sum(values * weight[:, :, None], 1)
    return acc / tl.where(which < GROUP, total, 1.0)[:, None], which
