"""Machine operations that numba has no words for: a block product in vector registers, atomic counters, bit casts.

All are numba intrinsics: LLVM instructions with a Python signature. Addresses are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic as _intrinsic

# What it makes is called with the arguments that follow the first one.
intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = _intrinsic

LANES = 16  # of a vector of float32; LLVM splits it where registers are narrower
WIDTH = 64  # outputs of a block: a cache line of 8-bit weights for each input

_BYTE, _INT, _LONG, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


def block_product(panels: int, tokens: int) -> Callable[..., None]:
    """(weights, inputs, outputs, count): outputs[t, n] += sum over k of weights[k, n] * inputs[k, t].

    weights int8, WIDTH bytes from one k to the next, of which 16 * `panels` are used; inputs float32 [count, tokens];
    outputs float32 [tokens, WIDTH]. All of panels * tokens sums stay in registers. Each is added up in the order of k,
    whatever `tokens` is, so a token's result never depends on how many others are computed with it.
    """

    @intrinsic
    def product(typing: Any, weights: Any, inputs: Any, outputs: Any, count: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _emit_product(builder, panels, tokens, *arguments)

        return types.void(types.int64, types.int64, types.int64, types.int64), emit

    found: Callable[..., None] = product
    return found


def _emit_product(builder: Any, panels: int, tokens: int, weights: Any, inputs: Any, outputs: Any, count: Any) -> None:
    fma = _declare(builder, "llvm.fma.v16f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3))
    places = [
        _pointer(builder, outputs, 4 * (WIDTH * token + LANES * panel), _VECTOR)
        for panel in range(panels)
        for token in range(tokens)
    ]

    def add_feature(k: Any, sums: list[Any]) -> list[Any]:
        row = builder.add(weights, builder.mul(k, _LONG(WIDTH)))
        column = builder.add(inputs, builder.mul(k, _LONG(4 * tokens)))
        spread = [_spread(builder, _load(builder, column, 4 * token, _FLOAT, 4)) for token in range(tokens)]
        found = []
        for panel in range(panels):
            packed = _load(builder, row, LANES * panel, ir.VectorType(_BYTE, LANES), LANES)
            wide = builder.sitofp(builder.sext(packed, ir.VectorType(_INT, LANES)), _VECTOR)
            for token in range(tokens):
                found.append(builder.call(fma, [wide, spread[token], sums[panel * tokens + token]]))
        return found

    starts = [builder.load(place, align=4) for place in places]
    for place, total in zip(places, _loop(builder, count, starts, add_feature), strict=True):
        builder.store(total, place, align=4)


def _loop(builder: Any, count: Any, values: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Emit `for k in range(count): values = body(k, values)`; count is at least 1. What the values are in the end."""
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_LONG)
    k.add_incoming(_LONG(0), before)
    held = [builder.phi(value.type) for value in values]
    found = body(k, held)
    for phi, start, value in zip(held, values, found, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, builder.block)
    following = builder.add(k, _LONG(1))
    k.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return found


@intrinsic
def key_products(typing: Any, query: Any, keys: Any, apart: Any, count: Any, scores: Any, dim: Any) -> Any:
    """scores[j] = query . keys[j] for `count` keys: bfloat16 [dim] each, `apart` bytes from one to the next.

    query float32 [dim], scores float32 [count]; dim is a multiple of 16.
    """

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        query, keys, apart, count, scores, dim = arguments
        fma = _declare(builder, "llvm.fma.v16f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3))
        reduce = _declare(builder, "llvm.vector.reduce.fadd.v16f32", ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]))
        chunks = builder.sdiv(dim, _LONG(LANES))

        def one_key(j: Any, _: list[Any]) -> list[Any]:
            key = builder.add(keys, builder.mul(j, apart))

            def add_chunk(c: Any, sums: list[Any]) -> list[Any]:
                part = _widened_vector(builder, builder.add(key, builder.mul(c, _LONG(2 * LANES))))
                asked = _load(builder, builder.add(query, builder.mul(c, _LONG(4 * LANES))), 0, _VECTOR, 4)
                return [builder.call(fma, [part, asked, sums[0]])]

            (total,) = _loop(builder, chunks, [ir.Constant(_VECTOR, [0.0] * LANES)], add_chunk)
            score = builder.call(reduce, [ir.Constant(_FLOAT, 0.0), total], fastmath=("reassoc",))
            builder.store(score, _pointer(builder, builder.add(scores, builder.mul(j, _LONG(4))), 0, _FLOAT), align=4)
            return []

        _loop(builder, count, [], one_key)

    return types.void(*[types.int64] * 6), emit


