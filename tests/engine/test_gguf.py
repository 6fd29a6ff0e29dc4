"""GGUF reading: row order, metadata, damage; and the default model against transformers where it is fetched."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from structgen.engine import LlamaModel, ModelConfig, ModelError, load_model
from structgen.engine.gguf_weights import GGUFWeights, gguf_name, unpermute
from structgen.engine.weight_source import DictWeights

CONFIG = ModelConfig(
    vocab_size=64, hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, context=128, tied_head=True
)
TEXT = [1, 9, 30, 4, 4, 63, 0, 17]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more threads, and lose much where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def default_model() -> Path:
    cache = os.environ.get("STRUCTGEN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "structgen")
    folder = Path(cache).expanduser() / "models" / "smollm2-135m-instruct"
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


def random_tensors(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block = {
        "input_layernorm": (config.hidden,),
        "self_attn.q_proj": (width, config.hidden),
        "self_attn.k_proj": (kv_width, config.hidden),
        "self_attn.v_proj": (kv_width, config.hidden),
        "self_attn.o_proj": (config.hidden, width),
        "post_attention_layernorm": (config.hidden,),
        "mlp.gate_proj": (config.intermediate, config.hidden),
        "mlp.up_proj": (config.intermediate, config.hidden),
        "mlp.down_proj": (config.hidden, config.intermediate),
    }
    shapes = {"embed_tokens.weight": (config.vocab_size, config.hidden), "norm.weight": (config.hidden,)}
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """The row order that llama GGUF files store: of each head, row i of its first half, then row i of its second."""
    rows = weight.view(heads, 2, -1, weight.shape[1])
    return torch.stack([rows[:, 0], rows[:, 1]], dim=2).reshape(weight.shape)


def write_gguf(file: Path, config: ModelConfig, tensors: dict[str, Tensor], **changes: Any) -> None:
    writer = gguf.GGUFWriter(str(file), changes.pop("architecture", "llama"))
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_token_list(["a token"] * config.vocab_size)
    for add, value in changes.items():
        getattr(writer, add)(value)
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            tensor = interleaved(tensor, config.heads if "q_proj" in name else config.kv_heads)
        if tensor.ndim == 2:
            packed = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_unpermute_undoes_the_interleaving() -> None:
    weight = torch.arange(24 * 2, dtype=torch.float32).view(24, 2)
    torch.testing.assert_close(unpermute(interleaved(weight, 3), 3), weight)
    assert not torch.equal(interleaved(weight, 3), weight)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_gives_the_model_it_was_written_from(tied: bool, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, tied_head=tied)
    tensors = random_tensors(config)
    if not tied:
        tensors["lm_head.weight"] = torch.flip(tensors["embed_tokens.weight"], [0])
    file = tmp_path / "tiny.gguf"
    write_gguf(file, config, tensors)
    read = load_model(file, dtype="float32")
    assert read.config == dataclasses.replace(config, norm_eps=read.config.norm_eps)
    assert read.config.norm_eps == pytest.approx(config.norm_eps)
    expected = LlamaModel(config, DictWeights(tensors), "float32").logits(TEXT)
    error = (read.logits(TEXT) - expected).norm() / expected.norm()  # what Q8_0 loses
    assert error < 0.02


def test_rope_scaling_is_read_from_metadata_and_from_the_tensor_of_factors(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    write_gguf(
        tmp_path / "linear.gguf",
        CONFIG,
        tensors,
        add_rope_scaling_type=gguf.RopeScalingType.LINEAR,
        add_rope_scaling_factor=2.0,
        add_rope_freq_base=5000.0,
    )
    linear = GGUFWeights(tmp_path / "linear.gguf").config
    assert linear.inverse_frequencies() == pytest.approx([5000 ** (-pair / 4) / 2 for pair in range(4)])
    factors = torch.full((4,), 2.0)
    write_gguf(tmp_path / "factors.gguf", CONFIG, tensors | {"rope_factors": factors}, add_rope_freq_base=5000.0)
    by_metadata = load_model(tmp_path / "linear.gguf", dtype="float32").logits(TEXT)
    by_tensor = load_model(tmp_path / "factors.gguf", dtype="float32").logits(TEXT)
    torch.testing.assert_close(by_tensor, by_metadata)


def test_other_and_damaged_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    write_gguf(tmp_path / "other.gguf", CONFIG, tensors, architecture="qwen2")
    with pytest.raises(ModelError, match="qwen2"):
        load_model(tmp_path / "other.gguf")
    write_gguf(tmp_path / "good.gguf", CONFIG, tensors)
    good = (tmp_path / "good.gguf").read_bytes()
    for cut in (0, 3, 20, 400, len(good) // 2):
        (tmp_path / "cut.gguf").write_bytes(good[:cut])
        with pytest.raises(ModelError, match="GGUF"):
            load_model(tmp_path / "cut.gguf")
    del tensors["norm.weight"]
    write_gguf(tmp_path / "hole.gguf", CONFIG, tensors)
    with pytest.raises(ModelError, match=r"lacks output_norm\.weight"):
        load_model(tmp_path / "hole.gguf")


@pytest.mark.skipif(not default_model().is_file(), reason="the default model is not fetched: structgen models pull")
def test_the_default_model_gives_the_logits_that_transformers_computes() -> None:
    """The same file, unpacked and un-permuted by transformers' own code."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is the reference here")
    file = default_model()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    rng = np.random.default_rng(5)
    ids = [int(token) for token in rng.integers(0, 49152, size=40)]
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(load_model(file, dtype="float32").logits(ids), expected, rtol=1e-3, atol=1e-3)
    for dtype, bound in (("bfloat16", 0.02), ("int8", 0.06)):
        model = load_model(file, dtype=dtype)  # type: ignore[arg-type]
        for some in (ids, ids[:8]):  # int8 has a path for few tokens and one for many
            error = (model.logits(some).float() - expected[: len(some)]).norm() / expected[: len(some)].norm()
            assert error < bound, dtype
