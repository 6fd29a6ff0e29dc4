"""A GGUF file of a Llama-shaped model, its tensors dequantised when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.gguf_file import GGUFFile, StoredTensor
from structgen.engine.model_config import ModelConfig
from structgen.engine.rope_scaling import KNOWN, RopeScaling, yarn_attention_factor

_OUTER = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GGUFWeights:
    """A WeightSource over a memory-mapped file."""

    def __init__(self, file: Path) -> None:
        self._file = GGUFFile(file)
        self.config = config_from_gguf(self._file)

    @property
    def names(self) -> Iterable[str]:
        """Of all tensors in the file, in our spelling where we have one."""
        return [_our_name(name) for name in self._file.tensors]

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._file.tensors

    def get(self, name: str) -> Tensor:
        if not self.has(name):
            raise ModelError(f"the GGUF file lacks {gguf_name(name)}", hint="it may be cut short; fetch it again")
        tensor = torch.from_numpy(self._file.read(gguf_name(name)))
        if name.endswith("q_proj.weight"):
            return unpermute(tensor, self.config.heads)
        if name.endswith("k_proj.weight"):
            return unpermute(tensor, self.config.kv_heads)
        return tensor


def gguf_name(name: str) -> str:
    """Our name -> the file's: `layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    if name in _OUTER:
        return _OUTER[name]
    _, index, inner = name.split(".", 2)
    return f"blk.{index}.{_INNER[inner.removesuffix('.weight')]}.weight"


def _our_name(stored: str) -> str:
    """The file's name -> ours, or the file's own when we have none."""
    for ours, theirs in _OUTER.items():
        if stored == theirs:
            return ours
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", stored)
    inner = {theirs: ours for ours, theirs in _INNER.items()}.get(found[2]) if found else None
    return f"layers.{found[1]}.{inner}.weight" if found and inner else stored


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo the row order of llama GGUF files, [heads * D, in].

    They store the two halves of each head interleaved (pair i at rows 2i, 2i + 1), for rotation of neighbours; we
    rotate halves (pair i at rows i, i + D/2), as Hugging Face checkpoints do.
    """
    pairs = weight.shape[0] // heads // 2
    return weight.view(heads, pairs, 2, -1).transpose(1, 2).reshape(weight.shape)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the metadata. ModelError when the architecture or one of its options is not ours."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the GGUF file's architecture is {architecture}, not llama", hint="use a Llama-shaped model")
    try:
        return _llama_config({key.removeprefix("llama."): value for key, value in file.metadata.items()}, file.tensors)
    except KeyError as missing:
        raise ModelError(f"the GGUF metadata lacks {missing}", hint="it may be cut short; fetch it again") from None
    except (TypeError, ValueError, OverflowError, IndexError) as problem:
        raise ModelError(f"the GGUF metadata holds a value of the wrong kind: {problem}") from None


def _llama_config(meta: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> ModelConfig:
    if meta.get("expert_count"):
        raise ModelError("the GGUF file is a mixture of experts, which is not implemented", hint="use a dense model")
    if int(meta.get("split.count", 1)) > 1:
        raise ModelError(
            f"the GGUF file is one of {meta['split.count']} parts", hint="join them with llama-gguf-split --merge"
        )
    hidden, heads = int(meta["embedding_length"]), int(meta["attention.head_count"])
    head_dim = int(meta.get("attention.key_length", hidden // max(heads, 1)))
    if int(meta.get("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError("the GGUF file rotates only a part of each head, which is not implemented")
    context, window = int(meta["context_length"]), int(meta.get("attention.sliding_window", 0)) or None
    return ModelConfig(
        vocab_size=int(tensors["token_embd.weight"].shape[0]),
        hidden=hidden,
        intermediate=int(meta["feed_forward_length"]),
        layers=int(meta["block_count"]),
        heads=heads,
        kv_heads=int(meta.get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        context=min(context, window or context),
        exact_context=window,
        norm_eps=float(meta["attention.layer_norm_rms_epsilon"]),
        rope_theta=float(meta.get("rope.freq_base", 10000.0)),
        rope_scaling=_rope_scaling(meta, context, "rope_freqs.weight" in tensors),
        tied_head="output.weight" not in tensors,
    )


def _rope_scaling(meta: Mapping[str, Any], context: int, has_factors: bool) -> RopeScaling | None:
    """From the metadata. llama3's factors are a tensor of their own (`rope_factors`), one divisor a pair."""
    kind = meta.get("rope.scaling.type", "linear" if "rope.scale_linear" in meta else "none")
    factor = float(meta.get("rope.scaling.factor", meta.get("rope.scale_linear", 1.0)))
    if kind == "none" or (kind == "linear" and factor == 1.0) or (kind == "llama3" and has_factors):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn" and not meta.get("rope.scaling.yarn_log_multiplier"):
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context=int(meta.get("rope.scaling.original_context_length", context)),
            beta_fast=float(meta.get("rope.scaling.yarn_beta_fast", 32)),
            beta_slow=float(meta.get("rope.scaling.yarn_beta_slow", 1)),
            attention_factor=yarn_attention_factor(factor) * float(meta.get("rope.scaling.attn_factor", 1.0)),
        )
    raise ModelError(f"rope scaling {kind!r} of the GGUF file is not implemented", hint=KNOWN)
