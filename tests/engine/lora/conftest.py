"""A tiny model whose weights are at hand, and LoRA adapters for it as PEFT would save them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from structgen.engine import LlamaModel, ModelConfig
from structgen.engine.llama import Precision
from structgen.engine.weight_source import DictWeights

CONFIG = ModelConfig(vocab_size=90, hidden=48, intermediate=96, layers=2, heads=6, kv_heads=2, head_dim=8, context=1024)
SIZES = {
    "self_attn.q_proj": (48, 48),
    "self_attn.k_proj": (16, 48),
    "self_attn.v_proj": (16, 48),
    "self_attn.o_proj": (48, 48),
    "mlp.gate_proj": (96, 48),
    "mlp.up_proj": (96, 48),
    "mlp.down_proj": (48, 96),
}


@dataclass(frozen=True)
class SavedAdapter:
    """The folder, and what the adapter adds to each matrix: name without `.weight` -> [out, in]."""

    folder: Path
    deltas: Mapping[str, Tensor]


@dataclass(frozen=True)
class TinyModel:
    """`tensors` by name. `merged` is the slow twin of an adapter: its product added to the weights themselves."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    plain: LlamaModel
    _merged: dict[Path, LlamaModel] = field(default_factory=dict)

    def merged(self, adapter: SavedAdapter | None, precision: Precision = "float32") -> LlamaModel:
        if adapter is None and precision == "float32":
            return self.plain
        deltas = adapter.deltas if adapter else {}
        changed = {name: tensor + deltas.get(name.removesuffix(".weight"), 0) for name, tensor in self.tensors.items()}
        return LlamaModel(self.config, DictWeights(changed), precision)

    def greedy(self, prompt: Sequence[int], count: int, adapter: SavedAdapter | None = None) -> list[int]:
        """The whole text again for every token, with the merged model and no shared cache."""
        if adapter is None:
            model = self.plain
        else:
            model = self._merged.setdefault(adapter.folder, self.merged(adapter))
        text = list(prompt)
        for _ in range(count):
            text.append(int(model.logits(text)[-1].argmax()))
        return text[len(prompt) :]


@pytest.fixture(scope="session")
def tiny() -> Iterator[TinyModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(21)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (90, 48), "lm_head": (90, 48), "norm": (48,)}
    for layer in range(CONFIG.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in SIZES.items()}
        shapes |= {f"layers.{layer}.{name}_layernorm": (48,) for name in ("input", "post_attention")}
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    yield TinyModel(CONFIG, tensors, LlamaModel(CONFIG, DictWeights(tensors), "float32"))
    torch.set_num_threads(before)


@pytest.fixture
def save_adapter(tmp_path: Path) -> Callable[..., SavedAdapter]:
    """save_adapter(name, r=, alpha=, targets=, layers=, size=, seed=, ranks=, alphas=, **further options)."""

    def save(
        name: str,
        *,
        r: int = 4,
        alpha: float = 8,
        targets: Sequence[str] = tuple(SIZES),
        layers: Sequence[int] = range(CONFIG.layers),
        size: float = 0.3,
        ranks: Mapping[str, int] | None = None,
        alphas: Mapping[str, float] | None = None,
        use_rslora: bool = False,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> SavedAdapter:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        tensors: dict[str, Tensor] = {}
        deltas: dict[str, Tensor] = {}
        for layer in layers:
            for target in targets:
                module = f"layers.{layer}.{target}"
                last = target.split(".")[-1]
                rank, scale = (ranks or {}).get(last, r), (alphas or {}).get(last, alpha)
                out, inner = SIZES[target]
                a = (torch.randn(rank, inner, generator=generator) * size).to(dtype)
                b = (torch.randn(out, rank, generator=generator) * size).to(dtype)
                tensors[f"base_model.model.model.{module}.lora_A.weight"] = a
                tensors[f"base_model.model.model.{module}.lora_B.weight"] = b
                deltas[module] = b.float() @ a.float() * (scale / (math.sqrt(rank) if use_rslora else rank))
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        config = {
            "peft_type": "LORA",
            "r": r,
            "lora_alpha": alpha,
            "target_modules": [target.split(".")[-1] for target in targets],
            "use_rslora": use_rslora,
            "rank_pattern": dict(ranks or {}),
            "alpha_pattern": dict(alphas or {}),
            "bias": "none",
            "base_model_name_or_path": "somewhere/else",
            **options,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "adapter_model.safetensors")
        return SavedAdapter(folder, deltas)

    return save
