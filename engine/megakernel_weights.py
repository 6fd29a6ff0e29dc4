"""A LlamaModel's weights as the megakernel reads them."""

from __future__ import annotations

import torch

from structgen.engine.kv_cache import KVCache
from structgen.engine.linear import DenseLinear, Linear
from structgen.engine.llama import LlamaModel
from structgen.kernels.decoder import DeviceModel
from structgen.kernels.model_shape import UnsupportedShape
from structgen.kernels.packing import LayerWeights, ModelWeights, pack_weights
from structgen.kernels.schedule import Schedule


def device_model(model: LlamaModel, cache: KVCache, context: int, schedule: Schedule) -> DeviceModel:
    """A second copy of the matrices in the kernel's order beside the model's own, which prefill goes on using."""
    weights = _weights(model)
    norms = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm)]
    cos, sin = model.turns(context).to(model.device).unbind(1)
    return DeviceModel(
        packed=pack_weights(weights, schedule),
        norms=torch.stack([*norms, weights.final_norm]),
        weights=weights,
        cos=cos.contiguous(),
        sin=sin.contiguous(),
        cache=cache.layers,
    )


def _weights(model: LlamaModel) -> ModelWeights:
    layers = tuple(
        LayerWeights(
            qkv=_matrix(layer.qkv),
            output=_matrix(layer.output),
            gate_up=_matrix(layer.gate_up),
            down=_matrix(layer.down),
            attention_norm=layer.attention_norm,
            mlp_norm=layer.mlp_norm,
        )
        for layer in model.layers
    )
    return ModelWeights(
        layers=layers, embedding=model.embedding, head=_matrix(model.output_head), final_norm=model.final_norm
    )


def _matrix(linear: Linear) -> torch.Tensor:
    if not isinstance(linear, DenseLinear) or linear.weight.dtype != torch.bfloat16:
        raise UnsupportedShape("the megakernel reads bfloat16 matrices")
    return linear.weight
