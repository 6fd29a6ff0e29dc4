"""The forward pass as data: what one program of the persistent kernel does, in which order, and what it waits for.

A decode step of `batch` rows is a list of instructions for each program. An instruction waits until a counter has
reached a number of arrivals (counted from the start of the step), works, and then arrives at a counter. All numbers are
in blocks of 64 rows or columns. Matrix products are split by rows and by columns (k), and partial sums of one row are
added up in memory, so a value is final only when everybody who adds to it has arrived.

Order in a layer, and the data that passes:

    Qkv        norm(residual) x Wqkv, added to `qkv` [batch, kv_heads, group_rows]                arrives at its group
    Attention  waits for its group's Qkv; rope; appends keys and values; softmax over its
               share of the context, to `partial` [kv_heads, parts, batch, ...]                   arrives at its group
    Output     waits for its group's Attention; merges the parts; x Wo, added to `middle`         arrives at FULL
    GateUp     waits for all Output; norm(middle) -> silu(gate) * up, to `neurons`
               [batch, intermediate]                                                              arrives at its group
    Down       waits for its group's GateUp; the group's neurons x their columns of Wdown,
               added to the residual                                                              arrives at FULL
    Head       waits for all Down; norm(residual) x head; mask, temperature, best token           arrives at DONE

A *group* is the programs that share one key/value head. The factor 1 / rms of a norm is applied after the product; for
Qkv the group adds up its input's squares beside its sums. `residual` and `middle` exist twice, by the parity of the
layers run so far, so that nobody adds to what may still be read: Output adds its sums and, once for each row block r,
in the group r % kv_heads with k_begin = 0, the layer's input (the embedding in layer 0); Down likewise adds `middle`.
Between the FULL wait of GateUp and Down's arrival each program clears its share of the buffers that are added to next.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

FULL, DONE, FIRST_GROUP = 0, 1, 2  # counters; group g has counter FIRST_GROUP + g


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """`wait_arrivals` arrivals at counter `wait_counter` must have happened in this step; 0 means no wait.

    The same holds for the (counter, arrivals) pairs of `also_waits`.
    """

    layer: int
    wait_counter: int
    wait_arrivals: int
    arrive_counter: int
    also_waits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Qkv(Instruction):
    """Rows [row_begin, row_end) of the group's stacked queries, key and value; columns [k_begin, k_end) of hidden."""

    group: int
    row_begin: int
    row_end: int
    k_begin: int
    k_end: int


@dataclass(frozen=True, kw_only=True)
class Attention(Instruction):
    """Items member, member + members, ... below parts * batch: item = part * batch + row.

    Part p of a row is pages [p * share, (p + 1) * share) of its context, share = ceil(pages of the row / parts).
    Rows may be consecutive tokens of one sequence: then every member appends the keys and values of *all* rows first
    (the same bytes). A row alone in its sequence needs no append before its softmax: the member whose part has its
    position takes its key and value from `qkv`, and appends them. A single row with a short context is attended to by
    every member as a whole; nothing then passes through `partial`, and its Output does not wait.
    """

    group: int
    member: int
    members: int
    parts: int


@dataclass(frozen=True, kw_only=True)
class Output(Instruction):
    """Rows [row_begin, row_end) of hidden; columns [k_begin, k_end) of the group's heads, stacked."""

    group: int
    row_begin: int
    row_end: int
    k_begin: int
    k_end: int


@dataclass(frozen=True, kw_only=True)
class GateUp(Instruction):
    """Neurons [neuron_begin, neuron_end), all columns. Also clears its share of `qkv`, which all have read by now."""

    group: int
    neuron_begin: int
    neuron_end: int


@dataclass(frozen=True, kw_only=True)
class Down(Instruction):
    """Rows [row_begin, row_end) of hidden; columns [k_begin, k_end), counted from `first_neuron` of the group."""

    group: int
    first_neuron: int
    row_begin: int
    row_end: int
    k_begin: int
    k_end: int


@dataclass(frozen=True, kw_only=True)
class Head(Instruction):
    """Blocks of vocabulary rows block_begin, block_begin + block_stride, ... : block_count of them."""

    block_begin: int
    block_stride: int
    block_count: int


LAYER_INSTRUCTIONS = (Qkv, Attention, Output, GateUp, Down)
_COMMON = {field.name for field in fields(Instruction)}


def packed_fields() -> tuple[str, ...]:
    """Names of the packed int32 fields of a program, in order: "qkv_row_begin" and so on.

    Layers differ only in the arrivals they wait for, which the kernel counts itself, so one layer is packed.
    """
    names = []
    for kind in (*LAYER_INSTRUCTIONS, Head):
        own = [field.name for field in fields(kind) if field.name not in _COMMON]
        names += [f"{kind.__name__.lower()}_{name}" for name in own]
    return (*names, *STREAM_FIELDS)


STREAM_FIELDS = ("layer_slots", "layer_base", "layer_stride", "head_slots", "head_base", "head_stride")
"""Where the program's weights lie, in slots (see schedule.py): slot i of the layers is layer_base + i * layer_stride;
the head's slots of one block of rows adjoin: slot j of block b is head_base + b * head_stride + j."""
