"""A whole forward pass as one compiled function that several threads run together, without the GIL.

    for each layer    qkv      q, k, v = W norm(x)                      a block of outputs a time
                      turn     rotary embedding; keys and values to the cache     a token a time
                      attend   softmax(q K) V                           a token and key head a time
                      output   x += W mixed                             a block a time
                      gate up  hidden = silu(W norm(x)) * W' norm(x)    a block of each a time
                      down     x += W hidden                            a block a time
    head              logits = W norm(x of the sampling rows)           some blocks a time

Each line is a phase: pieces of work with two counters, the next piece to take and how many are done. A thread takes
pieces until none is left, and begins the next phase when all are done. So no thread waits for one that does not get to
run, except for the piece it holds; a thread that comes late, or never, costs time and no result.

Activations are float32 throughout; only keys and values are rounded, to the cache's bfloat16. A token's numbers depend
on its own sequence alone: sums run in one fixed order, whatever else is in the step.

N tokens lie in groups of 16, and then of 8 and fewer, as the block product takes them. An input of K features is stored
group by group, [K, tokens of the group] each.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from structgen.engine.fused_jit import jit
from structgen.engine.fused_ops import (
    WIDTH,
    block_product,
    fetch_add,
    give_way,
    key_products,
    load_int,
    mix_values,
    power_of_two,
    rounded,
)

MOST_TOKENS = 32  # of a step
MOST_GROUPS = 8
TILE = 1024  # features
PHASES = 6  # of a layer
COUNTER_BYTES = 128  # of a phase: the next piece, and on a line of its own how many are done
HEAD_BLOCKS = 4  # of a piece

_product_1, _product_2, _product_3, _product_4 = (block_product(4, tokens) for tokens in (1, 2, 3, 4))
_product_5, _product_6, _product_7, _product_8 = (block_product(2, tokens) for tokens in (5, 6, 7, 8))
_product_16 = block_product(1, 16)


class Shape(NamedTuple):
    """The numbers of the network."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    epsilon: float
    page_size: int


class Network(NamedTuple):
    """What never changes. Addresses are int64; blocks of 8-bit weights are [features, WIDTH] each.

    blocks  [layers + 1, 4]: qkv, output, gate and up in turns, down; the last row is the head's
    scales  [layers, all outputs of the four]: float32, one an output; head_scales [outputs]
    norms   [layers, 2, hidden]; final_norm [hidden]
    turns   cos and signed sin, [context, 2, head_dim]
    caches  bfloat16's bits [layers, places, 2 * kv_heads * head_dim]
    """

    blocks: Any
    scales: Any
    head_scales: Any
    norms: Any
    final_norm: Any
    turns: Any
    caches: Any


class Step(NamedTuple):
    """The tokens of one step, and where its threads meet.

    x         [N, hidden]: the embedded tokens, overwritten
    places    [N]: where each token's key and value go
    tables    page tables, end to end; token i reads `positions[i]` + 1 tokens through the table at `table_at[i]`
    sampled   [R]: which tokens' logits are wanted; logits [R, vocab]
    counters  [phases + 1, COUNTER_BYTES / 8], zero; the last row's first word tells that the step is over
    """

    x: Any
    positions: Any
    places: Any
    tables: Any
    table_at: Any
    sampled: Any
    logits: Any
    qkv: Any
    mixed: Any
    hidden: Any
    counters: Any


@jit
def _groups_of(tokens: int, sizes: Any) -> int:
    """Write the sizes of the groups: 16 as long as there are so many, then 8, then the rest. How many there are."""
    count = 0
    while tokens > 0:
        size = 16 if tokens >= 16 else min(tokens, 8)
        sizes[count] = size
        tokens -= size
        count += 1
    return count


@jit
def _multiply(weights: int, inputs: int, block: Any, features: int, sizes: Any, groups: int) -> None:
    """block float32 [N, WIDTH] = a block's weights times the inputs of every group.

    So many features at a time that their weights and inputs stay in the second cache while all tokens pass.
    """
    tokens = 0
    for group in range(groups):
        tokens += sizes[group]
    for token in range(tokens):
        for lane in range(WIDTH):
            block[token, lane] = np.float32(0)
    outputs = block.ctypes.data
    for first in range(0, features, TILE):
        count = min(TILE, features - first)
        token = 0
        for group in range(groups):
            size = sizes[group]
            column = inputs + 4 * (features * token + first * size)
            _product(weights + WIDTH * first, column, outputs + 4 * WIDTH * token, count, size)
            token += size


