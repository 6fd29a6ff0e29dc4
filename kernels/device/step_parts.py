"""Small parts of the decode step: launch modes, schedule fields, time stamps, clearing."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from structgen.kernels.device.grid_sync import fresh_zero, stamp

FULL, DONE, FIRST_GROUP = gl.constexpr(0), gl.constexpr(16), gl.constexpr(32)  # counters, 64 bytes apart
RUN_LAYERS, RUN_HEAD, USE_MASK, KEEP_LOGITS = gl.constexpr(1), gl.constexpr(2), gl.constexpr(4), gl.constexpr(8)
TRACE_POINTS = gl.constexpr(16)


@gluon.jit
def field(table, name: gl.constexpr, cfg: gl.constexpr):
    return gl.load(table + cfg.field(name))


@gluon.jit
def mark(trace, pid, layer, layers, point: gl.constexpr, cfg: gl.constexpr):
    if cfg.trace:
        stamp(trace + (pid * (layers + 1) + layer) * TRACE_POINTS + point)


@gluon.jit
def clear(buffer, pid, count: gl.constexpr, programs: gl.constexpr, cfg: gl.constexpr):
    """This program's share of `count` float32 zeros."""
    z = fresh_zero()
    SHARE: gl.constexpr = (count + programs - 1) // programs
    offset = gl.arange(0, 128, layout=cfg.clear_layout) + z
    for begin in gl.static_range(0, SHARE, 128):
        within = begin + offset
        place = pid * SHARE + within
        gl.store(
            buffer + place, gl.full((128,), 0.0, gl.float32, cfg.clear_layout), mask=(within < SHARE) & (place < count)
        )
