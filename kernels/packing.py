"""Packed weights: every 64 x 64 block of the model, in the order in which the programs of a schedule read them.

[total_slots * slot_blocks * 64, 64] bfloat16: a block is 64 consecutive rows. A second copy of the weights beside the
row-major ones, which prefill (PyTorch), the embedding and a head under a sparse mask go on using.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.kernels.model_shape import BLOCK, ModelShape
from structgen.kernels.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Row-major bfloat16, as engine/llama.py has them: qkv is all queries, then all keys, then all values."""

    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    output: Tensor  # [hidden, heads * head_dim]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    attention_norm: Tensor  # [hidden]
    mlp_norm: Tensor  # [hidden]


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    layers: tuple[LayerWeights, ...]
    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]; the embedding itself when they are tied
    final_norm: Tensor  # [hidden]


def pack_weights(weights: ModelWeights, schedule: Schedule) -> Tensor:
    """The packed copy, on the device of the weights."""
    shape, size = schedule.shape, schedule.slot_blocks
    device = weights.embedding.device
    slots = torch.empty(schedule.total_slots, size, BLOCK, BLOCK, dtype=torch.bfloat16, device=device)
    programs = range(schedule.programs)
    order = torch.cat([_layer_order(schedule, program) for program in programs]).to(device)
    places = torch.cat([_layer_places(schedule, program) for program in programs]).to(device)
    for index, layer in enumerate(weights.layers):
        blocks = _layer_matrix_blocks(layer, shape)
        at = places[:, 0] + index * places[:, 1]
        slots[at] = blocks[order].view(-1, size, BLOCK, BLOCK)
    base = schedule.stream(0)["head_base"]
    head = slots[base:].view(-1, BLOCK, BLOCK)
    rows = shape.vocab_size // BLOCK * BLOCK
    head[: rows // BLOCK * shape.hidden_blocks] = _blocks(weights.head[:rows])
    if rows < shape.vocab_size:
        last = torch.zeros(BLOCK, shape.hidden, dtype=torch.bfloat16, device=device)
        last[: shape.vocab_size - rows] = weights.head[rows:]
        head[rows // BLOCK * shape.hidden_blocks :] = _blocks(last)
    return slots.view(-1, BLOCK)


def _blocks(matrix: Tensor) -> Tensor:
    """[rows, columns] -> [rows / 64 * columns / 64, 64, 64], the blocks of one row of blocks adjoining."""
    rows, columns = matrix.shape
    tiles = matrix.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    return tiles.transpose(1, 2).reshape(-1, BLOCK, BLOCK)


def group_order(shape: ModelShape) -> Tensor:
    """Row indices of the fused QKV matrix in group order: a key/value head's queries, its key, its value, next head."""
    dim, kv, group = shape.head_dim, shape.kv_heads, shape.group
    rows = torch.arange((shape.heads + 2 * kv) * dim)
    query, key, value = torch.split(rows, [shape.heads * dim, kv * dim, kv * dim])
    return torch.cat([query.view(kv, group * dim), key.view(kv, dim), value.view(kv, dim)], dim=1).flatten()


def _layer_matrix_blocks(layer: LayerWeights, shape: ModelShape) -> Tensor:
    gate, up = layer.gate_up.chunk(2)
    qkv = layer.qkv[group_order(shape).to(layer.qkv.device)]
    return torch.cat([_blocks(matrix) for matrix in (qkv, layer.output, gate, up, layer.down)])


def _layer_order(schedule: Schedule, program: int) -> Tensor:
    """For each block that the program reads in a layer, its index in `_layer_matrix_blocks`."""
    shape = schedule.shape
    columns = {
        "qkv": shape.hidden_blocks,
        "output": shape.heads * shape.head_dim // BLOCK,
        "gate": shape.hidden_blocks,
        "up": shape.hidden_blocks,
        "down": shape.neuron_blocks,
    }
    rows = (shape.kv_heads * shape.group_rows // BLOCK, shape.hidden_blocks, shape.neuron_blocks, shape.neuron_blocks)
    first, begin = {}, 0
    for name, count in zip(columns, (*rows, shape.hidden_blocks), strict=True):
        first[name] = begin
        begin += count * columns[name]
    blocks = schedule.layer_blocks(program)
    return torch.tensor([first[b.matrix] + b.row * columns[b.matrix] + b.k for b in blocks], dtype=torch.int64)


def _layer_places(schedule: Schedule, program: int) -> Tensor:
    """[slots, 2]: where the program's slots of layer 0 lie, and how far on those of the next layer are."""
    stream = schedule.stream(program)
    count, stride = stream["layer_slots"], stream["layer_stride"]
    index = torch.arange(count, dtype=torch.int64)
    return torch.stack([stream["layer_base"] + index * stride, torch.full_like(index, count * stride)], dim=1)
