"""Bodies of masked sampling in Triton: one program a (row, chunk of 4096 logits); a row's last program picks its token.

A chunk is four quarters of 32 mask words of 32 tokens. Token order is "ranks above": the larger logit, then the lower
id; everything that min-p, top-k and top-p keep is a prefix of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

QUARTER = tl.constexpr(1024)
CHUNK = tl.constexpr(4096)
WORDS = tl.constexpr(32)
ROUNDS = tl.constexpr(7)
TILE = tl.constexpr(2048)  # candidates looked at together
NO_TOKEN = tl.constexpr(2147483647)
STATUS_SHIFT = tl.constexpr(48)  # as in masked_sampling.py
TINY = tl.constexpr(1e-30)  # a temperature below it is taken as it
# Fields of a chunk's partial result.
SCORE = tl.constexpr(0)
TOP = tl.constexpr(1)
SUM = tl.constexpr(2)
RAW_TOP = tl.constexpr(3)
PLAIN_SUM = tl.constexpr(4)


@triton.jit
def gumbel(random):
    """Standard Gumbel noise of uint32 randoms; the upper tail, where winners come from, is as fine as 32 bits are."""
    v = random.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    v = tl.minimum(v, 0.99999994)
    series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)))
    return -tl.log(tl.where(v < 0.015625, series, -tl.log(1.0 - v)))


@triton.jit
def philox_counter(ids):
    """Tokens i, i + 1024, i + 2048 and i + 3072 of a chunk share a draw of four randoms."""
    return (ids // CHUNK) * QUARTER + ids % QUARTER


@triton.jit
def noise_of(ids, seed, offset_low, offset_high):
    """The same noise as in the chunks, for any ids."""
    zero = ids * 0
    r0, r1, r2, r3 = tl.philox(seed, philox_counter(ids), zero + offset_low, zero + offset_high, zero, ROUNDS)
    lane = (ids // QUARTER) % 4
    return gumbel(tl.where(lane == 0, r0, tl.where(lane == 1, r1, tl.where(lane == 2, r2, r3))))


@triton.jit
def quarter_of(logits, mask, base, vocab, masked, HAS_MASK: tl.constexpr, CHECK_FORBIDDEN: tl.constexpr):
    """-> logits with -inf where forbidden; ids; logits before the mask, +inf where not finite. All [32, 32].

    The mask counts for tokens below `masked`. Loads are masked by whole words, so that they stay four logits wide.
    """
    word, bit = tl.arange(0, WORDS), tl.arange(0, 32)
    ids = base + word[:, None] * 32 + bit[None, :]
    wanted = ids < vocab
    if HAS_MASK:
        first = base + word * 32
        words = tl.load(mask + first // 32, mask=first < masked, other=-1)
        if not CHECK_FORBIDDEN:
            wanted = wanted & (words != 0)[:, None]
    x = tl.load(logits + ids, mask=wanted, other=-float("inf")).to(tl.float32)
    raw = tl.where((x != x) | (x == float("inf")), float("inf"), x)
    x = tl.where(raw == float("inf"), -float("inf"), x)
    if HAS_MASK:
        x = tl.where(((words[:, None] >> bit[None, :]) & 1) != 0, x, -float("inf"))
    return x, ids, raw


@triton.jit
def exp_sum(x, top, scale):
    return tl.sum(tl.sum(tl.exp((x - top) * scale), 1), 0)


@triton.jit
def whole_max(x):
    return tl.max(tl.max(x, 1), 0)


@triton.jit
def lowest(x, ids, best):
    return tl.min(tl.min(tl.where(x == best, ids, NO_TOKEN), 1), 0)


@triton.jit
def scale_of(temperature):
    """1 / temperature; 1 for greedy rows, which do not use it to choose."""
    return tl.where(temperature > 0, 1.0 / tl.maximum(temperature, TINY), 1.0)


@triton.jit
def sample_rows(
    logits,
    logits_stride,
    mask,
    mask_stride,
    mask_rows,
    constrained,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    offsets,
    tokens,
    status,
    logprobs,
    lanes,
    last_tokens,
    packed,
    partials,
    partial_ids,
    counters,
    group_tops,
    candidate_groups,
    candidate_logits,
    candidate_ids,
    vocab,
    chunks,
    HAS_MASK: tl.constexpr,
    MASK_TABLE: tl.constexpr,
    CHECK_FORBIDDEN: tl.constexpr,
    LOGPROBS: tl.constexpr,
    HANDS_OVER: tl.constexpr,
    CUTS: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    logits += row * logits_stride
    masked = 0
    if HAS_MASK:
        masked = tl.where(tl.load(constrained + row) != 0, vocab, 0)
        if MASK_TABLE:
            mask += tl.where(masked > 0, tl.load(mask_rows + row), 0).to(tl.int64) * mask_stride
        else:
            mask += row * mask_stride
    temperature = tl.load(temperatures + row)
    scale = scale_of(temperature)
    base = chunk * CHUNK
    x0, i0, raw0 = quarter_of(logits, mask, base, vocab, masked, HAS_MASK, CHECK_FORBIDDEN)
    x1, i1, raw1 = quarter_of(logits, mask, base + QUARTER, vocab, masked, HAS_MASK, CHECK_FORBIDDEN)
    x2, i2, raw2 = quarter_of(logits, mask, base + 2 * QUARTER, vocab, masked, HAS_MASK, CHECK_FORBIDDEN)
    x3, i3, raw3 = quarter_of(logits, mask, base + 3 * QUARTER, vocab, masked, HAS_MASK, CHECK_FORBIDDEN)
    raw_top = whole_max(tl.maximum(tl.maximum(raw0, raw1), tl.maximum(raw2, raw3)))
    top = whole_max(tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3)))
    level = tl.where(top == -float("inf"), 0.0, top)

    s0, s1, s2, s3 = x0, x1, x2, x3
    if temperature > 0:
        seed, offset = tl.load(seeds + row), tl.load(offsets + row)
        zero = i0 * 0
        low, high = zero + offset.to(tl.int32), zero + (offset >> 32).to(tl.int32)
        r0, r1, r2, r3 = tl.philox(seed, philox_counter(i0), low, high, zero, ROUNDS)
        s0 = (x0 - level) * scale + gumbel(r0)
        s1 = (x1 - level) * scale + gumbel(r1)
        s2 = (x2 - level) * scale + gumbel(r2)
        s3 = (x3 - level) * scale + gumbel(r3)
    best, ids = s0, i0
    best, ids = tl.where(s1 > best, s1, best), tl.where(s1 > best, i1, ids)
    best, ids = tl.where(s2 > best, s2, best), tl.where(s2 > best, i2, ids)
    best, ids = tl.where(s3 > best, s3, best), tl.where(s3 > best, i3, ids)
    score = whole_max(best)

    slot = row * chunks + chunk
    fields = chunks * tl.num_programs(1).to(tl.int64)
    tl.store(partials + SCORE * fields + slot, score)
    tl.store(partials + TOP * fields + slot, top)
    tl.store(partials + RAW_TOP * fields + slot, raw_top)
    tl.store(partial_ids + slot, lowest(best, ids, score))
    if LOGPROBS:
        plain = exp_sum(x0, level, 1.0) + exp_sum(x1, level, 1.0) + exp_sum(x2, level, 1.0) + exp_sum(x3, level, 1.0)
        tl.store(partials + PLAIN_SUM * fields + slot, plain)
    if CUTS:
        total = exp_sum(x0, level, scale) + exp_sum(x1, level, scale)
        total += exp_sum(x2, level, scale) + exp_sum(x3, level, scale)
        tl.store(partials + SUM * fields + slot, total)
        group = group_tops + slot * 128 + tl.arange(0, WORDS)
        tl.store(group, tl.max(x0, 1))
        tl.store(group + 32, tl.max(x1, 1))
        tl.store(group + 64, tl.max(x2, 1))
        tl.store(group + 96, tl.max(x3, 1))

    tl.debug_barrier()  # the stores of all threads come before the arrival
    arrived = tl.atomic_add(counters + row, 1, sem="acq_rel")
    if arrived == chunks - 1:
        tl.store(counters + row, 0)  # for the next launch
        each = tl.arange(0, CHUNKS_PADDED)
        here, at = each < chunks, row * chunks + each
        nothing = -float("inf")
        tops = tl.load(partials + TOP * fields + at, mask=here, other=nothing, cache_modifier=".cg")
        raws = tl.load(partials + RAW_TOP * fields + at, mask=here, other=nothing, cache_modifier=".cg")
        scores = tl.load(partials + SCORE * fields + at, mask=here, other=nothing, cache_modifier=".cg")
        found = tl.load(partial_ids + at, mask=here, other=NO_TOKEN, cache_modifier=".cg")
        row_top, row_raw = tl.max(tops, 0), tl.max(raws, 0)
        level = tl.where(row_top == nothing, 0.0, row_top)
        if temperature > 0:  # each chunk measured from its own top
            scores = tl.where(tops == nothing, nothing, scores + (tops - level) * scale)
        winner = tl.max(scores, 0)
        token = tl.min(tl.where(scores == winner, found, NO_TOKEN), 0)
        code = tl.where(row_top == nothing, 2, 0)
        code = tl.where(row_raw == float("inf"), 1, code)
        if CHECK_FORBIDDEN:
            code = tl.where(row_raw == nothing, 1, code)
        tl.store(status + row, code.to(tl.int8))
        if CUTS and code == 0 and temperature > 0:
            top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
            if (top_k > 0) | (top_p < 1) | (min_p > 0):
                sums = tl.load(partials + SUM * fields + at, mask=here, other=0.0, cache_modifier=".cg")
                mass = tl.sum(tl.where(sums > 0, sums * tl.exp((tops - level) * scale), 0.0), 0)
                token = pick_among_kept(
                    logits,
                    mask,
                    group_tops + row * chunks * 128,
                    candidate_groups + row * chunks * 128,
                    candidate_logits + row * chunks * CHUNK,
                    candidate_ids + row * chunks * CHUNK,
                    vocab,
                    chunks * 128,
                    masked,
                    row_top,
                    mass,
                    scale,
                    top_k,
                    top_p,
                    min_p,
                    tl.load(seeds + row),
                    tl.load(offsets + row),
                    HAS_MASK,
                    CHUNKS_PADDED * 128,
                )
        token = tl.where(code == 0, token, 0)
        tl.store(tokens + row, token.to(tl.int64))
        if HANDS_OVER:
            tl.store(last_tokens + tl.load(lanes + row), token.to(tl.int64))
            tl.store(packed + row, token.to(tl.int64) + (code.to(tl.int64) << STATUS_SHIFT))
        if LOGPROBS:
            plains = tl.load(partials + PLAIN_SUM * fields + at, mask=here, other=0.0, cache_modifier=".cg")
            plain_mass = tl.sum(tl.where(plains > 0, plains * tl.exp(tops - level), 0.0), 0)
            value = tl.load(logits + token).to(tl.float32) - level - tl.log(tl.maximum(plain_mass, TINY))
            tl.store(logprobs + row, tl.where(code == 0, value, nothing))


@triton.jit
def key_of(x):
    """int32 in the order of the floats (no NaN); the two zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """The float32 that has this key (int64)."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def top_k_floor(tops, k, low, high):
    """A value that at least k of `tops` reach, and few more than k; that of key `low` if fewer do."""
    keys = key_of(tops)
    while high - low > 1:
        middle = low + (high - low) // 2
        found = tl.sum((keys >= middle).to(tl.int32), 0)
        if found >= k:
            low = middle
            high = tl.where(found == k, low + 1, high)
        else:
            high = middle
    return value_of(low)


@triton.jit
def mass_floor(tops, goal, top, scale, low, high):
    """A value such that the `tops` that reach it have `goal` of mass; that of key `low` if all together have less."""
    keys = key_of(tops)
    masses = tl.exp((tops - top) * scale)
    below, above = 4294967296.0, -1.0  # the masses at low and high: until they are known, far apart
    while (high - low > 1) & (below > above):
        middle = low + (high - low) // 2
        found = tl.sum(tl.where(keys >= middle, masses, 0.0), 0)
        if found >= goal:
            low, below = middle, found
        else:
            high, above = middle, found
    return value_of(low)


@triton.jit
def append_groups(tops, out, floor, GROUPS_PADDED: tl.constexpr):
    """Write the indices of the groups whose top is at least `floor`; -> how many."""
    hit = ((tops >= floor) & (tops > -float("inf"))).to(tl.int32)
    tl.store(out + tl.cumsum(hit, 0) - 1, tl.arange(0, GROUPS_PADDED), mask=hit != 0)
    tl.debug_barrier()
    return tl.sum(hit, 0)


@triton.jit
def append_candidates(
    logits, mask, groups, found, xs, ids, vocab, masked, floor, top, scale, least, HAS_MASK: tl.constexpr
):
    """Write the allowed logits of at least `floor` in the groups, and their ids; -> how many.

    What lies further than `least` below `top`, when scaled, min-p has cut.
    """
    count = 0
    within = tl.arange(0, 64 * 32)
    for start in range(0, found, 64):
        which = start + within // 32
        group = tl.load(groups + which, mask=which < found, other=0)
        token = group * 32 + within % 32
        here = (which < found) & (token < vocab)
        x = tl.load(logits + token, mask=here, other=-float("inf")).to(tl.float32)
        if HAS_MASK:
            word = tl.load(mask + group, mask=here & (token < masked), other=-1)
            here = here & (((word >> (token % 32)) & 1) != 0)
        hit = (here & (x >= floor) & (x > -float("inf")) & ((x - top) * scale >= least)).to(tl.int32)
        place = count + tl.cumsum(hit, 0) - 1
        tl.store(xs + place, x, mask=hit != 0)
        tl.store(ids + place, token, mask=hit != 0)
        count += tl.sum(hit, 0)
    tl.debug_barrier()
    return count


@triton.jit
def kept_tile(xs, ids, start, count, end_key, end_id):
    """Candidates from `start` on: logits, ids, keys, and whether they rank no lower than (end_key, end_id)."""
    at = start + tl.arange(0, TILE)
    here = at < count
    # Loaded without a mask, so that loads are wide: a row has room for whole tiles.
    x = tl.where(here, tl.load(xs + at), -float("inf"))
    token = tl.where(here, tl.load(ids + at), NO_TOKEN)
    key = key_of(x)
    return x, token, key, here & ((key > end_key) | ((key == end_key) & (token <= end_id)))


@triton.jit
def tally(xs, ids, count, key, end_key, end_id, top, scale):
    """Number and mass, sum of exp((x - top) * scale), of the candidates kept by (end_key, end_id) of at least `key`."""
    number = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.float32)
    for start in tl.range(0, count, TILE, loop_unroll_factor=4):  # so that loads overlap
        x, _, own, kept = kept_tile(xs, ids, start, count, end_key, end_id)
        reached = kept & (own >= key)
        number += reached.to(tl.int32)
        mass += tl.where(reached, tl.exp((x - top) * scale), 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit
def tie_count(xs, ids, count, key, last_id):
    """How many candidates have exactly `key` and an id up to `last_id`."""
    number = tl.zeros([TILE], tl.int32)
    for start in range(0, count, TILE):
        _, _, own, kept = kept_tile(xs, ids, start, count, key, last_id)
        number += (kept & (own == key)).to(tl.int32)
    return tl.sum(number, 0)


@triton.jit
def tie_end(xs, ids, count, key, need, vocab):
    """The id of the `need`-th of the candidates with exactly `key`, by id; the last id when there are no more."""
    low, high = -1, vocab - 1
    if tie_count(xs, ids, count, key, high) > need:
        while high - low > 1:
            middle = low + (high - low) // 2
            if tie_count(xs, ids, count, key, middle) >= need:
                high = middle
            else:
                low = middle
    return high


@triton.jit
def shorten(xs, ids, count, end_key, end_id, number, goal, top, scale, vocab, BY_MASS: tl.constexpr):
    """The shortest prefix of what (end_key, end_id) keeps, `number` candidates, whose number or mass reaches `goal`.

    -> its own (key, id). Bisection over keys, until one candidate or equal ones are left to be decided on.
    """
    low, high = end_key, key_of(top).to(tl.int64) + 1
    number_above, reached_above = 0, 0.0  # of what has at least the key `high`
    while (high - low > 1) & (number - number_above > 1):
        middle = low + (high - low) // 2
        found, reached = tally(xs, ids, count, middle, end_key, end_id, top, scale)
        if not BY_MASS:
            reached = found.to(tl.float32)
        if reached >= goal:
            low, number = middle, found
        else:
            high, number_above, reached_above = middle, found, reached
    last = vocab - 1
    if number - number_above > 1:
        each = 1.0
        if BY_MASS:
            each = tl.exp((value_of(low) - top) * scale)
        need = tl.ceil((goal - reached_above) / each)
        last = tie_end(xs, ids, count, low, tl.minimum(tl.maximum(need, 1.0), 1.0 * vocab).to(tl.int32), vocab)
    return low, tl.where(low == end_key, tl.minimum(end_id, last), last)


@triton.jit
def pick_among_kept(
    logits,
    mask,
    group_tops,
    group_list,
    xs,
    ids,
    vocab,
    groups,
    masked,
    top,
    mass,
    scale,
    top_k,
    top_p,
    min_p,
    seed,
    offset,
    HAS_MASK: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
):
    """Gumbel's choice among what min-p, then top-k, then top-p keep. `mass` is the row's sum of exp((x - top) * scale).

    First a floor under everything that can be kept, from what the chunks left; then the candidates above it are
    gathered; then the end of the kept prefix is found.
    """
    each = tl.arange(0, GROUPS_PADDED)
    tops = tl.load(group_tops + each, mask=each < groups, other=-float("inf"), cache_modifier=".cg")
    floor = tl.full([], -3.4028234663852886e38, tl.float32)
    slack = 1e-5 * (tl.abs(top) + 1.0 / scale)
    least = -float("inf")
    if min_p > 0:
        least = tl.log(min_p)
        floor = tl.maximum(floor, top + least / scale - slack)
    lowest_key = key_of(floor).to(tl.int64)
    if top_k > 0:
        # What k group tops reach, at least k tokens reach.
        floor = tl.maximum(floor, top_k_floor(tops, top_k, lowest_key, key_of(top).to(tl.int64) + 1))
    elif top_p < 1:
        # Group tops alone may have the mass that is wanted, when few tokens have most of it. And tokens below a share
        # of (1 - p) / V of the mass have less than 1 - p together. A little more than needed, for rounding.
        goal = top_p * mass * 1.0001
        floor = tl.maximum(floor, mass_floor(tops, goal, top, scale, lowest_key, key_of(top).to(tl.int64) + 1))
        floor = tl.maximum(floor, top + tl.log(mass * (1.0 - top_p) / (2.0 * vocab)) / scale - slack)
    found = append_groups(tops, group_list, floor, GROUPS_PADDED)
    count = append_candidates(
        logits, mask, group_list, found, xs, ids, vocab, masked, floor, top, scale, least, HAS_MASK
    )

    end_key, end_id = key_of(floor).to(tl.int64), vocab - 1
    number = count
    if top_k > 0:
        goal = top_k.to(tl.float32)
        end_key, end_id = shorten(xs, ids, count, end_key, end_id, number, goal, top, scale, vocab, False)
    if (top_k > 0) | (min_p > 0):
        number, mass = tally(xs, ids, count, end_key, end_key, end_id, top, scale)
    if top_p < 1:
        goal = top_p * mass
        end_key, end_id = shorten(xs, ids, count, end_key, end_id, number, goal, top, scale, vocab, True)

    best = tl.full([TILE], -float("inf"), tl.float32)
    best_id = tl.full([TILE], NO_TOKEN, tl.int32)
    for start in range(0, count, TILE):
        x, token, _, kept = kept_tile(xs, ids, start, count, end_key, end_id)
        noise = noise_of(token, seed, offset.to(tl.int32), (offset >> 32).to(tl.int32))
        score = tl.where(kept, (x - top) * scale + noise, -float("inf"))
        best_id = tl.where(score > best, token, best_id)
        best = tl.maximum(score, best)
    return tl.min(tl.where(best == tl.max(best, 0), best_id, NO_TOKEN), 0)
