"""A Hugging Face folder from end to end: a tiny checkpoint with random weights, so only its shape is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from structgen import LLM, ModelError, Regex
from structgen.engine import AdapterError
from structgen.grammar.token_bytes import BYTE_OF_CHARACTER

HIDDEN, INNER, HEADS, WIDTH = 16, 32, 2, 288


class Point(BaseModel):
    x: int
    tags: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, one token per byte, logits wider than the vocabulary, two ends."""
    path = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    layer = "model.layers.0."
    shapes = {layer + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
    shapes |= {layer + f"mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
    shapes |= {layer + "mlp.down_proj.weight": (HIDDEN, INNER)}
    shapes |= {"model.embed_tokens.weight": (WIDTH, HIDDEN), "lm_head.weight": (WIDTH, HIDDEN)}
    tensors = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    norms = (layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight", "model.norm.weight")
    save_file(tensors | {name: torch.ones(HIDDEN) for name in norms}, path / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": WIDTH,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 256,
    }
    (path / "config.json").write_text(json.dumps(config))
    backend = Tokenizer(models.BPE(vocab=dict(BYTE_OF_CHARACTER), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "<|im_end|>"])
    backend.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text("{{ messages[-1].content }}<end>")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_random_weights_still_give_whole_values(folder: Path, seed: int) -> None:
    llm = LLM(folder, dtype="float32")
    result = llm.generate("x", Point, describe=False, temperature=1.0, seed=seed, max_tokens=80, return_result=True)
    assert isinstance(result.value, Point)
    assert result.usage.prompt_tokens == 2
    assert llm.tokenizer.eos_token_ids == {256, 257}
    assert llm.tokenizer.vocabulary.size == WIDTH
    assert len(llm.generate("x", Regex("[a-c]{5}"))) == 5


def test_a_folder_without_weights_is_told(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ModelError):
        LLM(tmp_path).generate("x")


def save_adapter(place: Path, size: float) -> Path:
    place.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "down_proj"]}
    (place / "adapter_config.json").write_text(json.dumps(config))
    layer = "base_model.model.model.layers.0."
    shapes = {"self_attn.q_proj": (HIDDEN, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
    torch.manual_seed(1)
    tensors = {}
    for name, (out, inner) in shapes.items():
        tensors[f"{layer}{name}.lora_A.weight"] = torch.randn(2, inner) * size
        tensors[f"{layer}{name}.lora_B.weight"] = torch.randn(out, 2) * size
    save_file(tensors, place / "adapter_model.safetensors")
    return place


def test_adapters_are_loaded_used_and_unloaded(folder: Path, tmp_path: Path) -> None:
    llm = LLM(folder, dtype="float32", max_adapters=2, max_lora_rank=2)
    plain = llm.generate("x", Regex("[a-z]{20}"))
    llm.load_adapter("nothing", save_adapter(tmp_path / "nothing", 0.0))
    llm.load_adapter("much", str(save_adapter(tmp_path / "much", 2.0)))
    assert llm.adapters == ("nothing", "much")
    assert llm.generate("x", Regex("[a-z]{20}"), adapter="nothing") == plain
    changed = llm.generate("x", Regex("[a-z]{20}"), adapter="much")
    assert changed != plain
    assert "".join(llm.stream("x", Regex("[a-z]{20}"), adapter="much")) == changed
    assert llm.generate_batch(["x", "x"], Regex("[a-z]{20}"), adapter="much") == [changed, changed]
    assert llm.generate("x", Regex("[a-z]{20}")) == plain
    with pytest.raises(ModelError, match="no adapter_config"):
        llm.load_adapter("absent", tmp_path / "absent")
    llm.unload_adapter("much")
    with pytest.raises(AdapterError, match="no adapter named 'much'"):
        llm.generate("x", adapter="much")
    llm.engine.check_integrity()
