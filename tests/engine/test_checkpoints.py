"""Every checkpoint shape that is read, against transformers reading the same folder; every other, refused by name.

Tiny random models: logits of 120 tokens in float32 within 1e-3, and the error of 8-bit weights beside bfloat16's.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from structgen.engine import Engine, ModelError, load_model
from structgen.engine.weights import Dtype

pytestmark = pytest.mark.usefixtures("one_thread")

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is the reference here")

IDS = [3, 17, 96, 5, 5, 61, 0, 42, 7, 23, 88, 12] * 10
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Shape:
    """`options` go to transformers' config; `rewrite` changes the config.json that it wrote (None removes a key)."""

    options: dict[str, Any] = field(default_factory=dict)
    rewrite: dict[str, Any] = field(default_factory=dict)
    kind: str = "llama"
    dtype: torch.dtype = torch.float32
    shards: str = "1GB"


def rope(scaling: dict[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """As transformers 5 writes it."""
    return {"rope_parameters": {"rope_theta": theta, **scaling}}


def old_rope(scaling: dict[str, Any] | None, theta: float = 10000.0) -> dict[str, Any]:
    """As transformers 4 wrote it."""
    return {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": theta}


SHAPES = {
    "untied": Shape(),
    "tied": Shape({"tie_word_embeddings": True}),
    "one key head": Shape({"num_key_value_heads": 1}),
    "as many key heads": Shape({"num_key_value_heads": 6}),
    "wide heads": Shape({"head_dim": 32}),
    "narrow heads": Shape({"head_dim": 8, "num_attention_heads": 6}),
    "odd sizes": Shape({"vocab_size": 97, "hidden_size": 90, "intermediate_size": 157, "head_dim": 22}),
    "one layer": Shape({"num_hidden_layers": 1}),
    "a coarse epsilon": Shape({"rms_norm_eps": 0.05}),
    # rotary embedding
    "large theta": Shape(rope({"rope_type": "default"}, 500000.0)),
    "linear": Shape(rope({"rope_type": "linear", "factor": 4.0})),
    "llama3": Shape(rope(LLAMA3, 500000.0)),
    "dynamic": Shape(rope({"rope_type": "dynamic", "factor": 4.0})),
    "yarn": Shape(rope(YARN)),
    "yarn, betas": Shape(rope({**YARN, "beta_fast": 8.0, "beta_slow": 2.0}, 500.0)),
    "yarn, not truncated": Shape(rope({**YARN, "truncate": False})),
    "yarn, attention factor": Shape(rope({**YARN, "attention_factor": 1.7})),
    "yarn, mscale": Shape(rope({**YARN, "mscale": 1.5, "mscale_all_dim": 0.5})),
    # the spellings of older files
    "old: linear": Shape(rewrite=old_rope({"type": "linear", "factor": 4.0})),
    "old: llama3": Shape(rewrite=old_rope(LLAMA3, 500000.0)),
    "old: dynamic": Shape(rewrite=old_rope({"type": "dynamic", "factor": 2.0})),
    "old: yarn": Shape(rewrite=old_rope(YARN)),
    "old: theta only": Shape(rewrite=old_rope(None, 500000.0)),
    "old: nothing at all": Shape(
        {"num_key_value_heads": 6},
        {"rope_parameters": "remove", "num_key_value_heads": None, "head_dim": None, "hidden_act": "remove"},
    ),
    "old: the old context beside": Shape(
        rewrite={
            **old_rope({key: value for key, value in LLAMA3.items() if not key.startswith("original")}),
            "original_max_position_embeddings": 64,
        }
    ),
    "both spellings": Shape(rope(LLAMA3), {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "theta on both sides": Shape(rope(LLAMA3), {"rope_theta": 77.0}),
    # how it is stored
    "sharded": Shape(shards="100KB"),
    "sharded and tied": Shape({"tie_word_embeddings": True}, shards="100KB"),
    "float16": Shape(dtype=torch.float16),
    "bfloat16": Shape(dtype=torch.bfloat16),
    # models that people use, scaled down
    "like Llama 2": Shape({"num_key_value_heads": 6, "rms_norm_eps": 1e-5}, {"pretraining_tp": 1, **old_rope(None)}),
    "like Llama 3.2": Shape({**rope({**LLAMA3, "factor": 32.0}, 500000.0), "tie_word_embeddings": True}),
    "like SmolLM2": Shape(
        {
            **rope({"rope_type": "default"}, 100000.0),
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 72,
            "tie_word_embeddings": True,
        },
        dtype=torch.bfloat16,
    ),
    "like TinyLlama": Shape({"num_attention_heads": 8, "num_key_value_heads": 1}, old_rope(None), dtype=torch.bfloat16),
    "Mistral": Shape({"sliding_window": None, "head_dim": 24}, kind="mistral"),
    "Mistral with a wide window": Shape({"sliding_window": 4096}, kind="mistral"),
    "Mistral with a narrow window": Shape({"sliding_window": 120}, kind="mistral"),
    "Mistral, silent config": Shape(
        {"num_key_value_heads": 8, "num_attention_heads": 8},
        {"sliding_window": "remove", "num_key_value_heads": "remove", "max_position_embeddings": "remove"},
        kind="mistral",
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Tensor]]:
    """By name: the folder, and the logits that transformers computes from it in float32. Made once."""
    made: dict[str, tuple[Path, Tensor]] = {}

    def make(name: str) -> tuple[Path, Tensor]:
        if name not in made:
            folder = tmp_path_factory.mktemp("checkpoint")
            save(folder, SHAPES[name])
            made[name] = folder, reference(folder)
        return made[name]

    return make


def save(folder: Path, shape: Shape) -> None:
    """Weights large enough that every part moves the logits."""
    torch.manual_seed(7)
    sizes = {
        "vocab_size": 100,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
    }
    config = transformers.AutoConfig.for_model(shape.kind, **{**sizes, **shape.options})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(shape.dtype).eval().save_pretrained(folder, max_shard_size=shape.shards)
    rewrite_config(folder, shape.rewrite)


def rewrite_config(folder: Path, changes: dict[str, Any]) -> None:
    """A value of "remove" takes the key away; None is written as null."""
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value != "remove"}
    (folder / "config.json").write_text(json.dumps(kept))


@torch.inference_mode()
def reference(folder: Path) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logits: Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_transformers(name: str, checkpoint: Callable[[str], tuple[Path, Tensor]]) -> None:
    folder, expected = checkpoint(name)
    if SHAPES[name].shards != "1GB":
        assert len(list(folder.glob("*.safetensors"))) > 2
    found = load_model(folder, dtype="float32").logits(IDS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_8_bit_weights_err_little_more_than_bfloat16(
    name: str, checkpoint: Callable[[str], tuple[Path, Tensor]]
) -> None:
    """Relative error of all logits together; int8 on both of its paths (packed for few tokens, unpacked for many)."""
    folder, expected = checkpoint(name)

    def error(dtype: Dtype, count: int) -> float:
        logits = load_model(folder, dtype=dtype).logits(IDS[:count]).float()
        return float((logits - expected[:count]).norm() / expected[:count].norm())

    for count in (12, 120):
        bfloat16, int8 = error("bfloat16", count), error("int8", count)
        assert bfloat16 < 0.07
        assert int8 < 3.5 * bfloat16


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Callable[[str], tuple[Path, Tensor]]) -> Path:
    """A good checkpoint of its own, to be damaged."""
    for file in checkpoint("untied")[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "architecture is GPT2LMHeadModel"),
        ({"model_type": "qwen2", "architectures": None}, "architecture is qwen2"),
        ({"model_type": None, "architectures": "Odd"}, "architecture is Odd"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised .gptq."),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "not positive"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "two"}}, "wrong kind"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": None}, "rope_theta": 1.0}, "rope_theta 1.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
        ({"partial_rotary_factor": 0.5}, "only a part of each head"),
        ({"vocab_size": "remove"}, "lacks 'vocab_size'"),
        ({"vocab_size": 101}, r"embed_tokens.weight has the shape \[100, 96\]; the configuration says \[101, 96\]"),
        ({"num_key_value_heads": 3}, r"k_proj.weight has the shape \[32, 96\]"),
        ({"num_key_value_heads": 4}, "cannot share"),
        ({"head_dim": 15}, "odd"),
        ({"num_attention_heads": 0}, "heads is 0"),
        ({"hidden_size": None}, "wrong kind"),
        ({"num_hidden_layers": 4}, "lacks layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, "holds layers.2.input_layernorm.weight and 8 more, which no Llama of 2 layers has"),
    ],
)
def test_configurations_that_are_not_ours_are_refused(changes: dict[str, Any], words: str, folder: Path) -> None:
    rewrite_config(folder, changes)
    with pytest.raises(ModelError, match=words):
        load_model(folder)


def test_tensors_that_our_network_lacks_are_refused(folder: Path) -> None:
    name = "model.layers.1.self_attn.q_proj.bias"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(96)}))
    with pytest.raises(ModelError, match=r"holds layers\.1\.self_attn\.q_proj\.bias, which no Llama"):
        load_model(folder)


