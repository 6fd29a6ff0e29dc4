"""Choosing tokens inside the decode step: noise, the best token of a program's rows, the best of all programs."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

NONE = gl.constexpr(2147483647)  # "no token": larger than any id


@gluon.jit
def philox(seed, counter, offset_low, offset_high):
    """Philox 4x32, seven rounds (Salmon et al., 2011: the fewest that pass BigCrush).

    Returns four uint32 tensors of the shape of `counter`.
    """
    zero = counter * 0
    c0 = counter.to(gl.uint32)
    c1 = (zero + offset_low).to(gl.uint32)
    c2 = (zero + offset_high).to(gl.uint32)
    c3 = zero.to(gl.uint32)
    k0 = (zero + seed.to(gl.int32)).to(gl.uint32)
    k1 = (zero + (seed >> 32).to(gl.int32)).to(gl.uint32)
    first = (zero + -766435501).to(gl.uint32)  # 0xD2511F53
    second = (zero + -845247145).to(gl.uint32)  # 0xCD9E8D57
    for _ in gl.static_range(7):
        h0 = gl.umulhi(second, c2) ^ c1 ^ k0
        h2 = gl.umulhi(first, c0) ^ c3 ^ k1
        c1 = second * c2
        c3 = first * c0
        c0 = h0
        c2 = h2
        k0 += (zero + -1640531527).to(gl.uint32)  # 0x9E3779B9
        k1 += (zero + -1150833019).to(gl.uint32)  # 0xBB67AE85
    return c0, c1, c2, c3


@gluon.jit
def gumbel(random):
    """Standard Gumbel noise; the upper tail, where winners come from, keeps all 32 bits of resolution."""
    v = random.to(gl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    v = gl.minimum(v, 0.99999994)
    series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)))
    return -gl.log(gl.where(v < 0.015625, series, -gl.log(1.0 - v)))


@gluon.jit
def noise(token, seed, offset):
    """As device/sampling.py draws it: tokens i, i + 1024, i + 2048, i + 3072 of 4096 share four randoms."""
    counter = token // 4096 * 1024 + token % 1024
    r0, r1, r2, r3 = philox(seed, counter, offset.to(gl.int32), (offset >> 32).to(gl.int32))
    lane = token // 1024 % 4
    return gumbel(gl.where(lane == 0, r0, gl.where(lane == 1, r1, gl.where(lane == 2, r2, r3))))


@gluon.jit
def score_of(logit, token, temperature, seed, offset):
    """What the largest of wins: the logit when greedy, else logit / temperature + noise."""
    drawn = logit / gl.maximum(temperature, 1e-30) + noise(token, seed, offset)
    return gl.where(temperature > 0, drawn, logit)


@gluon.jit
def allowed(mask, constrained, row, token, wanted, WORDS: gl.constexpr):
    word = gl.load(mask + row * WORDS + token // 32, mask=wanted & constrained, other=-1)
    return ((word >> (token % 32)) & 1) != 0


@gluon.jit
def put_best(score, token, best_scores, best_tokens, pid, cfg: gl.constexpr):
    """score, token [rows, batch_tile] -> this program's best of each row, ties to the lowest id."""
    top = gl.max(score, 0)
    first = gl.min(gl.where(score == top[None, :], token, NONE), 0)
    row = gl.arange(0, cfg.batch_tile, layout=top.type.layout)
    gl.store(best_scores + pid * cfg.batch_tile + row, top, mask=row < cfg.batch)
    gl.store(best_tokens + pid * cfg.batch_tile + row, first, mask=row < cfg.batch)


@gluon.jit
def choose(best_scores, best_tokens, tokens, last_tokens, lanes, programs, PROGRAMS: gl.constexpr, cfg: gl.constexpr):
    """The best of all programs: to tokens [batch], -1 when nothing was allowed or finite, and to last_tokens."""
    L: gl.constexpr = cfg.choose_layout
    program = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(1, L))[:, None]
    row = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, L))[None, :]
    place = program * cfg.batch_tile + row
    wanted = (program < programs) & (row < cfg.batch)
    score = gl.load(best_scores + place, mask=wanted, other=-float("inf"), cache_modifier=".cg")
    token = gl.load(best_tokens + place, mask=wanted, other=NONE, cache_modifier=".cg")
    top = gl.max(score, 0)
    first = gl.min(gl.where((score == top[None, :]) & (top > -float("inf"))[None, :], token, NONE), 0)
    chosen = gl.where(first == NONE, -1, first)
    rows = gl.arange(0, cfg.batch_tile, layout=gl.SliceLayout(0, L))
    gl.store(tokens + rows, chosen.to(gl.int64), mask=rows < cfg.batch)
    lane = gl.load(lanes + rows, mask=rows < cfg.batch, other=-1).to(gl.int32)
    gl.store(last_tokens + lane, gl.maximum(chosen, 0).to(gl.int64), mask=lane >= 0)
