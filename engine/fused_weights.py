"""FusedWeights: an 8-bit model's weights in the layout of the compiled step. One copy a model, however many runners."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from structgen.engine.fused_ops import WIDTH
from structgen.engine.linear import Int8Linear
from structgen.engine.llama import Layer, LlamaModel

_known: WeakKeyDictionary[LlamaModel, FusedWeights] = WeakKeyDictionary()


class FusedWeights:
    """See fused_step.Network for the fields.

    `blocks` are addresses of tensors that this object keeps alive: int8 [blocks, features, WIDTH], so that a thread
    reads a block from end to end, a cache line for each feature.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._tensors: list[Tensor] = []
        self.blocks = np.zeros((len(model.layers) + 1, 4), np.int64)
        scales = []
        for index, layer in enumerate(model.layers):
            parts, layer_scales = _layer(layer, model.config.intermediate)
            self.blocks[index] = [self._address(part) for part in parts]
            scales.append(layer_scales)
        head = _int8(model.output_head)
        self.blocks[-1, 0] = self._address(_packed(head.weight))
        self.scales = torch.stack(scales).numpy()
        self.head_scales = _padded(head.scale).numpy()
        norms = [torch.stack([layer.attention_norm.float(), layer.mlp_norm.float()]) for layer in model.layers]
        self.norms = torch.stack(norms).numpy()
        self.final_norm = model.final_norm.float().numpy()

    @staticmethod
    def of(model: LlamaModel) -> FusedWeights:
        """The model's, packed when they are first asked for. They go when the model goes."""
        if model not in _known:
            _known[model] = FusedWeights(model)
        return _known[model]

    def _address(self, packed: Tensor) -> int:
        self._tensors.append(packed)
        return packed.data_ptr()


def _layer(layer: Layer, wide: int) -> tuple[list[Tensor], Tensor]:
    """The four packed matrices, and the scales of all their outputs; gate and up take turns, a block each."""
    qkv, output, gate_up, down = (_int8(each) for each in (layer.qkv, layer.output, layer.gate_up, layer.down))
    both = torch.stack([_packed(gate_up.weight[:wide]), _packed(gate_up.weight[wide:])], dim=1)
    both_scales = torch.stack(
        [_padded(gate_up.scale[part]).view(-1, WIDTH) for part in (slice(wide), slice(wide, None))], dim=1
    )
    scales = [_padded(qkv.scale), _padded(output.scale), both_scales.view(-1), _padded(down.scale)]
    return [_packed(qkv.weight), _packed(output.weight), both, _packed(down.weight)], torch.cat(scales)


def _int8(linear: Any) -> Int8Linear:
    assert isinstance(linear, Int8Linear)
    return linear


def _packed(weight: Tensor) -> Tensor:
    """int8 [outputs, features] as [blocks, features, WIDTH]; outputs that are not there have zeros."""
    outputs, features = weight.shape
    padded = functional.pad(weight, (0, 0, 0, -outputs % WIDTH))
    return padded.view(-1, WIDTH, features).transpose(1, 2).contiguous()


def _padded(scale: Tensor) -> Tensor:
    return functional.pad(scale.float(), (0, -len(scale) % WIDTH))
