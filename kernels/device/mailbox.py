"""The device's end of the resident loop: it waits for the host's word, fetches masks, and posts tokens.

The host's buffers are page-locked memory that the device reads and writes over the bus, a microsecond or more a trip.
So one program polls the host's word, all fetch a share of the masks each, and the head reads the copies in device
memory. See kernels/mailbox.py for the host's end and the order of things.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.sparse_head import bits_set
from structgen.kernels.device.triton_names import block_barrier

# In `gates`, int32: counters and words 64 bytes apart. Counters only grow, by the same amount in every step.
GRANTED = gl.constexpr(0)  # counter: the host's word has come, one arrival a step
FETCHED = gl.constexpr(16)  # counter: masks are in device memory, an arrival of every program a step
CHOSEN = gl.constexpr(32)  # counter: the step's tokens are chosen and the next step may begin, one arrival a step
VERDICT = gl.constexpr(48)  # what the host's word was; after it, two bits for each row
ALLOWED = gl.constexpr(64)  # tokens allowed in all rows together

GO, STOP, HOST_LATE, BROKEN = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2), gl.constexpr(3)  # verdicts
FREE, MASKED, ENDED = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)  # rows, see kernels/mailbox.py


@gluon.jit
def await_word(word, target, verdict, error, nanoseconds):
    """Polls the host's word: 32 bits of steps granted, two bits for each row, and stop, the highest bit. After
    `nanoseconds` without it the verdict is HOST_LATE. The warp's lanes poll and leave together (see grid_sync.wait).

    It writes the verdict and the rows' bits: were all programs to ask the host for them, they would be served in turn.
    The other lanes run ahead: that is harmless as long as the producer spills no registers (see grid_sync.wait).
    """
    gl.inline_asm_elementwise(
        """{
        .reg .pred q; .reg .u32 v, s, e; .reg .u64 w, start, now;
        mov.u64 start, %globaltimer;
    SPIN:
        ld.relaxed.sys.global.u64 w, [$1];
        mov.b64 {v, s}, w;
        shfl.sync.idx.b32 v, v, 0, 31, -1;
        shfl.sync.idx.b32 s, s, 0, 31, -1;
        mov.u32 e, 1;
        setp.lt.s32 q, s, 0;
        @q bra TOLD;
        mov.u32 e, 0;
        sub.u32 v, v, $2;
        setp.ge.s32 q, v, 0;
        @q bra TOLD;
        ld.volatile.global.u32 v, [$4];
        mov.u32 e, 3;
        setp.ne.u32 q, v, 0;
        vote.sync.any.pred q, q, -1;
        @q bra TOLD;
        mov.u32 e, 2;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, start;
        setp.ge.u64 q, now, $5;
        vote.sync.any.pred q, q, -1;
        @q bra TOLD;
        nanosleep.u32 100;
        bra SPIN;
    TOLD:
        fence.acq_rel.sys;
        st.volatile.global.u32 [$3], e;
        st.volatile.global.u32 [$3+4], s;
        mov.u32 $0, 0;
    }""",
        "=r,l,r,l,l,l",
        [word, target, verdict, error, nanoseconds],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    block_barrier()


@gluon.jit
def wait_in_warp(counter, target, error, nanoseconds, gives_up):
    """As grid_sync.wait, in a partition of one warp and with a deadline of its own, which is no error unless one
    `gives_up` then. -> 1 when all have arrived, else 0.

    The polls are relaxed: acquiring drops the L1 lines of everybody on the processor, so only the last one does.
    """
    arrived = gl.inline_asm_elementwise(
        """{
        .reg .pred q; .reg .u32 v, n, e, all; .reg .u64 start, now;
        mov.u32 n, 0;
        mov.u32 all, 1;
        mov.u64 start, %globaltimer;
    SPIN:
        ld.relaxed.gpu.global.u32 v, [$1];
        sub.u32 v, v, $2;
        setp.ge.s32 q, v, 0;
        vote.sync.all.pred q, q, -1;
        @q bra SEEN;
        nanosleep.u32 20;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, start;
        setp.ge.u64 q, now, $4;
        vote.sync.any.pred q, q, -1;
        @q bra LATE;
        add.u32 n, n, 1;
        and.b32 e, n, 15;
        setp.ne.u32 q, e, 0;
        @q bra SPIN;
        ld.volatile.global.u32 e, [$3];
        setp.eq.u32 q, e, 0;
        vote.sync.all.pred q, q, -1;
        @q bra SPIN;
        mov.u32 all, 0;
        bra SEEN;
    LATE:
        mov.u32 all, 0;
        setp.eq.u32 q, $5, 0;
        @q bra SEEN;
        mov.u32 e, 1;
        st.volatile.global.u32 [$3], e;
    SEEN:
        fence.acq_rel.gpu;
        mov.u32 $0, all;
    }""",
        "=r,l,r,l,l,r",
        [counter, target, error, nanoseconds, gives_up],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    block_barrier()
    return arrived


@gluon.jit
def arrive_from_warp(counter):
    """As grid_sync.arrive, in a partition of one warp."""
    block_barrier()
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t;
        mov.u32 t, %laneid;
        setp.eq.u32 p, t, 0;
        @p red.release.gpu.global.add.u32 [$1], 1;
        mov.u32 $0, 0;
    }""",
        "=r,l",
        [counter],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def kind_of(kinds, row):
    """FREE, MASKED or ENDED, from the host's word."""
    return (kinds >> (2 * row)) & 3


