"""PagedRows: a step of single-token rows over paged keys and values, as LlamaModel.hidden_rows reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from structgen.engine.kv_cache import KVCache
from structgen.engine.model_config import ModelConfig
from structgen.kernels.paged_attention import AttentionWorkspace, paged_attention

Attend = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class PagedRows:
    """N rows; everything lies on the model's device, and nothing is read back, so that a graph can capture the step.

    ids, positions, places  int64 [N]: token, its position, its place in the KV cache
    tables                  int32 [T, P]: page tables; `table_of` int32 [N] says which one a row reads
    lengths                 int32 [N]: how many cached tokens a row sees, itself included
    """

    ids: Tensor
    positions: Tensor
    places: Tensor
    tables: Tensor
    table_of: Tensor
    lengths: Tensor
    page_size: int
    adapters: Tensor | None = None  # int64 [N]: each row's slot in the AdapterTable; None when no row has one
    workspace: AttentionWorkspace | None = None  # of the attention kernel; None for plain PyTorch

    @classmethod
    def of(
        cls,
        ids: Tensor,
        positions: Tensor,
        table_of: Tensor,
        tables: Tensor,
        page_size: int,
        *,
        adapters: Tensor | None = None,
        workspace: AttentionWorkspace | None = None,
    ) -> PagedRows:
        pages = tables[table_of.long(), torch.div(positions, page_size, rounding_mode="floor").long()]
        return cls(
            ids=ids,
            positions=positions.long(),
            places=pages.long() * page_size + positions.long() % page_size,
            tables=tables,
            table_of=table_of,
            lengths=positions + 1,
            page_size=page_size,
            adapters=adapters,
            workspace=workspace,
        )

    def attention(self, config: ModelConfig, cache: KVCache) -> Attend:
        """(layer, queries [N, H * D]) -> [N, H * D]: the kernel where there is a workspace for it, else PyTorch."""
        return self._plain(config, cache) if self.workspace is None else self._kernel(config, cache, self.workspace)

    def _kernel(self, config: ModelConfig, cache: KVCache, workspace: AttentionWorkspace) -> Attend:
        scale = config.head_dim**-0.5
        context = self.tables.shape[1] * self.page_size

        def attend(layer: int, queries: Tensor) -> Tensor:
            query = queries.view(len(queries), config.heads, config.head_dim)
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
            paged_attention(
                query,
                cache.layers[layer],
                self.tables,
                self.table_of,
                self.lengths,
                scale=scale,
                out=out,
                workspace=workspace,
                max_context=context,
            )
            return out.flatten(1)

        return attend

    def _plain(self, config: ModelConfig, cache: KVCache) -> Attend:
        """Gather every row's whole table: the slow twin."""
        tables = self.tables[self.table_of.long()].long()
        context = tables.shape[1] * self.page_size
        hidden = torch.arange(context, device=self.ids.device) >= self.lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=self.ids.device)
        mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None, :]

        def attend(layer: int, queries: Tensor) -> Tensor:
            found = cache.layers[layer][tables].view(len(tables), context, 2 * config.kv_heads, config.head_dim)
            heads = found.transpose(1, 2)
            keys, values = heads[:, : config.kv_heads], heads[:, config.kv_heads :]
            query = queries.view(len(tables), config.kv_heads, config.group, config.head_dim)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            return mixed.reshape(len(tables), -1)

        return attend