@jit
def _product(weights: int, column: int, out: int, count: int, size: int) -> None:
    """The block product for a group's size: all of WIDTH at once, or halves or quarters of it in turns."""
    if size == 1:
        _product_1(weights, column, out, count)
    elif size == 2:
        _product_2(weights, column, out, count)
    elif size == 3:
        _product_3(weights, column, out, count)
    elif size == 4:
        _product_4(weights, column, out, count)
    elif size <= 8:
        for half in range(2):
            first, place = weights + 32 * half, out + 128 * half
            if size == 5:
                _product_5(first, column, place, count)
            elif size == 6:
                _product_6(first, column, place, count)
            elif size == 7:
                _product_7(first, column, place, count)
            else:
                _product_8(first, column, place, count)
    else:
        for quarter in range(4):
            _product_16(weights + 16 * quarter, column, out + 64 * quarter, count)


@jit
def _norm(x: Any, rows: Any, weight: Any, epsilon: float, out: Any, sizes: Any, groups: int) -> None:
    """RMS norm of some rows of x [N, K] into the layout of inputs."""
    features = x.shape[1]
    token = 0
    for group in range(groups):
        size, base = sizes[group], features * token
        for inner in range(size):
            row = x[rows[token + inner]]
            total = np.float32(0)
            for k in range(features):
                total += row[k] * row[k]
            scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(features) + np.float32(epsilon)))
            for k in range(features):
                out[base + k * size + inner] = row[k] * scale * weight[k]
        token += size


@jit
def _exp(x: Any) -> Any:
    """e^x for x below 80, NaN for NaN: 2 to the whole part of x log2(e), times a Taylor series (next term 1e-8)."""
    scaled = min(max(x * np.float32(1.4426950408889634), np.float32(-126)), np.float32(126))
    whole = np.float32(np.floor(scaled + np.float32(0.5)))
    f = (scaled - whole) * np.float32(0.6931471805599453)
    series = np.float32(1 / 5040) * f + np.float32(1 / 720)
    series = series * f + np.float32(1 / 120)
    series = series * f + np.float32(1 / 24)
    series = series * f + np.float32(1 / 6)
    series = series * f + np.float32(0.5)
    series = (series * f + np.float32(1)) * f + np.float32(1)
    return x if x != x else series * power_of_two(whole)


