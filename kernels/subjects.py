"""Subjects: kernels that can be cut off after a number of layers, to see what the last of them left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor

from structgen.kernels.portable import PortableInput, PortableStep
from structgen.kernels.scene import Scene, Values

if TYPE_CHECKING:
    from structgen.kernels.decoder import Decoder


class Subject(Protocol):
    def after(self, layers: int) -> Values:
        """A fresh step of the first `layers` layers: what the last of them left behind."""
        ...

    def logits(self) -> Tensor:
        """[batch, vocab_size] of a whole fresh step."""
        ...


class PortableSubject:
    """The plain-Triton phases."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        cache = [layer.clone() for layer in scene.cache]
        self._step = PortableStep(scene.schedule, scene.packed, scene.weights, cache)
        batch, device = scene.schedule.batch, scene.packed.device
        self._input = PortableInput(
            ids=scene.ids.int(),
            last_tokens=torch.zeros(1, dtype=torch.int64, device=device),
            positions=scene.positions.int(),
            table_of=torch.arange(batch, dtype=torch.int32, device=device),
            tables=scene.tables.int(),
            cos=scene.cos,
            sin=scene.sin,
        )

    def after(self, layers: int) -> Values:
        step = self._step
        for buffer in (step.residual, step.middle, step.qkv):
            buffer.zero_()
        step.layers_done = 0
        phases = (step.qkv_phase, step.attention_phase, step.output_phase, step.gate_up_phase, step.down_phase)
        for layer in range(layers):
            for phase in phases:
                phase(layer, self._input)
            step.layers_done += 1
        last = layers - 1
        return {
            "appended": self._scene.appended(step.cache, last),
            "attended": merged(step.partial, step.highest, step.sums, self._scene.schedule.batch),
            "middle": step.middle[last % 2],
            "neurons": step.neurons,
            "residual": step.residual[last % 2],
        }

    def logits(self) -> Tensor:
        self.after(self._scene.layers)
        self._step.head_phase(self._input)
        return self._step.logits


class MegakernelSubject:
    """The persistent kernel, cut off after a number of layers."""

    def __init__(self, scene: Scene) -> None:
        from structgen.kernels.decoder import Decoder, DeviceModel, StepInput

        self._scene = scene
        self._cache = [layer.clone() for layer in scene.cache]
        norms = [norm for layer in scene.weights.layers for norm in (layer.attention_norm, layer.mlp_norm)]
        model = DeviceModel(
            packed=scene.packed,
            norms=torch.stack([*norms, scene.weights.final_norm]),
            weights=scene.weights,
            cos=scene.cos,
            sin=scene.sin,
            cache=self._cache,
        )
        self._decoder: Decoder = Decoder(scene.schedule, model)
        self._step = StepInput.free(scene.ids, scene.positions, scene.tables, scene.schedule.shape.vocab_size)

    def after(self, layers: int) -> Values:
        from structgen.kernels.decoder import RUN_LAYERS

        decoder, schedule = self._decoder, self._scene.schedule
        self._launch(RUN_LAYERS, layers)
        last, batch = layers - 1, schedule.batch
        return {
            "appended": self._scene.appended(self._cache, last),
            "attended": merged(*decoder.attention_parts(layers), batch),
            "middle": decoder.residuals[decoder.sizes.middle_plane(last), :batch],
            "neurons": decoder.neurons.view(batch, -1),
            "residual": decoder.residuals[2 + last % 2, :batch],
        }

    def logits(self) -> Tensor:
        from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS

        self._launch(RUN_LAYERS | RUN_HEAD | KEEP_LOGITS, self._scene.layers)
        return self._decoder.logits

    def _launch(self, mode: int, layers: int) -> None:
        decoder = self._decoder
        decoder.reset()
        decoder.launch(self._step, mode, layers=layers)
        torch.cuda.synchronize()
        decoder.check()


def merged(partial: Tensor, highest: Tensor, sums: Tensor, batch: int) -> Tensor:
    """Attention output [batch, heads * head_dim] of parts [kv_heads, parts, rows, group, head_dim] in base 2."""
    weight = torch.exp2(highest - highest.amax(1, keepdim=True))
    total = (sums * weight).sum(1).clamp(min=1e-30)
    mixed = (partial * weight[..., None]).sum(1) / total[..., None]
    return mixed[:, :batch].transpose(0, 1).reshape(batch, -1)


KERNELS: Final[Mapping[str, Callable[[Scene], Subject]]] = {
    "megakernel": MegakernelSubject,
    "portable": PortableSubject,
}
