"""What a layer reads besides weights has left every cache since it was last used: the producer asks for it in time."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero

LANES = gl.constexpr(32)


@gluon.jit
def prefetch(places):
    """Ask the lines of a tensor of pointers into L2."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def prefetch_lines(begin, rows: gl.constexpr, stride: gl.constexpr, count: gl.constexpr, cfg: gl.constexpr):
    """Ask `count` elements at begin, begin + stride, ... (`rows` of them) into L2, a lane a line of 128 bytes."""
    LINE: gl.constexpr = 1024 // begin.dtype.element_ty.primitive_bitwidth
    LINES: gl.constexpr = (count + LINE - 1) // LINE
    i = gl.arange(0, LANES, layout=cfg.lane_layout)
    for first in range(0, rows * LINES, LANES):
        line = gl.minimum(first + i, rows * LINES - 1)
        prefetch(begin + line // LINES * stride + gl.minimum(line % LINES * LINE, count - 1))


@gluon.jit
def prefetch_record(begin, count: gl.constexpr, cfg: gl.constexpr):
    """Ask `count` float32, up to 128 lines, into L2, by all consumers together."""
    line = gl.arange(0, 128, layout=cfg.clear_layout) + fresh_zero()
    prefetch(begin + gl.minimum(line * 32, count - 1))


@gluon.jit
def prefetch_pages(cache, ids, count, group, cfg: gl.constexpr):
    """Ask keys and values of one head into L2, in the first `count` pages of ids [LANES]."""
    D: gl.constexpr = cfg.schedule.shape.head_dim
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    i = gl.arange(0, LANES, layout=cfg.lane_layout)
    place = cache + i % 16 * (2 * KV * D) + i // 16 * (KV * D) + group * D
    for page in range(count):
        here = gl.sum(gl.where(i == page, ids, 0), 0)
        for part in gl.static_range(0, D, 64):
            prefetch(place + here.to(gl.int64) * (16 * 2 * KV * D) + part)
