"""A GGUF file of a Llama-shaped model, its tensors dequantised when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.gguf_file import GGUFFile, StoredTensor
from structgen.engine.model_config import ModelConfig, RopeScaling

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


def _llama_config(meta: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> ModelConfig:
    if meta.get("expert_count"):
        raise ModelError("the GGUF file is a mixture of experts, which is not implemented", hint="use a dense model")
    hidden, heads = int(meta["embedding_length"]), int(meta["attention.head_count"])
    head_dim = int(meta.get("attention.key_length", meta.get("rope.dimension_count", hidden // heads)))
    if int(meta.get("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError("the GGUF file rotates only a part of each head, which is not implemented")
    return ModelConfig(
        vocab_size=int(tensors["token_embd.weight"].shape[0]),
        hidden=hidden,
        intermediate=int(meta["feed_forward_length"]),
        layers=int(meta["block_count"]),
        heads=heads,
        kv_heads=int(meta.get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        context=int(meta["context_length"]),
        norm_eps=float(meta["attention.layer_norm_rms_epsilon"]),
        rope_theta=float(meta.get("rope.freq_base", 10000.0)),
        rope_scaling=_rope_scaling(meta),
        tied_head="output.weight" not in tensors,
    )


def _rope_scaling(meta: Mapping[str, Any]) -> RopeScaling | None:
    """Only `linear` stands in the metadata; llama3's factors are a tensor of their own (`rope_factors`)."""
    kind = meta.get("rope.scaling.type", "none")
    if kind in ("none", "llama3"):
        return None
    if kind != "linear":
        raise ModelError(f"rope scaling {kind!r} is not implemented", hint="none, linear and llama3 are")
    return RopeScaling(kind="linear", factor=float(meta["rope.scaling.factor"]))
