"""Counters that programs of one grid wait at. They only ever grow; comparisons allow for wrap-around."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.triton_names import block_barrier


@gluon.jit
def fresh_zero():
    """A zero that the compiler does not know.

    Index tensors made with it are computed where they are used. Otherwise all of them would be moved in front of the
    loop over layers, which has no registers for them.
    """
    zero = gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    return gl.multiple_of(zero, 1024)


@gluon.jit
def arrive(counter):
    """Release: what any thread of this program wrote before is visible to whoever has seen the arrival."""
    block_barrier()
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t;
        mov.u32 t, %tid.x;
        and.b32 t, t, 127;
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
def arrive_relaxed(counter):
    """Count this program without publishing anything: its next `arrive` at the same counter does."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t;
        mov.u32 t, %tid.x;
        and.b32 t, t, 127;
        setp.eq.u32 p, t, 0;
        @p red.relaxed.gpu.global.add.u32 [$1], 1;
        mov.u32 $0, 0;
    }""",
        "=r,l",
        [counter],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def wait(counter, target, error):
    """Acquire. One warp polls; after two seconds, or once a program has given up, it sets *error and goes on.

    All its lanes poll, and leave together. If one polled, the others would run ahead to where the loop ends. There
    ptxas may load a spilled register again by LDL.LU, which drops the cache line of all lanes' values unwritten, so
    that the last lane would find what was there long ago.
    """
    gl.inline_asm_elementwise(
        """{
        .reg .pred p, q; .reg .u32 t, v, n, e; .reg .u64 start, now;
        mov.u32 t, %tid.x;
        and.b32 t, t, 96;
        setp.ne.u32 p, t, 0;
        @p bra DONE;
        mov.u32 n, 0;
        mov.u64 start, 0;
    SPIN:
        ld.acquire.gpu.global.u32 v, [$1];
        sub.u32 v, v, $2;
        setp.ge.s32 q, v, 0;
        vote.sync.all.pred q, q, 0xffffffff;
        @q bra DONE;
        add.u32 n, n, 1;
        and.b32 e, n, 255;
        setp.ne.u32 q, e, 0;
        @q bra SPIN;
        ld.volatile.global.u32 e, [$3];
        mov.u64 now, %globaltimer;
        setp.eq.u64 q, start, 0;
        @q mov.u64 start, now;
        sub.u64 now, now, start;
        setp.ge.u64 q, now, 2000000000;
        setp.ne.or.u32 q, e, 0, q;
        vote.sync.any.pred q, q, 0xffffffff;
        @!q bra SPIN;
        mov.u32 e, 1;
        st.volatile.global.u32 [$3], e;
    DONE:
        mov.u32 $0, 0;
    }""",
        "=r,l,r,l",
        [counter, target, error],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    block_barrier()


@gluon.jit
def stamp(place):
    """The global timer, in ns, to `place`: where the time of a step goes."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t; .reg .u64 now;
        mov.u32 t, %tid.x;
        and.b32 t, t, 127;
        setp.eq.u32 p, t, 0;
        mov.u64 now, %globaltimer;
        @p st.volatile.global.u64 [$1], now;
        mov.u32 $0, 0;
    }""",
        "=r,l",
        [place],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
