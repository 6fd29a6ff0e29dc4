"""The decode step as one persistent kernel: a producer warp streams the weights, four consumer warps do the rest, but
that for rows that are not folded four more stage activations (stager.py).

Every program runs its instructions of the schedule (see instructions.py) in order. The producer never waits for
activations, only for room in the ring, so memory goes on working while the consumers wait for each other.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from structgen.kernels.device.head import run_head
from structgen.kernels.device.layers import run_layers
from structgen.kernels.device.pick_token import choose
from structgen.kernels.device.producer import producer
from structgen.kernels.device.sparse_head import count_allowed
from structgen.kernels.device.stager import stager
from structgen.kernels.device.step_parts import DONE, RUN_HEAD, RUN_LAYERS, USE_MASK, mark
from structgen.kernels.device.triton_names import block_barrier


@gluon.jit
def consumer(args, cfg: gl.constexpr):
    (
    ring, full, free, slot_trace, decided, begun, staged, factors, decision, activations, queries, weights, table, pid,
    layers, mode, epoch, launches,
    residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace,
    norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
    ids, last_tokens, positions, table_of, tables, max_pages,
    mask, constrained, sparse_limit, temperatures, seeds, offsets, logits,
    best_scores, best_tokens, tokens, lanes, state,
    ) = args  # fmt: skip
    NP: gl.constexpr = cfg.schedule.programs
    sparse = 0
    if (mode & RUN_HEAD) != 0:
        if (mode & USE_MASK) != 0:
            sparse = (count_allowed(mask, constrained, cfg) <= sparse_limit).to(gl.int32)
        gl.store(decision, sparse)
        block_barrier()
        mbarrier.arrive(decided, count=1)
    index = 0
    if (mode & RUN_LAYERS) != 0:
        index = run_layers(
            ring, full, free, slot_trace, begun, staged, factors, index, activations, queries, weights, table, pid,
            layers, epoch, 0, 0,
            residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace,
            norms, embedding, cache_base, cache_offsets, cache_stride, cos, sin,
            ids, last_tokens, positions, table_of, tables, max_pages,
            cfg,
        )  # fmt: skip
    passes = epoch + (mode & RUN_LAYERS)
    if (mode & RUN_HEAD) != 0:
        run_head(
            ring, full, free, staged, factors, layers & mode & RUN_LAYERS, slot_trace, index, activations, table, pid,
            layers, mode, passes, sparse,
            residuals, counters, error, trace, norms, embedding, head_rows, ids, last_tokens,
            mask, constrained, temperatures, seeds, offsets, logits, best_scores, best_tokens,
            cfg,
        )  # fmt: skip
    block_barrier()
    before = gl.atomic_add(counters + DONE, 1, sem="acq_rel")
    if before - launches * NP == NP - 1:
        if (mode & RUN_HEAD) != 0:
            choose(best_scores, best_tokens, tokens, last_tokens, lanes, NP, cfg.programs_padded, cfg)
        gl.store(state, passes)
        gl.store(state + 1, launches + 1)
    mark(trace, pid, layers, layers, 2, cfg)


@gluon.jit(do_not_specialize=["layers", "mode", "max_pages", "sparse_limit"])
def decode_step(
    desc, packed, schedule, layers, mode,
    state, residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace, slot_traces,
    norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
    ids, last_tokens, positions, table_of, tables, max_pages,
    mask, constrained, sparse_limit, temperatures, seeds, offsets, logits,
    best_scores, best_tokens, tokens, lanes, decisions,
    cfg: gl.constexpr,
):  # fmt: skip
    """One step of `batch` rows. `state` counts layer passes and launches; see decoder.py for the buffers."""
    S: gl.constexpr = cfg.slots
    SB: gl.constexpr = cfg.schedule.slot_blocks
    COUNT: gl.constexpr = cfg.staged_count
    pid = gl.program_id(0)
    table = schedule + pid * cfg.field_count
    epoch, launches = gl.load(state), gl.load(state + 1)
    decision = decisions + pid
    slot_trace = slot_traces + pid * (4 * 2048)
    activations = gl.allocate_shared_memory(gl.bfloat16, [cfg.activation_blocks, cfg.columns, 64], cfg.weight_layout)
    ring = gl.allocate_shared_memory(gl.bfloat16, [S, SB * 64, 64], cfg.weight_layout)
    full = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    queries = gl.allocate_shared_memory(
        gl.bfloat16, [2 * cfg.head_tile, cfg.schedule.shape.head_dim], cfg.weight_layout
    )
    weights = gl.allocate_shared_memory(gl.bfloat16, [2 * cfg.head_tile, 64], cfg.weight_layout)
    free = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    decided = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    begun = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    mbarrier.init(decided, count=1)
    if cfg.gated:
        mbarrier.init(begun.index(0), count=1)
        mbarrier.init(begun.index(1), count=1)
    staged = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    factors = gl.allocate_shared_memory(gl.float32, [cfg.batch_tile], cfg.factor_layout)
    if cfg.staged:
        for s in gl.static_range(COUNT):
            mbarrier.init(staged.index(s), count=1)
    fence_async_shared()
    consumed = (
        ring, full, free, slot_trace, decided, begun, staged, factors, decision, activations, queries, weights, table,
        pid, layers, mode, epoch, launches,
        residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace,
        norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
        ids, last_tokens, positions, table_of, tables, max_pages,
        mask, constrained, sparse_limit, temperatures, seeds, offsets, logits,
        best_scores, best_tokens, tokens, lanes, state,
    )  # fmt: skip
    produced = (
        desc, packed, ring, full, free, decided, begun, decision, table, layers, mode,
        qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
    )  # fmt: skip
    if cfg.staged:
        stages = (
            decided, staged, begun, decision, activations, factors, table, pid, layers, mode, epoch,
            residuals, neurons, counters, error, trace, norms,
        )  # fmt: skip
        gl.warp_specialize([
            (consumer, (consumed, cfg)), (stager, (stages, cfg)), (producer, (produced, cfg)),
        ], [4, 1], [cfg.stager_registers, 88])  # fmt: skip
    else:
        gl.warp_specialize([(consumer, (consumed, cfg)), (producer, (produced, cfg))], [1], [40])
