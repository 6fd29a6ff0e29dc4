"""GGUF reading: row order, metadata, damage; and the default model against transformers where it is fetched."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from structgen.engine import LlamaModel, ModelConfig, ModelError, load_model
from structgen.engine.bench import default_model
from structgen.engine.gguf_weights import GGUFWeights, gguf_name, unpermute
from structgen.engine.rope_scaling import scaling_from_huggingface
from structgen.engine.weight_source import DictWeights
from tests.engine.tiny import random_tensors

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = ModelConfig(
    vocab_size=64, hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, context=128, tied_head=True
)
TEXT = [1, 9, 30, 4, 4, 63, 0, 17]


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """The row order that llama GGUF files store: of each head, row i of its first half, then row i of its second."""
    rows = weight.view(heads, 2, -1, weight.shape[1])
    return torch.stack([rows[:, 0], rows[:, 1]], dim=2).reshape(weight.shape)


def write_gguf(
    file: Path,
    config: ModelConfig,
    tensors: dict[str, Tensor],
    *,
    kind: str = "Q8_0",
    endian: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    **changes: Any,
) -> None:
    """`kind` is how matrices are stored; `changes` are further calls of the writer, by name."""
    writer = gguf.GGUFWriter(str(file), changes.pop("architecture", "llama"), endianess=endian)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_token_list(["a token"] * config.vocab_size)
    for add, value in changes.items():
        getattr(writer, add)(*(value if isinstance(value, tuple) else (value,)))
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            tensor = interleaved(tensor, config.heads if "q_proj" in name else config.kv_heads)
        stored = name if "." in name and name.split(".")[-1] not in ("weight",) else gguf_name(name)
        if tensor.ndim == 2:
            quantisation = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(stored, gguf.quants.quantize(tensor.numpy(), quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(stored, tensor.numpy())
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
    tensors = random_tensors(config, seed=3)
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
    tensors = random_tensors(CONFIG, seed=3)
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
    tensors = random_tensors(CONFIG, seed=3)
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


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("F32", 1e-6), ("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 2e-2), ("Q5_1", 0.15), ("Q5_0", 0.15), ("Q4_1", 0.25)],
)
def test_every_way_to_store_a_matrix(kind: str, bound: float, tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, seed=3)
    write_gguf(tmp_path / "tiny.gguf", CONFIG, tensors, kind=kind)
    expected = LlamaModel(CONFIG, DictWeights(tensors), "float32").logits(TEXT)
    error = (load_model(tmp_path / "tiny.gguf", dtype="float32").logits(TEXT) - expected).norm() / expected.norm()
    assert error < bound
    assert error > bound / 100 or kind == "F32", "it was not stored as it says"


def test_heads_that_are_not_a_share_of_the_hidden_size(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, head_dim=12)
    tensors = random_tensors(config, seed=3)
    write_gguf(tmp_path / "tiny.gguf", config, tensors, kind="F32", add_key_length=12, add_value_length=12)
    expected = LlamaModel(config, DictWeights(tensors), "float32").logits(TEXT)
    found = load_model(tmp_path / "tiny.gguf", dtype="float32").logits(TEXT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"add_rope_scaling_type": gguf.RopeScalingType.NONE}, None),
        (
            {"add_rope_scaling_type": gguf.RopeScalingType.LINEAR, "add_rope_scaling_factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "add_rope_scaling_type": gguf.RopeScalingType.YARN,
                "add_rope_scaling_factor": 4.0,
                "add_rope_scaling_orig_ctx_len": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {
                "add_rope_scaling_type": gguf.RopeScalingType.YARN,
                "add_rope_scaling_factor": 4.0,
                "add_rope_scaling_orig_ctx_len": 32,
                "add_rope_scaling_attn_factors": 2.0,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 2 * (0.1 * np.log(4.0) + 1),
            },
        ),
    ],
)
def test_rope_scaling_means_what_it_means_in_config_json(
    metadata: dict[str, Any], scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", CONFIG, random_tensors(CONFIG, seed=3), **metadata)
    found = GGUFWeights(tmp_path / "tiny.gguf").config
    assert found.rope_scaling == (scaling and scaling_from_huggingface(scaling, CONFIG.context, None))


def test_the_older_key_of_linear_scaling_is_read(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, seed=3)
    write_gguf(tmp_path / "old.gguf", CONFIG, tensors, add_float32=("llama.rope.scale_linear", 2.0))
    scaling = GGUFWeights(tmp_path / "old.gguf").config.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == ("linear", 2.0)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"endian": gguf.GGUFEndian.BIG}, "big-endian"),
        ({"add_uint16": ("split.count", 3)}, "one of 3 parts"),
        ({"add_expert_count": 8}, "mixture of experts"),
        ({"add_rope_dimension_count": 4}, "only a part of each head"),
        ({"add_rope_scaling_type": gguf.RopeScalingType.LONGROPE}, "longrope"),
        ({"add_string": ("llama.rope.scaling.type", "llama3")}, "llama3"),
        ({"add_uint32": ("llama.attention.head_count", 3)}, "cannot share|attn_q|q_proj"),
        ({"add_uint32": ("llama.feed_forward_length", 32)}, r"gate_proj.weight has the shape \[64, 32\]"),
        ({"add_uint32": ("llama.block_count", 1)}, "holds layers.1.input_layernorm.weight and 8 more"),
        ({"add_uint32": ("llama.block_count", 3)}, "lacks blk.2.attn_norm.weight"),
        ({"add_string": ("llama.embedding_length", "wide")}, "wrong kind"),
        ({"add_float32": ("llama.rope.freq_base", float("nan"))}, "rope_theta"),
        ({"add_float32": ("general.alignment", 0.5)}, "alignment"),
    ],
)
def test_metadata_that_is_not_ours_is_refused(metadata: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", CONFIG, random_tensors(CONFIG, seed=3), **metadata)
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path / "other.gguf")


def test_tensors_that_our_network_lacks_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, seed=3) | {"blk.0.attn_q.bias": torch.zeros(32)}
    write_gguf(tmp_path / "bias.gguf", CONFIG, tensors)
    with pytest.raises(ModelError, match=r"holds blk\.0\.attn_q\.bias, which no Llama"):
        load_model(tmp_path / "bias.gguf")


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    write_gguf(tmp_path / "window.gguf", CONFIG, random_tensors(CONFIG, seed=3), add_sliding_window=48)
    model = load_model(tmp_path / "window.gguf", dtype="float32")
    assert (model.config.context, model.config.exact_context) == (48, 48)
    with pytest.raises(ModelError, match="at most 48 positions"):
        model.reserve(49)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_headers_end_in_an_error_or_a_model(seed: int, tmp_path: Path) -> None:
    """A few bytes of the header are changed at random: no other exception, no endless loop, no huge allocation."""
    write_gguf(tmp_path / "tiny.gguf", CONFIG, random_tensors(CONFIG, seed=3))
    data = bytearray((tmp_path / "tiny.gguf").read_bytes())
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 4)):
        data[int(rng.integers(4, 3500))] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))]))
    (tmp_path / "tiny.gguf").write_bytes(data)
    with suppress(ModelError):
        load_model(tmp_path / "tiny.gguf", dtype="float32").logits(TEXT)
