"""The resident loop: the decode step's kernel, run for many tokens in one launch, with a word from the host for each.

The producer, who comes to the head first, brings the masks and decides what the head reads. It looks for them before
the last layer, when the ring is full, and waits for them after it. It streams the next step's weights while the last
program chooses the tokens. Everybody leaves at the head of a step: when the host says stop or says nothing for too
long, or when a program has given up on another one (see grid_sync.wait).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from structgen.kernels.device.context_prefetch import prefetch_lines
from structgen.kernels.device.grid_sync import arrive, wait
from structgen.kernels.device.head import run_head
from structgen.kernels.device.layers import run_layers
from structgen.kernels.device.mailbox import (
    ALLOWED,
    CHOSEN,
    FETCHED,
    GO,
    GRANTED,
    HOST_LATE,
    VERDICT,
    advance,
    arrive_from_warp,
    await_word,
    fetch,
    post,
    wait_in_warp,
)
from structgen.kernels.device.pick_token import choose
from structgen.kernels.device.producer import stream_head, stream_layers
from structgen.kernels.device.stager import stage_head, stage_layers
from structgen.kernels.device.step_parts import DONE, RUN_HEAD, RUN_LAYERS, USE_MASK
from structgen.kernels.device.triton_names import block_barrier

WHOLE_STEP = gl.constexpr(RUN_LAYERS.value | RUN_HEAD.value | USE_MASK.value)
DENSE, SPARSE, LEAVE = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)  # decisions
DEVICE_NS = gl.constexpr(2000000000)  # what programs grant each other, as in grid_sync.wait
LOOK_NS = gl.constexpr(3000)  # what a look whether the masks are there costs at most: less than the ring has in store


@gluon.jit
def consumer(args, cfg: gl.constexpr):
    (
        ring, full, free, slot_trace, decided, taken, begun, staged, factors, decision, activations, queries, weights,
        table, pid, layers, steps, number,
        residuals, qkv, neurons, partial, partial_max, partial_sum, counters, gates, error, trace,
        norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
        ids, last_tokens, positions, table_of, tables, max_pages,
        mask, constrained, temperatures, seeds, offsets, logits,
        best_scores, best_tokens, tokens, lanes, state, outbox, spare_table, offset_stride,
    ) = args  # fmt: skip
    NP: gl.constexpr = cfg.schedule.programs
    index, step, heads, decided_on = 0, 0, 0, 0
    while (step < steps) & (decided_on != LEAVE):
        wait(gates + CHOSEN, number + step, error)
        epoch = gl.load(state, volatile=True)
        index = run_layers(
            ring, full, free, slot_trace, begun, staged, factors, index, activations, queries, weights, table, pid,
            layers, epoch, step * layers, heads,
            residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace,
            norms, embedding, cache_base, cache_offsets, cache_stride, cos, sin,
            ids, last_tokens, positions, table_of, tables, max_pages,
            cfg,
        )  # fmt: skip
        mbarrier.wait(decided, step & 1)
        decided_on = gl.load(decision, volatile=True)
        block_barrier()
        mbarrier.arrive(taken, count=1)
        if decided_on != LEAVE:
            odd = ((step + 1) * layers + heads) & 1
            index = run_head(
                ring, full, free, staged, factors, odd, slot_trace, index, activations, table, pid, layers,
                WHOLE_STEP, epoch + 1, decided_on, residuals, counters, error, trace, norms, embedding, head_rows,
                ids, last_tokens,
                mask, constrained, temperatures, seeds, offsets, logits, best_scores, best_tokens,
                cfg,
            )  # fmt: skip
            heads += (decided_on == DENSE).to(gl.int32)
        launches = gl.load(state + 1, volatile=True)
        block_barrier()
        before = gl.atomic_add(counters + DONE, 1, sem="acq_rel")
        if before - launches * NP == NP - 1:
            if decided_on != LEAVE:
                choose(best_scores, best_tokens, tokens, last_tokens, lanes, NP, cfg.programs_padded, cfg)
                if step + 1 < steps:
                    advance(positions, table_of, offsets, constrained, spare_table, offset_stride, cfg)
            gl.store(gates + ALLOWED, 0)
            gl.store(state, epoch + 1)
            gl.store(state + 1, launches + 1)
            gl.store(state + 2, number + step + 1)
            arrive(gates + CHOSEN)
            if decided_on != LEAVE:
                post(tokens, outbox + step * cfg.batch, number + step + 1, cfg.batch)
        step += 1


@gluon.jit
def stager(args, cfg: gl.constexpr):
    (
        decided, taken, staged, begun, decision, activations, factors, table, pid, layers, steps, number,
        residuals, neurons, counters, gates, error, trace, norms, state,
    ) = args  # fmt: skip
    step, decided_on = 0, 0
    while (step < steps) & (decided_on != LEAVE):
        wait(gates + CHOSEN, number + step, error)
        epoch = gl.load(state, volatile=True)
        stage_layers(
            staged, begun, activations, factors, table, pid, layers, epoch, step * layers,
            residuals, neurons, counters, error, trace, norms, cfg,
        )  # fmt: skip
        mbarrier.wait(decided, step & 1)
        decided_on = gl.load(decision, volatile=True)
        block_barrier()
        mbarrier.arrive(taken, count=1)
        if decided_on == DENSE:
            stage_head(staged, activations, factors, epoch + 1, layers, residuals, counters, error, norms, cfg)
        step += 1


@gluon.jit
def fetched(
    pid, now, gates, error, word, word_ns, grant_ns, last: gl.constexpr,
    inbox_mask, inbox_seeds, mask, constrained, seeds, cfg: gl.constexpr,
):  # fmt: skip
    """Fetch the masks of step number `now` when the host's word comes in time, or say that all leave if it does not.

    -> 0 when it has not come; then nothing has happened, unless this was the `last` look (1, else 0).
    """
    if pid == 0:
        wait_in_warp(gates + CHOSEN, now, error, DEVICE_NS, 1)  # until then the last masks may be in use
        await_word(word, now + 1, gates + VERDICT, error, word_ns)
        if (gl.load(gates + VERDICT, volatile=True) != HOST_LATE) | (last != 0):
            arrive_from_warp(gates + GRANTED)
    told = wait_in_warp(gates + GRANTED, now + 1, error, grant_ns, last)
    if (told != 0) | (last != 0):
        if gl.load(gates + VERDICT, volatile=True) == GO:
            fetch(inbox_mask, inbox_seeds, mask, constrained, seeds, gates, pid, cfg)
        arrive_from_warp(gates + FETCHED)
    return told


@gluon.jit
def producer(args, cfg: gl.constexpr):
    (
        desc, packed, ring, full, free, decided, taken, begun, decision, table, pid, layers, steps, number,
        gates, error, host_ns, word, inbox_mask, inbox_seeds, mask, constrained, seeds, sparse_limit,
        qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
    ) = args  # fmt: skip
    H: gl.constexpr = cfg.schedule.shape.hidden
    NP: gl.constexpr = cfg.schedule.programs
    index, step, decides = 0, 0, 0
    while (step < steps) & (decides != LEAVE):
        now = number + step
        told = 0
        for part in gl.static_range(2):
            # Positions may be the last step's still: they are only used to ask for lines that may be read soon.
            index = stream_layers(
                desc, packed, ring, full, free, begun, index, table,
                part * (layers - 1), layers - 1 + part, step * layers,
                qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
                cfg,
            )  # fmt: skip
            if told == 0:
                told = fetched(
                    pid, now, gates, error, word, part * host_ns, LOOK_NS + part * (host_ns + DEVICE_NS), part,
                    inbox_mask, inbox_seeds, mask, constrained, seeds, cfg,
                )  # fmt: skip
        prefetch_lines(norms + layers * (2 * H), 1, 0, H, cfg)
        wait_in_warp(gates + FETCHED, (now + 1) * NP, error, host_ns + 2 * DEVICE_NS, 1)
        allowed = gl.load(gates + ALLOWED, volatile=True)
        verdict = gl.load(gates + VERDICT, volatile=True) | gl.load(error, volatile=True)
        decides = gl.where(verdict != GO, LEAVE, gl.where(allowed <= sparse_limit, SPARSE, DENSE))
        mbarrier.wait(taken, (step & 1) ^ 1)
        gl.store(decision, decides)
        block_barrier()
        mbarrier.arrive(decided, count=1)
        if decides == DENSE:
            index = stream_head(desc, packed, ring, full, free, begun, index, table, cfg)
        step += 1


@gluon.jit(
    do_not_specialize=["layers", "steps", "max_pages", "sparse_limit", "watchdog_us", "spare_table", "offset_stride"]
)
def resident_step(
    desc, packed, schedule, layers, steps,
    state, residuals, qkv, neurons, partial, partial_max, partial_sum, counters, gates, error, trace, slot_traces,
    norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
    ids, last_tokens, positions, table_of, tables, max_pages,
    mask, constrained, sparse_limit, temperatures, seeds, offsets, logits,
    best_scores, best_tokens, tokens, lanes, decisions,
    word, inbox_mask, inbox_seeds, outbox, watchdog_us, spare_table, offset_stride,
    cfg: gl.constexpr,
):  # fmt: skip
    """Up to `steps` steps of `batch` rows. `state` counts layer passes, launches (each of these steps as one) and
    these steps, which the host and the device both number with it."""
    S: gl.constexpr = cfg.slots
    SB: gl.constexpr = cfg.schedule.slot_blocks
    COUNT: gl.constexpr = cfg.staged_count
    pid = gl.program_id(0)
    table = schedule + pid * cfg.field_count
    number = gl.load(state + 2)
    host_ns = watchdog_us.to(gl.int64) * 1000
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
    taken = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    begun = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    staged = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    factors = gl.allocate_shared_memory(gl.float32, [cfg.batch_tile], cfg.factor_layout)
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    mbarrier.init(decided, count=1)
    mbarrier.init(taken, count=2 if cfg.staged else 1)
    if cfg.gated:
        mbarrier.init(begun.index(0), count=1)
        mbarrier.init(begun.index(1), count=1)
    if cfg.staged:
        for s in gl.static_range(COUNT):
            mbarrier.init(staged.index(s), count=1)
    fence_async_shared()
    consumed = (
        ring, full, free, slot_trace, decided, taken, begun, staged, factors, decision, activations, queries, weights,
        table, pid, layers, steps, number,
        residuals, qkv, neurons, partial, partial_max, partial_sum, counters, gates, error, trace,
        norms, embedding, head_rows, cache_base, cache_offsets, cache_stride, cos, sin,
        ids, last_tokens, positions, table_of, tables, max_pages,
        mask, constrained, temperatures, seeds, offsets, logits,
        best_scores, best_tokens, tokens, lanes, state, outbox, spare_table, offset_stride,
    )  # fmt: skip
    produced = (
        desc, packed, ring, full, free, decided, taken, begun, decision, table, pid, layers, steps, number,
        gates, error, host_ns, word, inbox_mask, inbox_seeds, mask, constrained, seeds, sparse_limit,
        qkv, norms, cache_base, cache_offsets, cache_stride, cos, sin, positions, table_of, tables, max_pages,
    )  # fmt: skip
    # Registers of the producer: in it nothing must be spilled (see mailbox.await_word).
    if cfg.staged:
        stages = (
            decided, taken, staged, begun, decision, activations, factors, table, pid, layers, steps, number,
            residuals, neurons, counters, gates, error, trace, norms, state,
        )  # fmt: skip
        gl.warp_specialize([
            (consumer, (consumed, cfg)), (stager, (stages, cfg)), (producer, (produced, cfg)),
        ], [4, 1], [cfg.stager_registers, 112])  # fmt: skip
    else:
        gl.warp_specialize([(consumer, (consumed, cfg)), (producer, (produced, cfg))], [1], [168])