@intrinsic
def mix_values(typing: Any, weights: Any, values: Any, apart: Any, count: Any, out: Any, dim: Any) -> Any:
    """out += sum over j of weights[j] * values[j]: bfloat16 [dim] each, `apart` bytes from one to the next.

    weights float32 [count], out float32 [dim]; dim is a multiple of 16.
    """

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        weights, values, apart, count, out, dim = arguments
        fma = _declare(builder, "llvm.fma.v16f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3))

        def one_chunk(c: Any, _: list[Any]) -> list[Any]:
            place = _pointer(builder, builder.add(out, builder.mul(c, _LONG(4 * LANES))), 0, _VECTOR)
            first = builder.add(values, builder.mul(c, _LONG(2 * LANES)))

            def add_value(j: Any, sums: list[Any]) -> list[Any]:
                part = _widened_vector(builder, builder.add(first, builder.mul(j, apart)))
                weight = _load(builder, builder.add(weights, builder.mul(j, _LONG(4))), 0, _FLOAT, 4)
                return [builder.call(fma, [part, _spread(builder, weight), sums[0]])]

            (total,) = _loop(builder, count, [builder.load(place, align=4)], add_value)
            builder.store(total, place, align=4)
            return []

        _loop(builder, builder.sdiv(dim, _LONG(LANES)), [], one_chunk)

    return types.void(*[types.int64] * 6), emit


def _widened_vector(builder: Any, address: Any) -> Any:
    """LANES bfloat16 as float32: their bits are the upper halves."""
    halves = _load(builder, address, 0, ir.VectorType(ir.IntType(16), LANES), 2)
    wide = builder.zext(halves, ir.VectorType(_INT, LANES))
    return builder.bitcast(builder.shl(wide, ir.Constant(ir.VectorType(_INT, LANES), [16] * LANES)), _VECTOR)


def _pointer(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, _LONG(offset)), kind.as_pointer())


def _load(builder: Any, address: Any, offset: int, kind: Any, align: int) -> Any:
    return builder.load(_pointer(builder, address, offset, kind), align=align)


def _spread(builder: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _INT(0))
    return builder.shuffle_vector(
        first, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
    )


def _declare(builder: Any, name: str, kind: Any) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, kind, name)


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address; what stood there before. Sequentially consistent."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def load_int(typing: Any, address: Any) -> Any:
    """The int64 at an address, and all that other threads wrote before they changed it."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def give_way(typing: Any) -> Any:
    """Let another thread run on this core, if one waits for it (sched_yield)."""

    def emit(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.call(_declare(builder, "sched_yield", ir.FunctionType(_INT, [])), [])

    return types.void(), emit


@intrinsic
def rounded(typing: Any, number: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _INT)
        odd = builder.and_(builder.lshr(bits, _INT(16)), _INT(1))
        nearest = builder.add(bits, builder.add(odd, _INT(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        chosen = builder.select(is_nan, _INT(0x7FC00000), nearest)
        return builder.trunc(builder.lshr(chosen, _INT(16)), ir.IntType(16))

    return types.uint16(types.float32), emit


@intrinsic
def power_of_two(typing: Any, whole: Any) -> Any:
    """2 to a whole float32 between -126 and 127."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        exponent = builder.add(builder.fptosi(arguments[0], _INT), _INT(127))
        return builder.bitcast(builder.shl(exponent, _INT(23)), _FLOAT)

    return types.float32(types.float32), emit
