"""ModelConfig: the numbers that fix a Llama-shaped network, and how config.json tells them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structgen.engine.errors import ModelError
from structgen.engine.rope_scaling import RopeScaling, rope_kind, scaling_from_huggingface

# What transformers assumes where config.json is silent.
_DEFAULTS: dict[str, dict[str, int | None]] = {
    "llama": {"max_position_embeddings": 2048, "num_key_value_heads": None, "sliding_window": None},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """All sizes are in elements.

    context        positions that the model was made for
    exact_context  positions beyond which it would be another network than this one (a sliding window that hides early
                   tokens, frequencies that change with the length); None when there is no such bound
    """

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    exact_context: int | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tied_head: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context"):
            if getattr(self, name) < 1:
                raise ModelError(f"the model's {name} is {getattr(self, name)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd; rotary embedding needs pairs")
        if not (self.rope_theta > 1 and math.isfinite(self.rope_theta)):
            raise ModelError(f"rope_theta {self.rope_theta} must be above 1")
        if not (self.norm_eps >= 0 and math.isfinite(self.norm_eps)):
            raise ModelError(f"the norms' epsilon {self.norm_eps} must be at least 0")

    @property
    def group(self) -> int:
        """Query heads for one key/value head."""
        return self.heads // self.kv_heads

    @property
    def attention_factor(self) -> float:
        """What cos and sin of the rotary embedding are multiplied by."""
        return self.rope_scaling.attention_factor if self.rope_scaling else 1.0

    def inverse_frequencies(self) -> list[float]:
        """Radians per position of each of the head_dim/2 rotary pairs, scaling applied."""
        plain = [self.rope_theta ** (-2 * pair / self.head_dim) for pair in range(self.head_dim // 2)]
        return self.rope_scaling.apply(plain, self.rope_theta) if self.rope_scaling else plain


def config_from_huggingface(raw: Mapping[str, Any]) -> ModelConfig:
    """Read the parsed config.json. ModelError when the architecture or one of its options is not ours."""
    _refuse_other_architectures(raw)
    try:
        return _llama_config(raw)
    except KeyError as missing:
        raise ModelError(f"config.json lacks {missing}", hint="is this the folder of a Llama-shaped model?") from None
    except (TypeError, ValueError, OverflowError) as problem:
        raise ModelError(f"config.json holds a value of the wrong kind: {problem}") from None


def _llama_config(raw: Mapping[str, Any]) -> ModelConfig:
    defaults = _DEFAULTS[raw["model_type"]]
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    context = int(raw.get("max_position_embeddings", defaults["max_position_embeddings"]))
    window = raw.get("sliding_window", defaults["sliding_window"])
    rope = _rope_options(raw)
    exact = [int(window)] if window is not None else []
    if rope_kind(rope) == "dynamic":
        exact.append(context)
    return ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden=hidden,
        intermediate=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads", defaults["num_key_value_heads"]) or heads),
        head_dim=int(raw.get("head_dim") or hidden // max(heads, 1)),
        context=min(context, *exact) if exact else context,
        exact_context=min(exact, default=None),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        rope_scaling=scaling_from_huggingface(rope, context, raw.get("original_max_position_embeddings")),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
    )


def _refuse_other_architectures(raw: Mapping[str, Any]) -> None:
    if raw.get("model_type") not in _DEFAULTS:
        names = raw.get("architectures") or [raw.get("model_type")]
        raise ModelError(
            f"the model's architecture is {names[0] if isinstance(names, list) else names}, not Llama",
            hint="use a checkpoint whose config.json says model_type llama or mistral",
        )
    if quantised := raw.get("quantization_config") or raw.get("compression_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise ModelError(
            f"the checkpoint is quantised ({method}), which is not read",
            hint='use the unquantised checkpoint, which dtype="int8" makes small, or a GGUF file',
        )
    for option in ("attention_bias", "mlp_bias"):
        if raw.get(option):
            raise ModelError(f"{option}=true is not implemented", hint="use a checkpoint without bias terms")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act={raw['hidden_act']} is not implemented; Llama has silu")


def _rope_options(raw: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`; older files `rope_scaling` with `rope_theta` beside it, or neither."""
    options = {**(raw.get("rope_scaling") or raw.get("rope_parameters") or {})}
    for name in ("rope_theta", "partial_rotary_factor"):
        if raw.get(name) is not None and options.get(name) is None:
            options[name] = raw[name]
    return {name: value for name, value in options.items() if value is not None or name == "factor"}
