"""CheckedWeights: a file's tensors against the model's sizes: each is there, has its shape, and none is left over.

A tensor that nobody asks for is a part of the network that ours lacks (a bias, a norm of the queries): leaving it out
would compute something else without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.model_config import ModelConfig
from structgen.engine.weight_source import WeightSource


class CheckedWeights:
    """A WeightSource over another one. ModelError for tensors that do not belong to a Llama of these sizes."""

    def __init__(self, source: WeightSource, names: Iterable[str], config: ModelConfig) -> None:
        self._source, self._config = source, config
        unknown = [name for name in names if tensor_shape(name, config) is None and not _is_harmless(name)]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise ModelError(
                f"the checkpoint holds {min(unknown)}{more}, which no Llama of {config.layers} layers has",
                hint="its network differs from what its configuration says; it is not implemented",
            )

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def get(self, name: str) -> Tensor:
        tensor = self._source.get(name)
        expected = tensor_shape(name, self._config)
        assert expected is not None
        if tuple(tensor.shape) != expected:
            raise ModelError(
                f"{name} has the shape {[*tensor.shape]}; the configuration says {[*expected]}",
                hint="the configuration and the weights are not of the same model",
            )
        return tensor


def tensor_shape(name: str, config: ModelConfig) -> tuple[int, ...] | None:
    """What a checkpoint of these sizes holds under the name; None when it has no such tensor."""
    found = re.fullmatch(r"layers\.(\d{1,9})\.(\w+(?:\.\w+)?)\.weight", name)
    if found:
        return _block_shapes(config).get(found[2]) if int(found[1]) < config.layers else None
    outer: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, config.hidden),
        "lm_head.weight": (config.vocab_size, config.hidden),
        "norm.weight": (config.hidden,),
        "rope_factors": (config.head_dim // 2,),
    }
    return outer.get(name)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """All that a checkpoint of these sizes holds, without a head of its own when that is tied."""
    names = ["embed_tokens.weight", "norm.weight", *["lm_head.weight"] * (not config.tied_head)]
    for layer in range(config.layers):
        names += [f"layers.{layer}.{name}.weight" for name in _block_shapes(config)]
    shapes = {name: tensor_shape(name, config) for name in names}
    return {name: shape for name, shape in shapes.items() if shape is not None}


@lru_cache(maxsize=1)
def _block_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.intermediate
    width, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (width, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, width),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _is_harmless(name: str) -> bool:
    """Frequencies that old checkpoints store though they follow from the configuration."""
    return name.endswith("rotary_emb.inv_freq")