@jit
def _take(counters: int, phase: int, pieces: int) -> int:
    """The next piece of a phase; -1 when none is left, and then all are done, by whomever."""
    place = counters + COUNTER_BYTES * phase
    piece = fetch_add(place, 1)
    if piece < pieces:
        return piece
    spins = 0
    while load_int(place + COUNTER_BYTES // 2) < pieces:
        spins += 1
        if spins > 2000:
            give_way()
    return -1


@jit
def _done(counters: int, phase: int) -> None:
    fetch_add(counters + COUNTER_BYTES * phase + COUNTER_BYTES // 2, 1)


@jit
def _turn(shape: Shape, network: Network, step: Step, layer: int, token: int) -> None:
    """Rotate a token's queries and keys; write its keys and values to the cache."""
    dim, half = shape.head_dim, shape.head_dim // 2
    rotated = shape.heads + shape.kv_heads
    cos, sin = network.turns[step.positions[token], 0], network.turns[step.positions[token], 1]
    row = step.qkv[token]
    for head in range(rotated):
        base = head * dim
        for d in range(half):
            a, b = row[base + d], row[base + half + d]
            row[base + d] = a * cos[d] + b * sin[d]
            row[base + half + d] = b * cos[half + d] + a * sin[half + d]
    width = 2 * shape.kv_heads * dim
    kept = network.caches[layer, step.places[token]]
    first = shape.heads * dim
    for i in range(width):
        kept[i] = rounded(row[first + i])


@jit
def _attend(
    shape: Shape, network: Network, step: Step, layer: int, token: int, kv_head: int, scores: Any, out: Any
) -> None:
    """out [group, head_dim] = softmax(q K / sqrt(head_dim)) V of the query heads that share a key head."""
    dim, group, page_size = shape.head_dim, shape.heads // shape.kv_heads, shape.page_size
    length, table = step.positions[token] + 1, step.table_at[token]
    apart = 2 * network.caches.shape[2]
    cache = network.caches[layer].ctypes.data
    queries = step.qkv[token].ctypes.data + 4 * kv_head * group * dim
    for first in range(0, length, page_size):
        count = min(page_size, length - first)
        keys = cache + step.tables[table + first // page_size] * page_size * apart + 2 * kv_head * dim
        for g in range(group):
            key_products(queries + 4 * g * dim, keys, apart, count, scores[g].ctypes.data + 4 * first, dim)
    for g in range(group):
        _softmax(scores[g], length, np.float32(1 / math.sqrt(dim)))
        for d in range(dim):
            out[g, d] = np.float32(0)
    for first in range(0, length, page_size):
        count = min(page_size, length - first)
        values = cache + step.tables[table + first // page_size] * page_size * apart
        values += 2 * (shape.kv_heads + kv_head) * dim
        for g in range(group):
            mix_values(scores[g].ctypes.data + 4 * first, values, apart, count, out[g].ctypes.data, dim)


@jit
def _softmax(scores: Any, length: int, scale: Any) -> None:
    """Of the first `length` scores times `scale`, in place."""
    highest = scores[0]
    for j in range(1, length):
        highest = max(highest, scores[j])
    total = np.float32(0)
    for j in range(length):
        scores[j] = _exp((scores[j] - highest) * scale)
        total += scores[j]
    for j in range(length):
        scores[j] /= total


@jit
def _place(token: int, features: int, sizes: Any) -> Any:
    """Where a token's features stand in the layout of inputs: (the first one, how far apart they are)."""
    start, group = 0, 0
    while token - start >= sizes[group]:
        start += sizes[group]
        group += 1
    return features * start + token - start, sizes[group]


@jit
def run_layer(
    shape: Shape,
    network: Network,
    step: Step,
    layer: int,
    sizes: Any,
    groups: int,
    every: Any,
    normed: Any,
    block: Any,
    scores: Any,
    mixed: Any,
) -> None:
    """One layer's phases, by one of the threads. `normed`, `block`, `scores` and `mixed` are its own."""
    counters, tokens = step.counters.ctypes.data, step.x.shape[0]
    hidden, dim = shape.hidden, shape.head_dim
    group = shape.heads // shape.kv_heads
    blocks, scales = network.blocks[layer], network.scales[layer]
    inputs = normed.ctypes.data
    phase = PHASES * layer

    qkv = (shape.heads + 2 * shape.kv_heads) * dim
    _norm(step.x, every, network.norms[layer, 0], shape.epsilon, normed, sizes, groups)
    piece = _take(counters, phase, -(-qkv // WIDTH))
    while piece >= 0:
        _multiply(blocks[0] + piece * hidden * WIDTH, inputs, block[0], hidden, sizes, groups)
        for token in range(tokens):
            for lane in range(min(WIDTH, qkv - piece * WIDTH)):
                at = piece * WIDTH + lane
                step.qkv[token, at] = block[0, token, lane] * scales[at]
        _done(counters, phase)
        piece = _take(counters, phase, -(-qkv // WIDTH))

    piece = _take(counters, phase + 1, tokens)
    while piece >= 0:
        _turn(shape, network, step, layer, piece)
        _done(counters, phase + 1)
        piece = _take(counters, phase + 1, tokens)

    piece = _take(counters, phase + 2, tokens * shape.kv_heads)
    while piece >= 0:
        token, kv_head = piece // shape.kv_heads, piece % shape.kv_heads
        _attend(shape, network, step, layer, token, kv_head, scores, mixed)
        first, apart = _place(token, shape.heads * dim, sizes)
        for g in range(group):
            for d in range(dim):
                step.mixed[first + ((kv_head * group + g) * dim + d) * apart] = mixed[g, d]
        _done(counters, phase + 2)
        piece = _take(counters, phase + 2, tokens * shape.kv_heads)

    offset = -(-qkv // WIDTH) * WIDTH
    _add_product(
        step, blocks[1], scales[offset:], step.mixed.ctypes.data, shape.heads * dim, phase + 3, sizes, groups, block
    )

    offset += -(-hidden // WIDTH) * WIDTH
    wide = shape.intermediate
    _norm(step.x, every, network.norms[layer, 1], shape.epsilon, normed, sizes, groups)
    piece = _take(counters, phase + 4, -(-wide // WIDTH))
    while piece >= 0:
        gate = blocks[2] + 2 * piece * hidden * WIDTH
        _multiply(gate, inputs, block[0], hidden, sizes, groups)
        _multiply(gate + hidden * WIDTH, inputs, block[1], hidden, sizes, groups)
        scale = scales[offset + 2 * piece * WIDTH :]
        for token in range(tokens):
            first, apart = _place(token, wide, sizes)
            first += piece * WIDTH * apart
            for lane in range(min(WIDTH, wide - piece * WIDTH)):
                g = block[0, token, lane] * scale[lane]
                up = block[1, token, lane] * scale[WIDTH + lane]
                step.hidden[first + lane * apart] = g / (np.float32(1) + _exp(-g)) * up
        _done(counters, phase + 4)
        piece = _take(counters, phase + 4, -(-wide // WIDTH))

    offset += 2 * -(-wide // WIDTH) * WIDTH
    _add_product(step, blocks[3], scales[offset:], step.hidden.ctypes.data, wide, phase + 5, sizes, groups, block)


@jit
def _add_product(
    step: Step, weights: int, scales: Any, inputs: int, features: int, phase: int, sizes: Any, groups: int, block: Any
) -> None:
    """x += W inputs, by one of the threads."""
    tokens, hidden = step.x.shape
    counters = step.counters.ctypes.data
    piece = _take(counters, phase, -(-hidden // WIDTH))
    while piece >= 0:
        _multiply(weights + piece * features * WIDTH, inputs, block[0], features, sizes, groups)
        for token in range(tokens):
            for lane in range(min(WIDTH, hidden - piece * WIDTH)):
                at = piece * WIDTH + lane
                step.x[token, at] += block[0, token, lane] * scales[at]
        _done(counters, phase)
        piece = _take(counters, phase, -(-hidden // WIDTH))


@jit
def _head(shape: Shape, network: Network, step: Step, sizes: Any, normed: Any, block: Any) -> None:
    """The logits of the sampling rows, by one of the threads."""
    rows = len(step.sampled)
    groups = _groups_of(rows, sizes)
    _norm(step.x, step.sampled, network.final_norm, shape.epsilon, normed, sizes, groups)
    weights, phase = network.blocks[shape.layers, 0], PHASES * shape.layers
    blocks = -(-shape.vocab // WIDTH)
    counters, inputs = step.counters.ctypes.data, normed.ctypes.data
    piece = _take(counters, phase, -(-blocks // HEAD_BLOCKS))
    while piece >= 0:
        for number in range(piece * HEAD_BLOCKS, min(blocks, (piece + 1) * HEAD_BLOCKS)):
            place = weights + number * shape.hidden * WIDTH
            _multiply(place, inputs, block[0], shape.hidden, sizes, groups)
            for row in range(rows):
                for lane in range(min(WIDTH, shape.vocab - number * WIDTH)):
                    at = number * WIDTH + lane
                    step.logits[row, at] = block[0, row, lane] * network.head_scales[at]
        _done(counters, phase)
        piece = _take(counters, phase, -(-blocks // HEAD_BLOCKS))


@jit
def run_step(
    shape: Shape, network: Network, step: Step, sizes: Any, every: Any, normed: Any, block: Any, scores: Any, mixed: Any
) -> None:
    """The whole pass, by one of the threads; every thread calls it with the same step and buffers of its own.

    A thread that comes when all is done leaves at the next layer.

    sizes int64 [MOST_GROUPS], every int64 [MOST_TOKENS] counting up, normed float32 [MOST_TOKENS * hidden],
    block [2, MOST_TOKENS, WIDTH], scores [group, context], mixed [group, head_dim].
    """
    groups = _groups_of(step.x.shape[0], sizes)
    over = step.counters.ctypes.data + COUNTER_BYTES * (PHASES * shape.layers + 1)
    for layer in range(shape.layers):
        if load_int(over):
            return
        run_layer(shape, network, step, layer, sizes, groups, every, normed, block, scores, mixed)
    if len(step.sampled):
        _head(shape, network, step, sizes, normed, block)
    fetch_add(over, 1)
