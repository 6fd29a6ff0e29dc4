"""Products with the weight stream: activations go to shared memory once, weights pass through a ring of slots.

Activations are the second operand of wgmma, [64 of k, columns]: row b of the batch stands in two columns, 2b its
bfloat16 value and 2b + 1 what rounding took away, so that a product is as exact as the weights are. The sum of the two
columns is the result.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from structgen.kernels.device.grid_sync import stamp
from structgen.kernels.device.triton_names import block_barrier, copy_to_shared


@gluon.jit
def produce(desc, ring, full, free, index, base, count, stride, cfg: gl.constexpr):
    """Copy `count` slots of weights, from slot `base` on, every stride-th; waits for room and not for activations.

    Few copies are under way at once: more would not be faster, and everybody else's loads and fences would queue
    behind them.
    """
    S: gl.constexpr = cfg.slots
    ROWS: gl.constexpr = cfg.schedule.slot_blocks * 64
    for t in range(count):
        s = index % S
        oldest = index - cfg.flight
        if oldest >= 0:
            mbarrier.wait(full.index(oldest % S), (oldest // S) & 1)
        mbarrier.wait(free.index(s), ((index // S) & 1) ^ 1)
        mbarrier.expect(full.index(s), desc.block_type.nbytes)
        copy_to_shared(desc, [(base + t * stride) * ROWS, 0], full.index(s), ring.index(s))
        index += 1
    return index


@gluon.jit
def high_and_low(x):
    """x is about high + low in bfloat16: its upper 16 bits as they are, and what they lack, rounded."""
    bits = x.to(gl.int32, bitcast=True)
    high = (bits >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
    low = x - (bits & -65536).to(gl.float32, bitcast=True)
    return high, low.to(gl.bfloat16)


@gluon.jit
def put_activations(x, place):
    """x [blocks, batch, 64] float32 -> place [blocks * 2 * batch, 64] bfloat16. Call `activations_ready` afterwards."""
    high, low = high_and_low(x)
    put_halves(high, low, place)


@gluon.jit
def put_halves(high, low, place):
    """As put_activations, of values that have been taken apart."""
    blocks: gl.constexpr = high.shape[0]
    batch: gl.constexpr = high.shape[1]
    both = gl.permute(gl.join(high, low), (0, 1, 3, 2))
    place.store(gl.reshape(both, (blocks * 2 * batch, 64)))


@gluon.jit
def put_rows(x, place):
    """x [rows, k] float32 -> place [2 * rows, k] bfloat16."""
    rows: gl.constexpr = x.shape[0]
    k: gl.constexpr = x.shape[1]
    high, low = high_and_low(x)
    place.store(gl.reshape(gl.permute(gl.join(high, low), (0, 2, 1)), (2 * rows, k)))


@gluon.jit
def put_columns(x, place):
    """x [k, columns] float32 -> place [2 * columns, k] bfloat16."""
    k: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1]
    high, low = high_and_low(x)
    place.store(gl.permute(gl.reshape(gl.join(high, low), (k, 2 * columns)), (1, 0)))


@gluon.jit
def activations_ready():
    fence_async_shared()
    block_barrier()


@gluon.jit
def column_sums(accumulator, LS: gl.constexpr):
    """[rows, 2 * batch] -> [rows, batch] in layout LS, where they are already."""
    rows: gl.constexpr = accumulator.shape[0]
    batch: gl.constexpr = accumulator.shape[1] // 2
    high, low = gl.split(gl.reshape(accumulator, (rows, batch, 2)))
    return gl.convert_layout(high + low, LS, assert_trivial=True)


@gluon.jit
def row_product(ring, full, free, slot_trace, index, activations, blocks, cfg: gl.constexpr):
    """64 rows times `blocks` blocks of columns. -> (next slot index, [64, columns])."""
    S: gl.constexpr = cfg.slots
    SB: gl.constexpr = cfg.schedule.slot_blocks
    acc = gl.full((64, cfg.columns), 0.0, gl.float32, cfg.accumulator)
    for k in range(0, blocks, SB):
        s = index % S
        if cfg.trace:
            stamp(slot_trace + index * 4)
        mbarrier.wait(full.index(s), (index // S) & 1)
        if cfg.trace:
            stamp(slot_trace + index * 4 + 1)
        slot = ring.index(s)
        for j in gl.static_range(SB):
            acc = warpgroup_mma(slot.slice(j * 64, 64), activations.index(k + j).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(SB, deps=[acc])
        block_barrier()
        mbarrier.arrive(free.index((index + S - 1) % S), count=1, pred=k > 0)
        index += 1
    acc = warpgroup_mma_wait(0, deps=[acc])
    block_barrier()
    mbarrier.arrive(free.index((index + S - 1) % S), count=1, pred=blocks > 0)
    return index, acc
