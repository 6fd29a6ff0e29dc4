"""LlamaModel against transformers, on tiny random checkpoints of every shape that is supported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgen.engine import LlamaModel, ModelError, load_model
from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.llama import Chunk, ForwardInput
from structgen.engine.weights import Dtype

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is the reference here")

IDS = [3, 17, 99, 5, 5, 61, 0, 42, 7, 23, 88, 12]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "untied": {"tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 6},
    "wide heads": {"head_dim": 32},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more threads, and lose much where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_checkpoint(folder: Path, *, shards: str = "1GB", **options: Any) -> Any:
    """A tiny model with weights large enough that every part moves the logits; returns transformers' own model."""
    torch.manual_seed(7)
    shape = {
        "vocab_size": 100,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **options}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.eval().save_pretrained(folder, max_shard_size=shards)
    return model


@torch.inference_mode()
def reference_logits(model: Any, ids: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = random_checkpoint(tmp_path, **SHAPES[name])
    ours = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours.logits(IDS * 10), reference_logits(theirs, IDS * 10), rtol=1e-4, atol=1e-4)


def test_a_sharded_checkpoint_is_read_as_one(tmp_path: Path) -> None:
    theirs = random_checkpoint(tmp_path, shards="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours.logits(IDS), reference_logits(theirs, IDS), rtol=1e-4, atol=1e-4)


def test_a_mistral_without_a_sliding_window_is_a_llama(tmp_path: Path) -> None:
    theirs = random_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours.logits(IDS), reference_logits(theirs, IDS), rtol=1e-4, atol=1e-4)


def test_the_older_spelling_of_rope_scaling_is_read(tmp_path: Path) -> None:
    theirs = random_checkpoint(tmp_path, rope_parameters=LLAMA3)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rope_theta": 10000.0, "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours.logits(IDS * 10), reference_logits(theirs, IDS * 10), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.1)])
def test_lower_precision_stays_near(dtype: Dtype, tolerance: float, tmp_path: Path) -> None:
    """Relative error of all logits together; int8 on both of its paths (packed for few tokens, unpacked for many)."""
    theirs = random_checkpoint(tmp_path)
    ours = load_model(tmp_path, dtype=dtype)
    for ids in (IDS, IDS * 10):
        expected = reference_logits(theirs, ids)
        error = (ours.logits(ids).float() - expected).norm() / expected.norm()
        assert error < tolerance


def feed(model: LlamaModel, cache: KVCache, ids: list[int], start: int, pages: list[int]) -> Tensor:
    """Run ids from position `start` as one chunk; logits of all of them."""
    positions = torch.arange(start, start + len(ids))
    page, offset = positions // cache.page_size, positions % cache.page_size
    used = torch.tensor(pages[: -(-(start + len(ids)) // cache.page_size)])
    step = ForwardInput(
        ids=torch.tensor(ids),
        positions=positions,
        places=torch.tensor(pages)[page] * cache.page_size + offset,
        decode_table=PageTable(pages=used[:0], rows=0),
        decode_lengths=(),
        chunks=[Chunk(offset=0, count=len(ids), start=start, table=PageTable(pages=used, rows=1))],
    )
    return model.head(model.hidden(step, cache))


def test_chunks_and_decode_rows_of_one_step_equal_whole_passes(tmp_path: Path) -> None:
    """Two sequences at different positions decode in one step, beside a third's second chunk, on scattered pages."""
    random_checkpoint(tmp_path)
    model = load_model(tmp_path, dtype="float32")
    model.reserve(64)
    cache = KVCache(model.config, 16, 4, torch.float32)
    first, second, third = [9, 2, 7], [3, 3, 8, 11, 64, 1, 90], [*IDS]
    tables = [[5, 1, 9], [0, 7, 3], [2, 15, 4]]
    for ids, pages in zip((first[:-1], second[:-1], third[:5]), tables, strict=True):
        feed(model, cache, ids, 0, pages)
    step = ForwardInput(
        ids=torch.tensor([first[-1], second[-1], *third[5:]]),
        positions=torch.tensor([2, 6, *range(5, 12)]),
        places=torch.tensor(
            [5 * 4 + 2, 7 * 4 + 2, *(15 * 4 + at for at in (1, 2, 3)), *(4 * 4 + at for at in range(4))]
        ),
        decode_table=PageTable(pages=torch.tensor([5, 5, 0, 7]), rows=2),
        decode_lengths=(3, 7),
        chunks=[Chunk(offset=2, count=7, start=5, table=PageTable(pages=torch.tensor(tables[2]), rows=1))],
    )
    logits = model.head(model.hidden(step, cache))
    expected = torch.cat([model.logits(first)[-1:], model.logits(second)[-1:], model.logits(third)[5:]])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_other_models_are_refused_with_a_reason(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path)


def test_damaged_folders_are_refused_with_a_reason(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="no model at"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelError, match="not a model file"):
        load_model(tmp_path / "config.json")


def test_an_unknown_dtype_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype"):
        load_model(tmp_path, dtype="int3")  # type: ignore[arg-type]
