"""PEFT folders: what is read, and what is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from structgen.engine import ModelError
from structgen.engine.lora_files import CONFIG_FILE, WEIGHTS_FILE, read_adapter

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def change(folder: Path, **options: Any) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text()) | options
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def test_the_scale_is_in_b_and_names_may_be_spelt_in_several_ways(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    adapter = save_adapter("a", r=2, alpha=3)
    tensors = load_file(adapter.folder / WEIGHTS_FILE)
    renamed = {
        name.removeprefix("base_model.model.").removeprefix("model.").replace(".weight", ".default.weight"): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, adapter.folder / WEIGHTS_FILE)
    weights = read_adapter(adapter.folder, tiny.config)
    assert weights.rank == 2
    assert (weights.rank_of(1, "down_proj"), weights.rank_of(5, "down_proj")) == (2, 0)
    for (layer, target), pair in weights.pairs.items():
        block = "self_attn" if target[0] in "qkvo" else "mlp"
        torch.testing.assert_close(pair.b @ pair.a, adapter.deltas[f"layers.{layer}.{block}.{target}"])


@pytest.mark.parametrize(
    ("patterns", "layer", "expected"),
    [
        ({"q_proj": 2}, 0, 2.0),
        ({"layers.1.self_attn.q_proj": 2}, 0, 8.0),
        ({"layers.1.self_attn.q_proj": 2}, 1, 2.0),
        ({r"^model\.layers\.(0|1)\.self_attn\.q_proj$": 2}, 1, 2.0),
        ({"proj": 2}, 0, 8.0),
        ({"k_proj": 5, ".*q_proj": 2}, 0, 2.0),
    ],
)
def test_patterns_name_modules_by_their_ending(
    patterns: dict[str, float], layer: int, expected: float, tiny: Any, save_adapter: Callable[..., Any]
) -> None:
    adapter = save_adapter("a", r=1, alpha=8)
    change(adapter.folder, alpha_pattern=patterns)
    pair = read_adapter(adapter.folder, tiny.config).pairs[layer, "q_proj"]
    torch.testing.assert_close(pair.b @ pair.a, adapter.deltas[f"layers.{layer}.self_attn.q_proj"] * (expected / 8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_dora": True}, "use_dora=true"),
        ({"bias": "all"}, 'bias="all"'),
        ({"bias": "lora_only"}, "lora_only"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"peft_type": None}, "peft_type is None"),
        ({"r": 5}, "has rank 4; adapter_config.json says 5"),
        ({"r": "many"}, "a rank or an alpha that cannot be used"),
        ({"lora_alpha": None}, "a rank or an alpha that cannot be used"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "repeats groups"),
        ({"alpha_pattern": {"(": 2}}, "a rank or an alpha that cannot be used"),
        ({"alpha_pattern": [3]}, "a rank or an alpha that cannot be used"),
        ({"target_modules": ["q_proj", "lm_head"]}, "names lm_head"),
    ],
)
def test_options_that_are_not_plain_lora_are_refused(
    options: dict[str, Any], words: str, tiny: Any, save_adapter: Callable[..., Any]
) -> None:
    folder = save_adapter("a").folder
    change(folder, **options)
    with pytest.raises(ModelError, match=words):
        read_adapter(folder, tiny.config)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (f"{Q}.lora_A.weight", (4, 47), r"do not fit layer 0's q_proj, which is \[48, 48\]"),
        (f"{Q}.lora_B.weight", (48, 3), "do not fit"),
        (f"{Q}.lora_A.weight", (4, 48, 1), "no matrix"),
        (f"{Q}.lora_A.weight", None, "lacks lora_A of layers.0.q_proj"),
        (f"{Q}.lora_magnitude_vector", (48,), "holds .*lora_magnitude_vector"),
        (f"{Q}.lora_B.bias", (48,), "holds .*bias"),
        ("base_model.model.lm_head.lora_A.weight", (4, 48), "holds .*lm_head"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (4, 90), "holds .*lora_embedding_A"),
        ("base_model.model.model.layers.2.mlp.up_proj.lora_A.weight", (4, 48), "lacks lora_B"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, ...] | None, words: str, tiny: Any, save_adapter: Callable[..., Any]
) -> None:
    folder = save_adapter("a").folder
    tensors = load_file(folder / WEIGHTS_FILE)
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = torch.ones(shape)
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ModelError, match=words):
        read_adapter(folder, tiny.config)


def test_an_adapter_for_more_layers_is_refused(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    folder = save_adapter("a", layers=[0, 1, 2]).folder
    with pytest.raises(ModelError, match=r"layer 2's .* in a model of 2 layers"):
        read_adapter(folder, tiny.config)


def test_damaged_and_missing_files_are_told(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    folder = save_adapter("a").folder
    weights = folder / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter(folder, tiny.config)
    save_file({}, weights)
    with pytest.raises(ModelError, match="holds no tensor"):
        read_adapter(folder, tiny.config)
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors") as caught:
        read_adapter(folder, tiny.config)
    assert "safe_serialization" in caught.value.hint
    (folder / CONFIG_FILE).write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        read_adapter(folder, tiny.config)
    (folder / CONFIG_FILE).write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        read_adapter(folder, tiny.config)
