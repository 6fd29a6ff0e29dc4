"""paged_attention: attention of single tokens over the engine's paged KV cache, on the GPU, in one launch.

Sizes: N rows (tokens), H heads, K key heads, D head_dim. Nothing is allocated and lengths are read from device memory:
a captured CUDA graph serves every length up to its `max_context`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BLOCK: Final = 128  # tokens a program looks at together
LEAST: Final = 128  # fewer context tokens than this are not split
MAX_SPLITS: Final = 32
WARPS: Final = 4  # of a program


class AttentionWorkspace:
    """What the programs of one launch tell each other; one a stream.

    `splits` (a power of two) is into how many parts a context is cut at most: with more the GPU is busier when rows
    are few, with fewer there is less to merge. The cut depends on the row's length alone, so its result does too.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device | str,
        splits: int = MAX_SPLITS,
    ) -> None:
        if splits < 1 or splits & (splits - 1):
            raise ValueError(f"splits must be a power of two, not {splits}")
        self.max_rows, self.splits = max_rows, splits
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        slots = max_rows * heads * splits
        self.partials = torch.zeros(slots * head_dim, device=device)
        self.highest = torch.zeros(slots, device=device)
        self.sums = torch.zeros(slots, device=device)
        # Zero between launches: the last program of a (row, key head) resets it.
        self.counters = torch.zeros(max_rows * kv_heads, dtype=torch.int32, device=device)


def is_supported(heads: int, kv_heads: int, head_dim: int) -> bool:
    return heads % kv_heads == 0 and head_dim in (64, 128)


def paged_attention(
    query: Tensor,
    cache_layer: Tensor,
    tables: Tensor,
    table_of: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    out: Tensor,
    workspace: AttentionWorkspace,
    max_context: int,
) -> None:
    """out[n] = softmax(scale * query[n] keys) values over the first lengths[n] tokens of page table table_of[n].

    query        [N, H, D] bfloat16 or float32; rows may lie apart (a slice of a wider matrix)
    cache_layer  [pages, page_size, 2 * K, D] of the same type: a token's keys, then its values
    tables       int32 [tables, max_pages]; only the pages of the first lengths[n] tokens are looked up
    table_of     int32 [N]
    lengths      int32 [N], at most max_context; 0 marks a row that is not there: its output is 0
    out          [N, H, D] of the query's type
    ValueError when shapes, types or the workspace do not fit.
    """
    from structgen.kernels.device.paged_attention import attend

    rows, heads, dim = query.shape
    page_size, kv_heads = cache_layer.shape[1], cache_layer.shape[2] // 2
    _check(query, cache_layer, tables, table_of, lengths, out, workspace)
    attend[(min(max(-(-max_context // LEAST), 1), workspace.splits), kv_heads, rows)](
        query,
        query.stride(0),
        cache_layer,
        tables,
        tables.stride(0),
        table_of,
        lengths,
        out,
        out.stride(0),
        workspace.partials,
        workspace.highest,
        workspace.sums,
        workspace.counters,
        scale,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PAGE=page_size,
        SPLITS=workspace.splits,
        LEAST=LEAST,
        BLOCK=BLOCK,
        GROUP_PADDED=max(16, 1 << (heads // kv_heads - 1).bit_length()),
        UPCAST=not query.is_cuda,
        num_warps=WARPS,
        num_stages=3 if query.dtype == torch.bfloat16 else 1,
    )


def _check(
    query: Tensor,
    cache_layer: Tensor,
    tables: Tensor,
    table_of: Tensor,
    lengths: Tensor,
    out: Tensor,
    workspace: AttentionWorkspace,
) -> None:
    rows, heads, dim = query.shape
    kv_heads = cache_layer.shape[2] // 2
    if not is_supported(heads, kv_heads, dim):
        raise ValueError(f"{heads} heads, {kv_heads} key heads of {dim} are not supported; head_dim 64 and 128 are")
    made_for = (workspace.heads, workspace.kv_heads, workspace.head_dim)
    if made_for != (heads, kv_heads, dim) or rows > workspace.max_rows:
        raise ValueError(f"the workspace is for {workspace.max_rows} rows of heads, key heads, head_dim {made_for}")
    if query.dtype not in (torch.bfloat16, torch.float32) or {cache_layer.dtype, out.dtype} != {query.dtype}:
        raise ValueError("query, cache and out must all be bfloat16 or all float32")
    if query.stride()[1:] != (dim, 1) or out.shape != query.shape or out.stride()[1:] != (dim, 1):
        raise ValueError("the heads of a row of query and out must adjoin")
    if not cache_layer.is_contiguous() or cache_layer.shape[3] != dim:
        raise ValueError(f"the cache must be contiguous [pages, page_size, 2 * kv_heads, {dim}]")
    for name, vector in (("table_of", table_of), ("lengths", lengths)):
        if vector.dtype != torch.int32 or len(vector) < rows or not vector.is_contiguous():
            raise ValueError(f"{name} must be int32 [{rows}]")
    if tables.dtype != torch.int32 or tables.stride(1) != 1:
        raise ValueError("tables must be int32 [tables, max_pages]")
