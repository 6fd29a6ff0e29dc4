"""The noise of device/sampling.py in Gluon, for kernels that pick a token themselves: the same for a token and seed."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def philox_lanes(counter, key_low, key_high):
    """Philox4x32-7 of the counters (counter, 0, 0, 0), uint32 of any layout -> four uint32 of that layout."""
    c0 = counter.to(gl.uint32)
    c1, c2, c3 = c0 * 0, c0 * 0, c0 * 0
    k0, k1 = key_low.to(gl.uint32), key_high.to(gl.uint32)
    for _ in gl.static_range(7):
        factor0, factor2 = c0 * 0 + 0xD2511F53, c0 * 0 + 0xCD9E8D57
        high0, low0 = gl.umulhi(factor0, c0), factor0 * c0
        high2, low2 = gl.umulhi(factor2, c2), factor2 * c2
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@gluon.jit
def gumbel_noise(token, seed):
    """Standard Gumbel noise float32 of int32 tokens, for a row with this int64 seed and offset 0."""
    counter = (token // 4096) * 1024 + token % 1024
    r0, r1, r2, r3 = philox_lanes(counter, seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    lane = (token // 1024) % 4
    random = gl.where(lane == 0, r0, gl.where(lane == 1, r1, gl.where(lane == 2, r2, r3)))
    v = gl.minimum(random.to(gl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.99999994)
    series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)))
    return -gl.log(gl.where(v < 0.015625, series, -gl.log(1.0 - v)))
