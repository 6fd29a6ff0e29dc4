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

from structgen.kernels.device.grid_sync import fresh_zero, stamp
from structgen.kernels.device.triton_names import block_barrier, copy_to_shared, reinterpret


@gluon.jit
def prefetch_slots(packed, first, count, stride, cfg: gl.constexpr):
    """Ask `count` slots, every stride-th from `first` on, into L2."""
    ELEMENTS: gl.constexpr = cfg.slot_bytes // 2
    for i in range(count):
        gl.inline_asm_elementwise(
            """{
            .reg .pred p; .reg .u32 t;
            mov.u32 t, %laneid;
            setp.eq.u32 p, t, 0;
            @p cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }""",
            "=r,l,r",
            [packed + (first + i * stride).to(gl.int64) * ELEMENTS, ELEMENTS * 2],
            dtype=gl.int32,
            is_pure=False,
            pack=1,
        )


@gluon.jit
def produce(
    desc, packed, ring, full, free, begun, index, base, count, stride, parity, early, late, cfg: gl.constexpr
):  # fmt: skip
    """Copy `count` slots of weights, from slot `base` on, every stride-th; waits for room, hardly for activations.

    Few copies are under way at once: more would not be faster, and everybody else's loads and fences would queue
    behind them. Before slot `late` the programs mostly wait for each other and not for weights: then still fewer.

    From slot `early` on room is only made by Qkv, whose sums are waited for next: where they go by atomic additions and
    a counter, these slots are copied when the attention has begun, which has time for that. Before slot `late` the
    ring is full until GateUp begins to multiply; when it has begun to wait no longer, what it will need beyond the ring
    is asked into L2. `parity` is that of the layers run before.
    """
    S: gl.constexpr = cfg.slots
    ROWS: gl.constexpr = cfg.schedule.slot_blocks * 64
    for t in range(count):
        s = index % S
        oldest = index - gl.where(t < late, cfg.flight(cfg.waiting_bytes), cfg.flight(cfg.streamed_bytes))
        if oldest >= 0:
            mbarrier.wait(full.index(oldest % S), (oldest // S) & 1)
        if cfg.spares_sums:  # noqa: SIM102 (one is known at compile time, the other is not)
            if t == early:
                mbarrier.wait(begun.index(0), parity)
        if cfg.gated:  # noqa: SIM102 (likewise)
            if t == late:
                mbarrier.wait(begun.index(1), parity)
                prefetch_slots(packed, base + t * stride, gl.minimum(cfg.ahead, count - t), stride, cfg)
        mbarrier.wait(free.index(s), ((index // S) & 1) ^ 1)
        mbarrier.expect(full.index(s), desc.block_type.nbytes)
        copy_to_shared(desc, [(base + t * stride) * ROWS, 0], full.index(s), ring.index(s))
        index += 1
    return index


@gluon.jit
def stage_places(activations, BLOCKS: gl.constexpr, cfg: gl.constexpr):
    """The memory of all activations as stages of BLOCKS blocks each: [stages, BLOCKS * columns, 64]."""
    STAGES: gl.constexpr = cfg.activation_blocks // BLOCKS
    return reinterpret(activations, gl.bfloat16, [STAGES, BLOCKS * cfg.columns, 64], cfg.weight_layout)


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
    """64 rows times `blocks` blocks of columns. -> (next slot index, [64, batch_tile])."""
    if cfg.fold > 1:
        index, sums = _folded_product(ring, full, free, slot_trace, index, activations, blocks, cfg)
    else:
        index, sums = _plain_product(ring, full, free, slot_trace, index, activations, blocks, full, 0, 0, 0, cfg)
    return index, sums


@gluon.jit
def staged_product(
    ring, full, free, slot_trace, index, activations, blocks, staged, FIRST: gl.constexpr, STAGE: gl.constexpr, parity,
    cfg: gl.constexpr,
):  # fmt: skip
    """row_product of activations that come in stages of STAGE blocks: a stage has come when its mbarrier, one of
    `staged` from FIRST on, has completed the phase of that parity."""
    index, sums = _plain_product(
        ring, full, free, slot_trace, index, activations, blocks, staged, FIRST, STAGE, parity, cfg
    )
    return index, sums


@gluon.jit
def _folded_product(ring, full, free, slot_trace, index, activations, blocks, cfg: gl.constexpr):
    """For a batch of one: block k's activations stand in columns 2 * (k % 4) and the next; so four blocks share a tile.

    Each of the four is multiplied by all columns and has an accumulator of its own, of which two columns count.
    """
    S: gl.constexpr = cfg.slots
    acc0 = gl.full((64, cfg.columns), 0.0, gl.float32, cfg.accumulator)
    acc1 = acc0
    acc2 = acc0
    acc3 = acc0
    last = index % S
    for k in range(0, blocks, 4):
        columns = activations.index(k // 4 + fresh_zero()).permute((1, 0))
        before = last
        first = index % S
        if cfg.trace:
            stamp(slot_trace + index * 4)
        mbarrier.wait(full.index(first), (index // S) & 1)
        if cfg.trace:
            stamp(slot_trace + index * 4 + 1)
        slot = ring.index(first)
        acc0 = warpgroup_mma(slot.slice(0, 64), columns, acc0, is_async=True)
        acc1 = warpgroup_mma(slot.slice(64, 64), columns, acc1, is_async=True)
        index += 1
        last = index % S
        if cfg.trace:
            stamp(slot_trace + index * 4)
        mbarrier.wait(full.index(last), (index // S) & 1)
        if cfg.trace:
            stamp(slot_trace + index * 4 + 1)
        slot = ring.index(last)
        acc2 = warpgroup_mma(slot.slice(0, 64), columns, acc2, is_async=True)
        acc3 = warpgroup_mma(slot.slice(64, 64), columns, acc3, is_async=True)
        index += 1
        acc0, acc1, acc2, acc3 = warpgroup_mma_wait(2, deps=[acc0, acc1, acc2, acc3])
        block_barrier()
        mbarrier.arrive(free.index(before), count=1, pred=k > 0)
        mbarrier.arrive(free.index(first), count=1)
    acc0, acc1, acc2, acc3 = warpgroup_mma_wait(0, deps=[acc0, acc1, acc2, acc3])
    block_barrier()
    mbarrier.arrive(free.index(last), count=1, pred=blocks > 0)
    return index, _folded_sums(acc0, acc1, acc2, acc3, cfg)


@gluon.jit
def _folded_sums(acc0, acc1, acc2, acc3, cfg: gl.constexpr):
    """Of the four accumulators of a folded product, the columns that count: [64, batch_tile], all columns alike."""
    LS: gl.constexpr = cfg.sums_layout
    which = gl.arange(0, 4, layout=gl.SliceLayout(0, LS))[None, :]
    low = gl.where(which == 0, column_sums(acc0, LS), column_sums(acc1, LS))
    high = gl.where(which == 2, column_sums(acc2, LS), column_sums(acc3, LS))
    sums = gl.sum(gl.where(which < 2, low, high), 1)[:, None]
    return gl.broadcast(sums, which * 0.0)[0]


@gluon.jit
def begin_row(ring, full, slot_trace, index, activations, cfg: gl.constexpr):
    """Issues a product of four blocks, two slots. -> (next slot index, four accumulators to pass to finish_row).

    Folded they are one tile of activations; else four, whose products have one accumulator, returned four times.
    """
    S: gl.constexpr = cfg.slots
    z = fresh_zero()
    columns0 = activations.index(z).permute((1, 0))
    columns1, columns2, columns3 = columns0, columns0, columns0
    if cfg.fold == 1:
        columns1 = activations.index(z + 1).permute((1, 0))
        columns2 = activations.index(z + 2).permute((1, 0))
        columns3 = activations.index(z + 3).permute((1, 0))
    zero = gl.full((64, cfg.columns), 0.0, gl.float32, cfg.accumulator)
    if cfg.trace:
        stamp(slot_trace + index * 4)
    mbarrier.wait(full.index(index % S), (index // S) & 1)
    if cfg.trace:
        stamp(slot_trace + index * 4 + 1)
    slot = ring.index(index % S)
    acc0 = warpgroup_mma(slot.slice(0, 64), columns0, zero, is_async=True)
    acc1 = warpgroup_mma(slot.slice(64, 64), columns1, zero if cfg.fold > 1 else acc0, is_async=True)
    index += 1
    if cfg.trace:
        stamp(slot_trace + index * 4)
    mbarrier.wait(full.index(index % S), (index // S) & 1)
    if cfg.trace:
        stamp(slot_trace + index * 4 + 1)
    slot = ring.index(index % S)
    acc2 = warpgroup_mma(slot.slice(0, 64), columns2, zero if cfg.fold > 1 else acc1, is_async=True)
    acc3 = warpgroup_mma(slot.slice(64, 64), columns3, zero if cfg.fold > 1 else acc2, is_async=True)
    if cfg.fold == 1:
        acc0, acc1, acc2 = acc3, acc3, acc3
    return index + 1, acc0, acc1, acc2, acc3


@gluon.jit
def finish_row(free, index, acc0, acc1, acc2, acc3, PENDING: gl.constexpr, cfg: gl.constexpr):
    """Waits for a row that begin_row began, whose slots are the two before `index`, PENDING products having been issued
    since. -> sums [64, batch_tile]."""
    LS: gl.constexpr = cfg.sums_layout
    S: gl.constexpr = cfg.slots
    if cfg.fold > 1:
        acc0, acc1, acc2, acc3 = warpgroup_mma_wait(PENDING, deps=[acc0, acc1, acc2, acc3])
    else:
        acc0 = warpgroup_mma_wait(PENDING, deps=[acc0])
    block_barrier()
    mbarrier.arrive(free.index((index + S - 2) % S), count=1)
    mbarrier.arrive(free.index((index + S - 1) % S), count=1)
    if cfg.fold > 1:
        sums = _folded_sums(acc0, acc1, acc2, acc3, cfg)
    else:
        sums = column_sums(acc0, LS)
    return sums


@gluon.jit
def _plain_product(
    ring, full, free, slot_trace, index, activations, blocks, staged, FIRST: gl.constexpr, STAGE: gl.constexpr, parity,
    cfg: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = cfg.slots
    SB: gl.constexpr = cfg.schedule.slot_blocks
    LS: gl.constexpr = cfg.sums_layout
    acc = gl.full((64, cfg.columns), 0.0, gl.float32, cfg.accumulator)
    for k in range(0, blocks, SB):
        s = index % S
        if STAGE > 0:  # noqa: SIM102 (one is known at compile time, the other is not)
            if k % STAGE == 0:
                mbarrier.wait(staged.index(FIRST + k // STAGE), parity)
                fence_async_shared()  # for the stager's stores, see stager.put_stage
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
    return index, column_sums(acc, LS)