def test_frequencies_that_old_checkpoints_store_are_ignored(
    folder: Path, checkpoint: Callable[[str], tuple[Path, Tensor]]
) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))
    found = load_model(folder, dtype="float32").logits(IDS)
    torch.testing.assert_close(found, checkpoint("untied")[1], rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_tensors_are_refused(dtype: torch.dtype, folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(ModelError, match=r"up_proj.weight is stored as torch\.(int8|float8)") as caught:
        load_model(folder)
    assert "GGUF" in caught.value.hint


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lacks lm_head\.weight"):
        load_model(folder)


def test_a_missing_shard_is_named(tmp_path: Path, checkpoint: Callable[[str], tuple[Path, Tensor]]) -> None:
    for file in checkpoint("sharded")[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = min(tmp_path.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(ModelError, match=f"{shard.name} cannot be read"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(ModelError, match="does not say"):
        load_model(tmp_path)


def test_pickled_checkpoints_are_refused_with_a_way_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for place in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(ModelError, match="pickled") as caught:
            load_model(place)
        assert "safe_serialization" in caught.value.hint


@pytest.mark.parametrize("size", [0, 4, 8, 1000, 100_000])
def test_files_that_are_cut_short_are_refused(size: int, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_model(folder)


def test_a_header_that_lies_about_its_length_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", 1 << 62) + weights.read_bytes()[8:])
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(folder)


def test_places_that_are_no_model_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        load_model(folder)
    for text, words in (("{", "not JSON"), ("[]", "not a JSON object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match=words):
            load_model(folder)
    with pytest.raises(ModelError, match="not a model file"):
        load_model(folder / "config.json")
    os.remove(folder / "config.json")
    with pytest.raises(ModelError, match=r"no readable config\.json"):
        load_model(folder)
    with pytest.raises(ModelError, match="no model at"):
        load_model(folder / "nothing")


@pytest.mark.parametrize(
    ("name", "bound"), [("dynamic", 512), ("Mistral with a narrow window", 120), ("Mistral, silent config", 4096)]
)
def test_texts_end_where_the_network_would_become_another(
    name: str, bound: int, checkpoint: Callable[[str], tuple[Path, Tensor]]
) -> None:
    model = load_model(checkpoint(name)[0], dtype="float32")
    assert (model.config.context, model.config.exact_context) == (bound, bound)
    assert Engine(model, max_batch=1).max_context == bound
    with pytest.raises(ModelError, match=f"at most {bound} positions"):
        Engine(model, max_batch=1, max_context=bound + 1)
