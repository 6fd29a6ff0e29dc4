"""Values that announce themselves: float32 in a buffer that was cleared, stored so that none of them is plus zero.

Who needs such values polls them, as those that carry a flag (flagged.py), at half the size. In return somebody must
clear the buffer before it is written again, and an order is needed between that and the next to poll.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.flagged import CHAINS, polling


def smallest(registers: list[str]) -> str:
    """PTX that sets p where one of the registers is 0, by way of registers m0 and on."""
    heads, rest = registers[:CHAINS], registers[CHAINS:]
    lines = [f"mov.b32 m{chain}, {head};" for chain, head in enumerate(heads)]
    lines += [f"min.u32 m{at % CHAINS}, m{at % CHAINS}, {register};" for at, register in enumerate(rest)]
    lines += [f"min.u32 m0, m0, m{chain};" for chain in range(1, CHAINS)]
    return "\n".join([*lines, "setp.eq.u32 p, m0, 0;"])


def _poll_parts(words: int) -> str:
    """PTX that polls four values and two values `words` times. Operands, `words` of each: the six values, pointers to
    four, pointers to two, pointers to the error; of the last the first is used."""
    loads, values = [], []
    for word in range(words):
        own = [f"${value * words + word}" for value in range(6)]
        loads.append(f"ld.relaxed.gpu.global.v2.b32 {{{', '.join(own[4:])}}}, [${7 * words + word}];")
        loads.append(f"ld.relaxed.gpu.global.v4.b32 {{{', '.join(own[:4])}}}, [${6 * words + word}];")
        values += own
    return polling("\n".join(loads), smallest(values), f".reg .u32 m<{CHAINS}>;", values, f"${8 * words}")


def _part_operands(words: int) -> str:
    return ",".join(["=&r"] * (6 * words) + ["l"] * (3 * words))


def _poll_sums(halves: int, stride: int) -> str:
    """PTX that polls two quads of values in 2 * `halves` parts, `stride` bytes apart, and a word of each part.

    The upper sixteen lanes take the second half of the parts, and the lanes add up. Outputs: the sums of the first
    quad, of that of the lane eight further, and the same two of the second; the sum of the words. Then three pointers,
    to the first part's quads and word, and one to the error.
    """
    registers = f".reg .u32 m<{CHAINS}>;"
    before = f"""
        .reg .b32 t, h; .reg .b64 x, y, z, o; .reg .b32 w, a<{8 * halves}>;
        mov.u32 t, %tid.x;
        and.b32 h, t, 16;
        mul.wide.u32 o, h, {halves * stride // 16};
        add.s64 x, $17, o;
        add.s64 y, $18, o;
        and.b32 h, t, {2 * halves - 1};
        mul.wide.u32 o, h, {stride};
        add.s64 z, $19, o;"""
    loads, values = ["ld.relaxed.gpu.global.b32 w, [z];"], ["w"]
    for part in range(halves):
        for place, quad in ("x", range(4)), ("y", range(4, 8)):
            own = [f"a{8 * part + value}" for value in quad]
            loads.append(f"ld.relaxed.gpu.global.v4.b32 {{{', '.join(own)}}}, [{place} + {part * stride}];")
            values += own
    after = []
    for value in range(8):
        after += [f"add.f32 a{value}, a{value}, a{8 * part + value};" for part in range(1, halves)]
        after += [f"shfl.sync.bfly.b32 t, a{value}, 16, 0x1f, 0xffffffff;", f"add.f32 a{value}, a{value}, t;"]
        after += [f"mov.b32 ${value // 4 * 8 + value % 4}, a{value};"]
        after += [f"shfl.sync.bfly.b32 ${value // 4 * 8 + 4 + value % 4}, a{value}, 8, 0x1f, 0xffffffff;"]
    step = 1
    while step < 2 * halves:
        after += [f"shfl.sync.bfly.b32 t, w, {step}, 0x1f, 0xffffffff;", "add.f32 w, w, t;"]
        step *= 2
    after.append("mov.b32 $16, w;")
    return polling("\n".join(loads), smallest(values), registers + before, values, "$20", "\n".join(after))


SUM_PARTS, SUM_STRIDE = 8, 416  # StepSizes.qkv_parts and .qkv_stride where sums are polled
POLL_SUMS = gl.constexpr(_poll_sums(SUM_PARTS // 2, SUM_STRIDE * 4))
SUM_OPERANDS = gl.constexpr(",".join(["=&r"] * 17 + ["l"] * 4))
SUM_TYPES = gl.constexpr((gl.int32,) * 17)
PART_TYPES = gl.constexpr((gl.int32,) * 6)
POLL_PARTS_2, PART_OPERANDS_2 = gl.constexpr(_poll_parts(2)), gl.constexpr(_part_operands(2))
POLL_PARTS_4, PART_OPERANDS_4 = gl.constexpr(_poll_parts(4)), gl.constexpr(_part_operands(4))
POLL_PARTS_8, PART_OPERANDS_8 = gl.constexpr(_poll_parts(8)), gl.constexpr(_part_operands(8))


@gluon.jit
def put_nonzero(place, value, wanted):
    """value, a tensor of float32, to place, a tensor of pointers; plus zero as minus zero."""
    bits = value.to(gl.int32, bitcast=True)
    bits = gl.where(bits == 0, -2147483648, bits)
    gl.inline_asm_elementwise(
        """{
        .reg .pred p;
        setp.ne.s32 p, $3, 0;
        @p st.relaxed.gpu.global.b32 [$1], $2;
        mov.u32 $0, 0;
    }""",
        "=r,l,r,r",
        [place, bits, wanted.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def polled_parts(values, ends, error, WORDS: gl.constexpr):
    """The four float32 from each of `values` on, and the two from each of `ends` on, as six tensors.

    Tensors of pointers of which every thread has WORDS: 2, 4 or 8. Two seconds of waiting, or an error elsewhere, set
    *error and end the wait.
    """
    args = [values, ends, error.to(gl.int64)]
    if WORDS == 8:
        a, b, c, d, top, total = gl.inline_asm_elementwise(
            POLL_PARTS_8, PART_OPERANDS_8, args, dtype=PART_TYPES, is_pure=False, pack=8
        )
    elif WORDS == 4:
        a, b, c, d, top, total = gl.inline_asm_elementwise(
            POLL_PARTS_4, PART_OPERANDS_4, args, dtype=PART_TYPES, is_pure=False, pack=4
        )
    else:
        a, b, c, d, top, total = gl.inline_asm_elementwise(
            POLL_PARTS_2, PART_OPERANDS_2, args, dtype=PART_TYPES, is_pure=False, pack=2
        )
    return (
        a.to(gl.float32, bitcast=True),
        b.to(gl.float32, bitcast=True),
        c.to(gl.float32, bitcast=True),
        d.to(gl.float32, bitcast=True),
        top.to(gl.float32, bitcast=True),
        total.to(gl.float32, bitcast=True),
    )


@gluon.jit
def polled_sums(first, second, words, error):
    """Sums over eight parts: of the quads of float32 at `first` and at `second`, pointers [heads, quads], a head of 16
    quads a warp, and of the float32 at `words`. -> four tensors [heads, 64], the quads' sums and those of half a head
    further, and the words' sum [heads, quads]."""
    a, b, c, d, e, f, g, h, j, k, m, n, o, p, q, r, w = gl.inline_asm_elementwise(
        POLL_SUMS,
        SUM_OPERANDS,
        [first, second, words, error.to(gl.int64)],
        dtype=SUM_TYPES,
        is_pure=False,
        pack=1,
    )
    return (
        joined(a, b, c, d).to(gl.float32, bitcast=True),
        joined(e, f, g, h).to(gl.float32, bitcast=True),
        joined(j, k, m, n).to(gl.float32, bitcast=True),
        joined(o, p, q, r).to(gl.float32, bitcast=True),
        w.to(gl.float32, bitcast=True),
    )


@gluon.jit
def joined(a, b, c, d):
    """The four values of each quad, [..., quads], side by side: [..., 4 * quads]."""
    last: gl.constexpr = len(a.shape) - 1
    x = gl.join(gl.join(a, c), gl.join(b, d))
    return gl.reshape(x, a.shape[:last] + [4 * a.shape[last]])  # noqa: RUF005 (Triton unpacks no lists)