@gluon.jit
def fetch(inbox_mask, inbox_seeds, mask, constrained, seeds, gates, pid, cfg: gl.constexpr):
    """This program's share of the masks, and program 0 the seeds, to device memory.

    Rows without a constraint count as if everything were allowed, rows that have ended as if nothing were.
    """
    B: gl.constexpr = cfg.batch
    W: gl.constexpr = cfg.mask_words
    SHARE: gl.constexpr = cfg.fetch_share
    kinds = gl.load(gates + VERDICT + 1, volatile=True)
    within = gl.arange(0, cfg.fetch_padded, layout=cfg.lane_layout)
    place = pid * SHARE + within
    wanted = (within < SHARE) & (place < B * W)
    kind = kind_of(kinds, place // W)
    words = gl.load(inbox_mask + place, mask=wanted & (kind == MASKED), other=0, volatile=True)
    words = gl.where(wanted & (kind == FREE), -1, words)
    gl.store(mask + place, words, mask=wanted)
    gl.atomic_add(gates + ALLOWED, gl.sum(bits_set(words), 0), sem="relaxed")
    if pid == 0:
        row = gl.arange(0, 32, layout=cfg.lane_layout)
        draws = gl.load(inbox_seeds + row, mask=row < B, other=0, volatile=True)
        gl.store(constrained + row, kind_of(kinds, row).to(gl.int8), mask=row < B)
        gl.store(seeds + row, draws, mask=row < B)


@gluon.jit
def advance(positions, table_of, offsets, constrained, spare_table, stride, cfg: gl.constexpr):
    """What the next step reads. A row that has ended goes on as a first token on a spare page."""
    row = gl.arange(0, 128, layout=cfg.clear_layout)
    wanted = row < cfg.batch
    ended = gl.load(constrained + row, mask=wanted, other=0) == ENDED
    position = gl.load(positions + row, mask=wanted, other=0)
    table = gl.load(table_of + row, mask=wanted, other=0)
    offset = gl.load(offsets + row, mask=wanted, other=0)
    gl.store(positions + row, gl.where(ended, 0, position + 1), mask=wanted)
    gl.store(table_of + row, gl.where(ended, spare_table, table), mask=wanted)
    gl.store(offsets + row, offset + stride, mask=wanted)


@gluon.jit
def post(tokens, outbox, number, count):
    """tokens [count] to the host, each in one word with the step's number, which therefore needs no other ordering."""
    block_barrier()
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t; .reg .u64 from, to, v, high;
        mov.u32 t, %tid.x;
        and.b32 t, t, 127;
        setp.lt.u32 p, t, $4;
        mad.wide.u32 from, t, 8, $1;
        mad.wide.u32 to, t, 8, $2;
        cvt.u64.u32 high, $3;
        shl.b64 high, high, 32;
        @p ld.volatile.global.u64 v, [from];
        and.b64 v, v, 4294967295;
        or.b64 v, v, high;
        @p st.relaxed.sys.global.u64 [to], v;
        mov.u32 $0, 0;
    }""",
        "=r,l,l,r,r",
        [tokens, outbox, number, count],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
