"""ModelConfig: the numbers that fix a Llama-shaped network, from a Hugging Face config or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from structgen.engine.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Stretching of the rotary frequencies. `linear` divides all of them by `factor`; `llama3` only the slow ones."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """`context` is the number of positions the model was made for; all sizes are in elements."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tied_head: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd; rotary embedding needs pairs")

    @property
    def group(self) -> int:
        """Query heads for one key/value head."""
        return self.heads // self.kv_heads

    def inverse_frequencies(self) -> list[float]:
        """Radians per position of each of the head_dim/2 rotary pairs, scaling applied."""
        plain = [self.rope_theta ** (-2 * pair / self.head_dim) for pair in range(self.head_dim // 2)]
        scaling = self.rope_scaling
        if scaling is None:
            return plain
        if scaling.kind == "linear":
            return [frequency / scaling.factor for frequency in plain]
        return [_llama3_frequency(frequency, scaling) for frequency in plain]


def _llama3_frequency(frequency: float, scaling: RopeScaling) -> float:
    """Llama 3.1: slow waves are slowed by `factor`, fast ones kept, those between blended."""
    turns = scaling.original_context * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = min(max((turns - low) / (high - low), 0.0), 1.0)
    return keep * frequency + (1 - keep) * frequency / scaling.factor


def config_from_huggingface(raw: Mapping[str, Any]) -> ModelConfig:
    """Read the parsed config.json. ModelError when the architecture or one of its options is not ours."""
    _refuse_other_architectures(raw)
    try:
        hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(raw["vocab_size"]),
            hidden=hidden,
            intermediate=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            context=int(raw.get("max_position_embeddings", 2048)),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(_rope_options(raw).get("rope_theta", 10000.0)),
            rope_scaling=_rope_scaling(_rope_options(raw)),
            tied_head=bool(raw.get("tie_word_embeddings", False)),
        )
    except KeyError as missing:
        raise ModelError(f"config.json lacks {missing}", hint="is this the folder of a Llama-shaped model?") from None


def _refuse_other_architectures(raw: Mapping[str, Any]) -> None:
    kind = raw.get("model_type")
    if kind not in ("llama", "mistral"):
        names = raw.get("architectures") or [kind]
        raise ModelError(
            f"the model's architecture is {names[0]}, not Llama",
            hint="use a checkpoint whose config.json says model_type llama (or mistral without a sliding window)",
        )
    if raw.get("sliding_window") is not None:
        raise ModelError(f"sliding_window={raw['sliding_window']} is not implemented", hint="use a model without it")
    for option in ("attention_bias", "mlp_bias"):
        if raw.get(option):
            raise ModelError(f"{option}=true is not implemented", hint="use a checkpoint without bias terms")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act={raw['hidden_act']} is not implemented; Llama has silu")


def _rope_options(raw: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`; older files `rope_scaling` with `rope_theta` beside it."""
    options = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    if "rope_theta" in raw:
        options.setdefault("rope_theta", raw["rope_theta"])
    return options


def _rope_scaling(options: Mapping[str, Any]) -> RopeScaling | None:
    kind = options.get("rope_type", options.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=float(options["factor"]))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=float(options["factor"]),
            low_freq_factor=float(options["low_freq_factor"]),
            high_freq_factor=float(options["high_freq_factor"]),
            original_context=int(options["original_max_position_embeddings"]),
        )
    raise ModelError(f"rope scaling {kind!r} is not implemented", hint="default, linear and llama3 are")
