"""Values that carry a flag: a float32 and the number of the layer that wrote it, stored and loaded as one 64-bit word.

Who needs such values polls the values themselves. That takes one trip to L2 where a counter takes three: the writer's
fence, the counter, then the values. 64 aligned bits are read and written as one, so a right flag means a right value,
without any order between different words. Flags grow from layer to layer and are never 0.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

CHAINS = 4  # in which the checks of many words depend on each other


def polling(loads: str, unready: str, registers: str, written: list[str], error: str, after: str = "") -> str:
    """PTX that repeats `loads`, then `unready`, which sets predicate p where a lane lacks something, until no lane of
    the warp does; all its lanes leave together (see grid_sync.wait). `error` is the operand that points to the error.

    The branch in front is never taken, which ptxas cannot know: it gives the loop a point where all lanes meet again.
    Without one, wgmma's addresses behind it would be taken for different in each lane. What is `written` must be set
    there too, or its registers would live through the whole layer.
    """
    none = "\n".join(f"mov.b32 {one}, 0;" for one in written)
    return f"""{{
        .reg .pred p, q; .reg .u32 n, e; .reg .u64 start, now; {registers}
        mov.u32 n, %tid.x;
        mov.u32 e, %ntid.x;
        setp.lt.u32 p, n, e;
        @p bra BEGIN;
        {none}
        bra DONE;
    BEGIN:
        mov.u32 n, 0;
        mov.u64 start, 0;
    SPIN:
        {loads}
        {unready}
        vote.sync.any.pred p, p, 0xffffffff;
        @!p bra DONE;
        add.u32 n, n, 1;
        and.b32 e, n, 255;
        setp.ne.u32 p, e, 0;
        @p bra SPIN;
        ld.volatile.global.u32 e, [{error}];
        mov.u64 now, %globaltimer;
        setp.eq.u64 p, start, 0;
        @p mov.u64 start, now;
        sub.u64 now, now, start;
        setp.ge.u64 q, now, 2000000000;
        setp.ne.or.u32 q, e, 0, q;
        vote.sync.any.pred q, q, 0xffffffff;
        @!q bra SPIN;
        mov.u32 e, 1;
        st.volatile.global.u32 [{error}], e;
    DONE:
        {after}
    }}"""


def _poll(words: int) -> str:
    """PTX that loads `words` words a lane until all flags of the warp are right. Operands, `words` of each: values,
    pointers, of which every eighth is used, flags, pointers to the error; of the latter two all are the same."""
    flag, error = f"${2 * words}", f"${3 * words}"
    loads = [
        f"ld.relaxed.gpu.global.v2.b64 {{a{word}, a{word + 1}}}, [${words + word // 8 * 8} + {word % 8 * 8}];"
        for word in range(0, words, 2)
    ]
    checks = []
    for word in range(words):
        checks.append(f"mov.b64 {{${word}, f}}, a{word};")
        wrong = f"m{word % CHAINS}"  # ones where a flag differs
        differs = f"lop3.b32 {wrong}, f, {flag}, {wrong}, 0xbe;" if word >= CHAINS else f"xor.b32 {wrong}, f, {flag};"
        checks.append(differs)
    checks += [f"or.b32 m0, m0, m{chain};" for chain in range(1, CHAINS)]
    checks.append("setp.ne.u32 p, m0, 0;")
    registers = f".reg .b64 a<{words}>; .reg .b32 f, m<{CHAINS}>;"
    values = [f"${word}" for word in range(words)]
    return polling("\n".join(loads), "\n".join(checks), registers, values, error)


def _operands(words: int) -> str:
    return ",".join(["=&r"] * words + ["l"] * words + ["r"] * words + ["l"] * words)


POLL_8, OPERANDS_8 = gl.constexpr(_poll(8)), gl.constexpr(_operands(8))
POLL_16, OPERANDS_16 = gl.constexpr(_poll(16)), gl.constexpr(_operands(16))


@gluon.jit
def put_flagged(place, value, flag, wanted):
    """value, a tensor of float32, with `flag` to place, a tensor of pointers to 64 bits."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .b64 both;
        setp.ne.s32 p, $4, 0;
        mov.b64 both, {$2, $3};
        @p st.relaxed.gpu.global.b64 [$1], both;
        mov.u32 $0, 0;
    }""",
        "=r,l,r,r,r",
        [place, value.to(gl.int32, bitcast=True), flag, wanted.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def flagged_values(place, flag, error, WORDS: gl.constexpr):
    """The float32 at place, once all of a thread's carry `flag`.

    A tensor of pointers to 64 bits, of which every thread has WORDS, 8 or 16, eight at a time adjoining. Two seconds of
    waiting, or an error elsewhere, set *error and end the wait.
    """
    if WORDS == 16:
        words = gl.inline_asm_elementwise(
            POLL_16, OPERANDS_16, [place, flag, error.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=16
        )
    else:
        words = gl.inline_asm_elementwise(
            POLL_8, OPERANDS_8, [place, flag, error.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=8
        )
    return words.to(gl.float32, bitcast=True)
