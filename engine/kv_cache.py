"""KVCache: the keys and values of every computed token, as tensors. Who owns which page is PageAllocator's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from structgen.engine.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """Where `rows` sequences lie: their page lists, padded to one length, end to end in `pages` (int64).

    `first` is set when there is one row and its pages adjoin: then it is read in place, without a gather.
    """

    pages: Tensor
    rows: int
    first: int | None = None


class KVCache:
    """For each layer [pages, page_size, 2 * kv_heads, head_dim], a token's keys, then its values, in one tensor.

    Token-major, so that writing the tokens of a step is one indexed copy (by page * page_size + offset) and reading
    a page table is one gather. The memory is reserved, not touched: pages that are never used cost no RAM. What no
    token has written is zero: reading past a short row's end must find finite numbers for the mask to hide.
    """

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.pages, self.page_size, self.dtype = pages, page_size, dtype
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        width = 2 * config.kv_heads * config.head_dim
        shape = (config.layers, pages, page_size, 2 * self.kv_heads, self.head_dim)
        self.whole = _untouched_zeros(shape, dtype, torch.device(device))
        self.layers = list(self.whole)
        self._tokens = [layer.view(pages * page_size, width) for layer in self.layers]

    def write(self, layer: int, index: Tensor, keys_values: Tensor) -> None:
        """keys_values [tokens, 2 * kv_heads * head_dim] go to the token places `index` [tokens]."""
        self._tokens[layer].index_copy_(0, index, keys_values)

    def read(self, layer: int, table: PageTable) -> tuple[Tensor, Tensor]:
        """Keys and values of the table's rows, [rows, kv_heads, tokens, head_dim]; a view when the pages adjoin."""
        pages = self.layers[layer]
        if table.first is None:
            found = pages.index_select(0, table.pages)
        else:
            found = pages[table.first : table.first + len(table.pages)]
        heads = found.view(table.rows, -1, 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        return heads[:, : self.kv_heads], heads[:, self.kv_heads :]

    def clear(self, pages: Iterable[int]) -> None:
        index = torch.tensor(list(pages), dtype=torch.int64, device=self.layers[0].device)
        for layer in self.layers:
            layer.index_fill_(0, index, 0)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that the system maps on first use (numpy asks for them so; torch.zeros would write them all)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    octets = np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(octets).view(dtype)
