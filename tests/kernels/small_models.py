"""Small Llama models with random weights, as the engine and as the kernels hold them, and sequences in pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.llama import Chunk, ForwardInput, LlamaModel
from structgen.engine.model_config import ModelConfig
from structgen.engine.weight_source import DictWeights
from structgen.kernels.interpreter import Rows
from structgen.kernels.model_shape import PAGE_SIZE
from structgen.kernels.packing import LayerWeights, ModelWeights

CONTEXT = 160


def config(**changes: int | bool) -> ModelConfig:
    """Llama-3.2-1B scaled down: 4 query heads for a key head of 64, a tied head."""
    sizes = {"vocab_size": 1000, "hidden": 256, "intermediate": 512, "layers": 3, "heads": 8, "kv_heads": 2}
    return ModelConfig(**{"head_dim": 64, "context": CONTEXT, "tied_head": True} | sizes | changes)  # type: ignore[arg-type]


# The smallest that has each property: SmolLM2's 9 heads for 3, heads of 128 and an own head, one head for each query.
CONFIGS = {
    "llama": config(),
    "smollm2": config(hidden=576, intermediate=1536, layers=2, heads=9, kv_heads=3, vocab_size=777),
    "wide": config(hidden=128, intermediate=320, layers=2, heads=4, kv_heads=1, head_dim=128, tied_head=False),
    "ungrouped": config(hidden=192, intermediate=256, layers=1, heads=3, kv_heads=3, vocab_size=64),
    "deep": config(hidden=64, intermediate=128, layers=5, heads=2, kv_heads=2, vocab_size=70, tied_head=False),
    "tiny": config(hidden=128, intermediate=192, layers=3, heads=6, kv_heads=2, vocab_size=100),
}


@dataclass(frozen=True)
class SmallModel:
    """Weights are rounded to bfloat16; `model` computes with them in float32."""

    config: ModelConfig
    model: LlamaModel
    weights: ModelWeights

    @classmethod
    def build(cls, config: ModelConfig) -> SmallModel:
        random = torch.Generator().manual_seed(config.hidden)
        width, inner = config.heads * config.head_dim, config.intermediate

        def matrix(rows: int, columns: int) -> Tensor:
            values = torch.randn(rows, columns, generator=random) / math.sqrt(columns)
            return values.bfloat16()

        tensors = {"embed_tokens.weight": matrix(config.vocab_size, config.hidden) * 8}
        tensors["norm.weight"] = (1 + 0.2 * torch.randn(config.hidden, generator=random)).bfloat16()
        if not config.tied_head:
            tensors["lm_head.weight"] = matrix(config.vocab_size, config.hidden)
        for layer in range(config.layers):
            prefix, kv = f"layers.{layer}.", config.kv_heads * config.head_dim
            sizes = {
                "self_attn.q_proj": (width, config.hidden),
                "self_attn.k_proj": (kv, config.hidden),
                "self_attn.v_proj": (kv, config.hidden),
                "self_attn.o_proj": (config.hidden, width),
                "mlp.gate_proj": (inner, config.hidden),
                "mlp.up_proj": (inner, config.hidden),
                "mlp.down_proj": (config.hidden, inner),
            }
            tensors |= {f"{prefix}{name}.weight": matrix(*size) for name, size in sizes.items()}
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{prefix}{name}.weight"] = (1 + 0.2 * torch.randn(config.hidden, generator=random)).bfloat16()
        model = LlamaModel(config, DictWeights(tensors), "float32")
        model.reserve(CONTEXT)
        return cls(config, model, _kernel_weights(config, tensors))

    def cache(self, dtype: torch.dtype = torch.float32) -> KVCache:
        """Room for 8 sequences of CONTEXT tokens."""
        return KVCache(self.config, 8 * CONTEXT // PAGE_SIZE, PAGE_SIZE, dtype)

    def layers(self, cache: KVCache) -> list[Tensor]:
        """The cache as the kernels see it: a layer [pages, 16, 2 * kv_heads, head_dim]."""
        shape = (cache.pages, cache.page_size, 2 * cache.kv_heads, cache.head_dim)
        return [layer.view(shape) for layer in cache.layers]

    def fill(self, cache: KVCache, ids: list[int], pages: Tensor) -> None:
        """Compute a sequence's tokens into its pages, int64 [CONTEXT / 16]."""
        places = torch.tensor([int(pages[at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE for at in range(len(ids))])
        used = -(-len(ids) // PAGE_SIZE)
        table = PageTable(pages=pages[:used], rows=1)
        chunk = Chunk(offset=0, count=len(ids), start=0, table=table)
        step = ForwardInput(
            ids=torch.tensor(ids), positions=torch.arange(len(ids)), places=places,
            decode_table=table, decode_lengths=(), chunks=(chunk,),
        )  # fmt: skip
        self.model.hidden(step, cache)

    def rotary(self) -> tuple[Tensor, Tensor]:
        """cos, sin float32 [CONTEXT, head_dim], the first half of sin negated."""
        angles = torch.arange(CONTEXT, dtype=torch.float64)[:, None] * torch.tensor(self.config.inverse_frequencies())
        cos, sin = angles.cos().float(), angles.sin().float()
        return torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)

    def rows(self, sequences: list[list[int]], tables: Tensor) -> Rows:
        """The step that computes the last token of each sequence, whose others are cached."""
        cos, sin = self.rotary()
        ids, positions = [ids[-1] for ids in sequences], [len(ids) - 1 for ids in sequences]
        return Rows(ids=torch.tensor(ids), positions=torch.tensor(positions), tables=tables, cos=cos, sin=sin)

    def expected(self, sequences: list[list[int]]) -> Tensor:
        """Logits [sequences, vocab] of the last token of each, in one pass each."""
        return torch.stack([self.model.logits(ids)[-1] for ids in sequences])


def random_sequences(config: ModelConfig, lengths: list[int]) -> list[list[int]]:
    random = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(0, config.vocab_size, (length,), generator=random).tolist() for length in lengths]


def shuffled_tables(rows: int) -> Tensor:
    """int64 [rows, pages]: no page stands where it would without paging."""
    pages = CONTEXT // PAGE_SIZE
    return torch.randperm(8 * pages, generator=torch.Generator().manual_seed(1))[: rows * pages].view(rows, pages)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def _kernel_weights(config: ModelConfig, tensors: dict[str, Tensor]) -> ModelWeights:
    def layer(prefix: str) -> LayerWeights:
        def stacked(*names: str) -> Tensor:
            return torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])

        return LayerWeights(
            qkv=stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output=stacked("self_attn.o_proj"),
            gate_up=stacked("mlp.gate_proj", "mlp.up_proj"),
            down=stacked("mlp.down_proj"),
            attention_norm=stacked("input_layernorm"),
            mlp_norm=stacked("post_attention_layernorm"),
        )

    embedding = tensors["embed_tokens.weight"]
    return ModelWeights(
        layers=tuple(layer(f"layers.{index}.") for index in range(config.layers)),
        embedding=embedding,
        head=embedding if config.tied_head else tensors["lm_head.weight"],
        final_norm=tensors["norm.weight"],
    )
