"""LlamaModel: precisions, and steps of chunks and decode rows. `test_checkpoints.py` has the shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgen.engine import LlamaModel, load_model
from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.llama import Chunk, ForwardInput
from structgen.engine.weights import Dtype

pytestmark = pytest.mark.usefixtures("one_thread")

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is the reference here")

IDS = [3, 17, 99, 5, 5, 61, 0, 42, 7, 23, 88, 12]


def random_checkpoint(folder: Path) -> Any:
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
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.eval().save_pretrained(folder)
    return model


@torch.inference_mode()
def reference_logits(model: Any, ids: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


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


def test_an_unknown_dtype_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype"):
        load_model(tmp_path, dtype="int3")  # type: ignore[arg-type]
