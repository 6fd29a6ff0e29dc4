"""LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

An adapter adds to the product with a matrix W [out, in] the low-rank product s * B A, with A [r, in], B [out, r] and
s = alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (Kalajdzievski 2023). Whatever else PEFT can save (DoRA,
trained biases, embeddings or whole modules) is refused: leaving it out would give another model without a word.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from structgen.engine.checked_weights import tensor_shape
from structgen.engine.errors import ModelError
from structgen.engine.json_files import read_json_object
from structgen.engine.model_config import ModelConfig

CONFIG_FILE, WEIGHTS_FILE, PICKLED_FILE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_AGAIN = "fetch it again; it may be cut short"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Options that change what an adapter computes, with the values under which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
}
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?:model\.)?layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)\.lora_([AB])(?:\.default)?\.weight"
)


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """A [r, in] and B [out, r] of one matrix in float32, the scale multiplied into B."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, kw_only=True)
class AdapterWeights:
    """`pairs` by (layer, name of the projection); matrices that the adapter leaves alone are not in it."""

    pairs: Mapping[tuple[int, str], LowRank]

    @property
    def rank(self) -> int:
        return max(len(pair.a) for pair in self.pairs.values())

    def rank_of(self, layer: int, target: str) -> int:
        pair = self.pairs.get((layer, target))
        return 0 if pair is None else len(pair.a)


def read_adapter(folder: str | Path, model: ModelConfig) -> AdapterWeights:
    """Read an adapter for `model`. ModelError when it is damaged, made for another shape, or more than plain LoRA."""
    place = Path(folder)
    options = _read_options(place)
    _refuse_other_kinds(options)
    tensors = _read_tensors(place)
    pairs = {}
    for layer, target in sorted({(layer, target) for layer, target, _ in tensors}):
        a, b = (tensors.get((layer, target, side)) for side in "AB")
        name = f"layers.{layer}.{target}"
        if a is None or b is None:
            raise ModelError(f"the adapter lacks lora_{'A' if a is None else 'B'} of {name}", hint=_AGAIN)
        _check_shapes(model, layer, target, a, b)
        b = b * _scale(options, _module_name(layer, target), len(a))
        if not (torch.isfinite(a.bfloat16()).all() and torch.isfinite(b.bfloat16()).all()):
            raise ModelError(f"the adapter's weights of {name} are not finite numbers", hint="its training diverged")
        pairs[layer, target] = LowRank(a=a, b=b)
    _check_targets(options, {target for _, target in pairs})
    return AdapterWeights(pairs=pairs)


def target_sizes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of each matrix that an adapter may change."""
    sizes = {}
    for target in TARGETS:
        shape = tensor_shape(f"layers.0.{_block(target)}.{target}.weight", model)
        assert shape is not None
        sizes[target] = (shape[0], shape[1])
    return sizes


def _read_options(folder: Path) -> dict[str, Any]:
    missing = ModelError(f"there is no {CONFIG_FILE} in {folder}", hint="give the folder that PEFT saved")
    return read_json_object(folder / CONFIG_FILE, missing=missing)


def _refuse_other_kinds(options: Mapping[str, Any]) -> None:
    if (kind := options.get("peft_type")) != "LORA":
        raise ModelError(f"the adapter's peft_type is {kind}, not LORA", hint="only LoRA adapters are implemented")
    for option, neutral in _NEUTRAL.items():
        if (value := options.get(option)) not in neutral:
            raise ModelError(
                f"the adapter has {option}={json.dumps(value)}, which is not implemented",
                hint="train plain LoRA, or merge the adapter into the model",
            )


def _read_tensors(folder: Path) -> dict[tuple[int, str, str], Tensor]:
    """float32 tensors by (layer, projection, "A" or "B"); a name of any other form is an error, not skipped."""
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        pickled = (folder / PICKLED_FILE).is_file()
        hint = "pickled adapters (.bin) are not read: save it again with safe_serialization=True" if pickled else ""
        raise ModelError(f"there is no {WEIGHTS_FILE} in {folder}", hint=hint or "give the folder that PEFT saved")
    tensors = {}
    try:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                found = _TENSOR.fullmatch(name)
                if found is None or found[2] not in TARGETS:
                    raise ModelError(
                        f"the adapter holds {name}, which is not implemented",
                        hint=f"only lora_A and lora_B of {', '.join(TARGETS)} are",
                    )
                tensor = opened.get_tensor(name)
                if not tensor.is_floating_point() or tensor.ndim != 2 or not tensor.numel():
                    raise ModelError(f"the adapter's {name} is no matrix of numbers: {tensor.dtype} {[*tensor.shape]}")
                tensors[int(found[1]), found[2], found[3]] = tensor.float()
    except (OSError, SafetensorError) as problem:
        raise ModelError(f"{WEIGHTS_FILE} cannot be read: {problem}", hint=_AGAIN) from None
    if not tensors:
        raise ModelError(f"{WEIGHTS_FILE} holds no tensor")
    return tensors


def _check_shapes(model: ModelConfig, layer: int, target: str, a: Tensor, b: Tensor) -> None:
    out, inner = target_sizes(model)[target]
    fits = layer < model.layers and (a.shape[1], b.shape[0]) == (inner, out)
    if not fits or a.shape[0] != b.shape[1]:
        raise ModelError(
            f"the adapter's A {[*a.shape]} and B {[*b.shape]} do not fit layer {layer}'s {target}, which is "
            f"[{out}, {inner}] in a model of {model.layers} layers",
            hint="the adapter was trained for another model",
        )


def _check_targets(options: Mapping[str, Any], found: set[str]) -> None:
    """A list of target modules names nothing that the file lacks (a pattern may name anything)."""
    listed = options.get("target_modules")
    for module in listed if isinstance(listed, list) else ():
        if str(module).rsplit(".", 1)[-1] not in found:
            raise ModelError(f"target_modules names {module}, of which the adapter holds nothing", hint=_AGAIN)


def _module_name(layer: int, target: str) -> str:
    return f"model.layers.{layer}.{_block(target)}.{target}"


def _block(target: str) -> str:
    return "self_attn" if target in TARGETS[:4] else "mlp"


def _scale(options: Mapping[str, Any], module: str, rank: int) -> float:
    """alpha / r or alpha / sqrt(r). The rank is the tensor's, which must be the one that the options name."""
    try:
        expected = int(_pattern_value(options.get("rank_pattern"), module, options.get("r", 8)))
        alpha = float(_pattern_value(options.get("alpha_pattern"), module, options.get("lora_alpha", 8)))
    except (TypeError, ValueError, re.error) as problem:
        raise ModelError(f"{CONFIG_FILE} has a rank or an alpha that cannot be used: {problem}") from None
    if expected != rank:
        raise ModelError(f"the adapter's {module} has rank {rank}; {CONFIG_FILE} says {expected}", hint=_AGAIN)
    return alpha / math.sqrt(rank) if options.get("use_rslora") else alpha / rank


def _pattern_value(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that matches the module's name or a dotted ending of it, as in PEFT."""
    if not isinstance(patterns, dict | None):
        raise TypeError(f"a pattern table is {patterns!r}")
    for pattern, value in (patterns or {}).items():
        if len(pattern) > 200 or re.search(r"\)[*+?{]", pattern) or len(re.findall(r"[*+?{]", pattern)) > 4:
            raise ValueError(f"the pattern {pattern[:200]!r} repeats groups or is too long")  # might match for hours
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            return value
    return default
