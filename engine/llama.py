"""LlamaModel: the forward pass in plain PyTorch. The numerical truth that every faster runner is compared with.

Shapes: N tokens of a step (decode rows first, then prefill chunks), R decode rows, H heads, K key/value heads,
G = H / K, D = head_dim, L cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from structgen.engine.errors import ModelError
from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.linear import DenseLinear, Int8Linear, Linear, Scratch
from structgen.engine.lora import AdapterTable
from structgen.engine.model_config import ModelConfig
from structgen.engine.paged_rows import Attend, PagedRows
from structgen.engine.weight_source import WeightSource

Precision = Literal["bfloat16", "float32", "int8"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """`count` prompt tokens of one sequence, standing at `offset` in the step, with `start` tokens cached before."""

    offset: int
    count: int
    start: int
    table: PageTable  # the sequence's pages up to start + count tokens


@dataclass(frozen=True, kw_only=True)
class ForwardInput:
    """What one forward pass reads. The tensors are views of a StepSlot's buffers, or small ones made for a test."""

    ids: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    places: Tensor  # int64 [N]: page * page_size + offset in the page
    decode_table: PageTable  # of the R decode rows
    decode_lengths: Sequence[int]  # tokens cached after this step, a row
    chunks: Sequence[Chunk]
    adapters: Tensor | None = None  # int64 [N]: each token's slot in the AdapterTable; None when no token has one


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One block's weights; q, k, v and gate, up are fused row-wise so that a step launches four products."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """A Llama-shaped network. `hidden` runs the blocks, `head` turns hidden states into logits.

    `hidden` takes a step as the CPU likes it, `hidden_rows` as a GPU does; 8-bit weights are for the CPU.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        precision: Precision,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        if precision == "int8" and self.device.type != "cpu":
            raise ModelError("8-bit weights are for the CPU", hint="use dtype='bfloat16' on a GPU")
        self.precision = precision
        self.dtype = torch.float32 if precision == "float32" else torch.bfloat16
        linear = _linear_maker(precision, self.dtype)
        weights = _OnDevice(weights, self.device)
        embedding = weights.get("embed_tokens.weight")
        self.embedding = embedding.to(self.dtype)
        self.layers = [_layer(weights, f"layers.{index}.", linear, self.dtype) for index in range(config.layers)]
        self.final_norm = weights.get("norm.weight").to(self.dtype)
        if config.tied_head and precision != "int8":
            self._head: Linear = DenseLinear(self.embedding)
        else:
            self._head = linear(embedding if config.tied_head else weights.get("lm_head.weight"))
        self._frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float64)
        if weights.has("rope_factors"):  # llama3 scaling as GGUF files carry it: one divisor a pair
            self._frequencies = self._frequencies / weights.get("rope_factors").double().cpu()
        self._cos, self._sin = torch.empty(0), torch.empty(0)

    def reserve(self, context: int) -> None:
        """Compute the rotary tables for positions below `context`. ModelError when the model does not reach so far."""
        exact = self.config.exact_context
        if exact is not None and context > exact:
            raise ModelError(
                f"the model computes at most {exact} positions as it was trained; {context} were asked for",
                hint=f"use max_context={exact} or less (a longer sliding window or dynamic rope is not implemented)",
            )
        if self._cos.shape[0] >= context:
            return
        turns = self.turns(context).to(self.device, self.dtype)[:, :, None, :]
        self._cos, self._sin = turns[:, 0].contiguous(), turns[:, 1].contiguous()

    @property
    def output_head(self) -> Linear:
        return self._head

    def turns(self, context: int) -> Tensor:
        """The rotary tables of positions below `context` in float32, [context, 2, head_dim]: cos, signed sin."""
        angles = torch.arange(context, dtype=torch.float64)[:, None] * self._frequencies.float().double()
        both = torch.cat([angles, angles], dim=1)
        signs = torch.ones(self.config.head_dim)
        signs[: self.config.head_dim // 2] = -1  # (a, b) * cos + (b, a) * (-sin, sin) is the rotation
        signs *= self.config.attention_factor
        return torch.stack([both.cos() * self.config.attention_factor, both.sin() * signs], dim=1).float()

    @torch.inference_mode()
    def hidden(self, step: ForwardInput, cache: KVCache, table: AdapterTable | None = None) -> Tensor:
        """Run the blocks over the step's tokens, [N, hidden] before the last norm; their keys and values are cached.

        `table` holds the adapters that `step.adapters` names.
        """
        return self._blocks(step, cache, self._attention(step, cache), table)

    @torch.inference_mode()
    def hidden_rows(self, step: PagedRows, cache: KVCache, table: AdapterTable | None = None) -> Tensor:
        """`hidden` for a step whose every token is a row of its own; reads nothing back from the device."""
        return self._blocks(step, cache, step.attention(self.config, cache), table)

    def _blocks(
        self, step: ForwardInput | PagedRows, cache: KVCache, attend: Attend, table: AdapterTable | None
    ) -> Tensor:
        apply = _products(table, step.adapters)
        config = self.config
        cos, sin = self._cos[step.positions], self._sin[step.positions]
        rotary = config.heads + config.kv_heads
        query_width = config.heads * config.head_dim
        x = functional.embedding(step.ids, self.embedding)
        for index, layer in enumerate(self.layers):
            qkv = apply(index, "qkv", layer.qkv, self._norm(x, layer.attention_norm))
            turned = qkv.view(len(x), -1, config.head_dim)[:, :rotary]
            torch.addcmul(turned * cos, turned.roll(config.head_dim // 2, -1), sin, out=turned)
            cache.write(index, step.places, qkv[:, query_width:])
            x += apply(index, "output", layer.output, attend(index, qkv[:, :query_width]))
            gate, up = apply(index, "gate_up", layer.gate_up, self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x += apply(index, "down", layer.down, functional.silu(gate).mul_(up))
        return x

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab_size] of hidden states [rows, hidden]."""
        return self._head(self._norm(hidden, self.final_norm))

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits [tokens, vocab_size] of one text in one pass with a cache of its own: for tests and comparisons."""
        count = len(ids)
        self.reserve(count)
        cache = KVCache(self.config, 1, count, self.dtype)
        places = torch.arange(count)
        table = PageTable(pages=torch.zeros(1, dtype=torch.int64), rows=1, first=0)
        chunk = Chunk(offset=0, count=count, start=0, table=table)
        step = ForwardInput(
            ids=torch.tensor(ids),
            positions=places,
            places=places,
            decode_table=table,
            decode_lengths=(),
            chunks=(chunk,),
        )
        return self.head(self.hidden(step, cache))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _attention(self, step: ForwardInput, cache: KVCache) -> Callable[[int, Tensor], Tensor]:
        """A function (layer, queries [N, H * D]) -> [N, H * D]; the masks are built once for all layers.

        The G query heads that share a key head stand as G queries of one head: keys are read once, not G times.
        """
        rows, config = len(step.decode_lengths), self.config
        kv, group, dim = config.kv_heads, config.group, config.head_dim
        longest = max(step.decode_lengths, default=0)
        decode_mask = self._decode_mask(step.decode_lengths, longest)
        chunk_masks = [self._chunk_mask(chunk) for chunk in step.chunks]

        def attend(layer: int, queries: Tensor) -> Tensor:
            parts = []
            if rows:
                keys, values = cache.read(layer, step.decode_table)
                query = queries[:rows].view(rows, kv, group, dim)
                mixed = functional.scaled_dot_product_attention(
                    query, keys[:, :, :longest], values[:, :, :longest], attn_mask=decode_mask
                )
                parts.append(mixed.reshape(rows, -1))
            for chunk, mask in zip(step.chunks, chunk_masks, strict=True):
                end = chunk.start + chunk.count
                keys, values = cache.read(layer, chunk.table)
                query = queries[chunk.offset : chunk.offset + chunk.count].view(1, chunk.count, kv, group, dim)
                query = query.permute(0, 2, 3, 1, 4).reshape(1, kv, group * chunk.count, dim)
                mixed = functional.scaled_dot_product_attention(
                    query, keys[:, :, :end], values[:, :, :end], attn_mask=mask
                )
                mixed = mixed.view(kv, group, chunk.count, dim).permute(2, 0, 1, 3)
                parts.append(mixed.reshape(chunk.count, -1))
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend

    def _decode_mask(self, lengths: Sequence[int], longest: int) -> Tensor | None:
        """[R, 1, 1, L], -inf on the padding of shorter rows; None when no row is padded."""
        if all(length == longest for length in lengths):
            return None
        padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
        return torch.zeros(padding.shape, dtype=self.dtype).masked_fill_(padding, -torch.inf)[:, None, None, :]

    def _chunk_mask(self, chunk: Chunk) -> Tensor:
        """[G * count, L]: token i of the chunk sees what was cached before and the chunk up to itself."""
        end = chunk.start + chunk.count
        later = torch.arange(end) > torch.arange(chunk.start, end)[:, None]
        mask = torch.zeros(later.shape, dtype=self.dtype).masked_fill_(later, -torch.inf)
        return mask.repeat(self.config.group, 1)


class _OnDevice:
    """A WeightSource whose tensors come out on a device."""

    def __init__(self, source: WeightSource, device: torch.device) -> None:
        self._source, self._device = source, device

    def get(self, name: str) -> Tensor:
        return self._source.get(name).to(self._device)

    def has(self, name: str) -> bool:
        return self._source.has(name)


def _products(table: AdapterTable | None, slots: Tensor | None) -> Callable[[int, str, Linear, Tensor], Tensor]:
    """How a matrix is applied in this step: as it is, or with each token's adapter added."""
    if slots is None:
        return lambda layer, name, matrix, x: matrix(x)
    assert table is not None, "the step names adapters, and there is no table of them"
    add = table.bind(slots)

    def apply(layer: int, name: str, matrix: Linear, x: Tensor) -> Tensor:
        out = matrix(x)
        add(layer, name, x, out)
        return out

    return apply


def _linear_maker(precision: Precision, dtype: torch.dtype) -> Callable[[Tensor], Linear]:
    if precision == "int8":
        scratch = Scratch()
        return lambda weight: Int8Linear(weight, scratch)
    return lambda weight: DenseLinear(weight.to(dtype))


def _layer(weights: WeightSource, prefix: str, linear: Callable[[Tensor], Linear], dtype: torch.dtype) -> Layer:
    def get(name: str) -> Tensor:
        return weights.get(prefix + name + ".weight")

    return Layer(
        attention_norm=get("input_layernorm").to(dtype),
        qkv=linear(torch.cat([get(f"self_attn.{name}_proj") for name in "qkv"])),
        output=linear(get("self_attn.o_proj")),
        mlp_norm=get("post_attention_layernorm").to(dtype),
        gate_up=linear(torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")])),
        down=linear(get("mlp.down_proj")),
    )
