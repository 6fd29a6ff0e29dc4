"""Kernels of the microbenchmarks: how fast weights can be read, and what a barrier costs when nothing else happens."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from structgen.kernels.device.grid_sync import arrive, wait
from structgen.kernels.device.triton_names import block_barrier, copy_to_shared


@triton.jit
def read_all(source, sink, count, BLOCK: tl.constexpr):
    """Sum int32 words with plain loads; the sums go to sink so that nothing is dropped."""
    total = tl.zeros((BLOCK,), tl.int32)
    step = tl.num_programs(0) * BLOCK
    for begin in range(tl.program_id(0) * BLOCK, count, step):
        total ^= tl.load(source + begin.to(tl.int64) + tl.arange(0, BLOCK), eviction_policy="evict_first")
    tl.store(sink + tl.program_id(0), tl.sum(total, 0))


@gluon.jit
def _drain(ring, full, free, sink, pid, count, S: gl.constexpr, L: gl.constexpr):
    for index in range(count):
        s = index % S
        mbarrier.wait(full.index(s), (index // S) & 1)
        block_barrier()
        mbarrier.arrive(free.index(s), count=1)
    last = ring.index(0).load(L)
    gl.store(sink + pid, gl.max(gl.max(last, 1), 0).to(gl.float32))


@gluon.jit
def _fill(
    desc, ring, full, free, pid, count, NP: gl.constexpr, S: gl.constexpr, ROWS: gl.constexpr, FLIGHT: gl.constexpr
):
    for index in range(count):
        s = index % S
        oldest = index - FLIGHT
        if oldest >= 0:
            mbarrier.wait(full.index(oldest % S), (oldest // S) & 1)
        mbarrier.wait(free.index(s), ((index // S) & 1) ^ 1)
        mbarrier.expect(full.index(s), desc.block_type.nbytes)
        copy_to_shared(desc, [(pid + index * NP) * ROWS, 0], full.index(s), ring.index(s))


@gluon.jit
def stream_all(
    desc,
    sink,
    count,
    NP: gl.constexpr,
    S: gl.constexpr,
    ROWS: gl.constexpr,
    FLIGHT: gl.constexpr,
    XL: gl.constexpr,
    L: gl.constexpr,
):
    """Every slot through the ring of each program, and nothing done with it."""
    pid = gl.program_id(0)
    ring = gl.allocate_shared_memory(gl.bfloat16, [S, ROWS, 64], XL)
    full = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_drain, (ring, full, free, sink, pid, count, S, L)),
            (_fill, (desc, ring, full, free, pid, count, NP, S, ROWS, FLIGHT)),
        ],
        [1],
        [24],
    )


@gluon.jit
def many_barriers(counters, error, rounds, start, GROUP: gl.constexpr):
    """`rounds` barriers among each GROUP programs; start is the number of rounds the counters have seen."""
    counter = counters + gl.program_id(0) // GROUP * 16
    for round in range(rounds):
        arrive(counter)
        wait(counter, (start + round + 1) * GROUP, error)
