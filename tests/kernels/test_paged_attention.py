"""Decode attention over pages: compared with PyTorch's attention over the same tokens laid end to end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from structgen.kernels.paged_attention import AttentionWorkspace, is_supported, paged_attention

MAX_PAGES = 40


@dataclass(frozen=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    page: int = 16
    dtype: torch.dtype = torch.bfloat16
    splits: int = 4


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    cache: Tensor
    tables: Tensor
    table_of: Tensor
    lengths: Tensor


def make(case: Case, lengths: list[int], device: str, table_of: list[int] | None = None) -> Inputs:
    """Random rows; what no row may look at is NaN."""
    random = torch.Generator().manual_seed(len(lengths) + case.heads)
    rows = len(lengths)
    pages = rows * MAX_PAGES
    cache = torch.randn(pages, case.page, 2 * case.kv_heads, case.dim, generator=random)
    tables = torch.randperm(pages, generator=random).view(rows, MAX_PAGES)
    table_of = table_of or list(range(rows))
    for table in range(rows):
        seen = max((n for n, own in zip(lengths, table_of, strict=True) if own == table), default=0)
        flat = cache.view(pages * case.page, -1)
        for position in range(seen, MAX_PAGES * case.page):
            flat[tables[table, position // case.page] * case.page + position % case.page] = torch.nan
    return Inputs(
        query=torch.randn(rows, case.heads, case.dim, generator=random).to(case.dtype).to(device),
        cache=cache.to(case.dtype).to(device),
        tables=tables.int().to(device),
        table_of=torch.tensor(table_of, dtype=torch.int32, device=device),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
    )


def expected(case: Case, inputs: Inputs) -> Tensor:
    out = torch.zeros(inputs.query.shape, dtype=torch.float64)
    for row, length in enumerate(inputs.lengths.tolist()):
        if length:
            table = inputs.tables[int(inputs.table_of[row])].long()
            tokens = inputs.cache[table].flatten(0, 1)[:length].double().cpu().transpose(0, 1)
            keys, values = tokens.repeat_interleave(case.heads // case.kv_heads, 0).view(2, case.heads, length, -1)
            query = inputs.query[row].double().cpu()[:, None]
            out[row] = functional.scaled_dot_product_attention(query, keys, values)[:, 0]
    return out


def run(case: Case, inputs: Inputs, workspace: AttentionWorkspace | None = None, max_context: int = 0) -> Tensor:
    rows, device = len(inputs.lengths), inputs.query.device
    workspace = workspace or AttentionWorkspace(
        max_rows=rows,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.dim,
        device=device,
        splits=case.splits,
    )
    out = torch.full_like(inputs.query, torch.nan)
    paged_attention(
        inputs.query,
        inputs.cache,
        inputs.tables,
        inputs.table_of,
        inputs.lengths,
        scale=1 / math.sqrt(case.dim),
        out=out,
        workspace=workspace,
        max_context=max_context or MAX_PAGES * case.page,
    )
    assert not workspace.counters.any()
    return out.cpu()


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(heads=9, kv_heads=3),
        Case(heads=4, kv_heads=1, dim=128, page=32),
        Case(heads=2, kv_heads=2, splits=1),
        Case(dtype=torch.float32),
        Case(heads=6, kv_heads=2, dim=128, dtype=torch.float32, splits=2),
    ],
    ids=str,
)
def test_it_is_attention_over_the_pages(case: Case, device: str) -> None:
    inputs = make(case, [1, 16, 17, 127, 128, 129, 300, 512, 0], device)
    limit = 1e-2 if case.dtype == torch.bfloat16 else 1e-5
    found, wanted = run(case, inputs), expected(case, inputs)
    assert error(found, wanted) < limit
    assert all(error(found[row], wanted[row]) < limit for row in range(8))
    assert not found[8].any()


def test_rows_may_share_a_page_table_as_the_tokens_of_a_chunk_do(device: str) -> None:
    inputs = make(Case(), [200, 201, 202, 50], device, table_of=[2, 2, 2, 0])
    assert error(run(Case(), inputs), expected(Case(), inputs)) < 1e-2


def test_a_row_does_not_depend_on_its_batch_nor_on_the_longest_context(device: str) -> None:
    case = Case()
    inputs = make(case, [300, 5, 129], device)
    alone = Inputs(
        inputs.query[2:], inputs.cache, inputs.tables, torch.tensor([2], dtype=torch.int32).to(device),
        inputs.lengths[2:].clone(),
    )  # fmt: skip
    assert torch.equal(run(case, inputs)[2], run(case, alone, max_context=129)[0])


def test_one_workspace_serves_any_number_of_launches_and_queries_inside_a_wider_matrix(device: str) -> None:
    case = Case()
    workspace = AttentionWorkspace(max_rows=5, heads=4, kv_heads=2, head_dim=64, device=device, splits=4)
    first, second = make(case, [400, 1, 300], device), make(case, [17, 600], device)
    wide = torch.cat([first.query.flatten(1), first.query.flatten(1)], 1)
    sliced = Inputs(wide[:, :256].view(3, 4, 64), first.cache, first.tables, first.table_of, first.lengths)
    for inputs in (sliced, second, sliced):
        assert error(run(case, inputs, workspace), expected(case, inputs)) < 1e-2


def test_what_does_not_fit_is_refused(device: str) -> None:
    inputs = make(Case(), [3], device)
    small = AttentionWorkspace(max_rows=1, heads=4, kv_heads=4, head_dim=64, device=device)
    with pytest.raises(ValueError, match="workspace"):
        run(Case(), inputs, small)
    with pytest.raises(ValueError, match="power of two"):
        AttentionWorkspace(max_rows=1, heads=4, kv_heads=4, head_dim=64, device=device, splits=3)
    assert not is_supported(4, 3, 64)
    assert not is_supported(4, 4, 80)
