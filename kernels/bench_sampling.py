"""Masked sampling and paged attention alone: checked, then timed in microseconds of a CUDA graph's replay.

    python -m structgen.kernels.bench_sampling

Needs a CUDA GPU. The last line is one JSON object.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from structgen.kernels.masked_sampling import Picks, RowParams, SamplingWorkspace, masked_sampling
from structgen.kernels.masked_sampling_reference import masked_sampling_reference
from structgen.kernels.paged_attention import AttentionWorkspace, paged_attention

VOCAB: Final = 128256
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
PLANS: Final[Mapping[str, Mapping[str, float]]] = {
    "greedy": {},
    "gumbel": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_p_flat": {"temperature": 1.6, "top_p": 0.95},  # thousands of tokens are kept
    "top_k_top_p_min_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
}
_CACHE_BYTES = 256 << 20  # more than any GPU's L2: inputs are rotated through so many bytes


def graph_microseconds(launches: Sequence[Callable[[], None]], *, replays: int = 20) -> float:
    """GPU time of one launch: the median over replays of a graph that holds all `launches`, divided by their number."""
    for launch in launches[:2]:
        launch()  # compiled outside the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = _event(), _event()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(launches))
    return float(statistics.median(times))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def language_logits(batch: int, vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits shaped as a language model's: a broad floor, and a few tokens that stand far above it."""
    logits = torch.randn(batch, vocab, device="cuda") * 2.5
    likely = torch.randint(0, vocab, (batch, 200), device="cuda")
    return logits.scatter_(1, likely, 20 - 4 * torch.empty(batch, 200, device="cuda").exponential_()).to(dtype)


def different_tokens(plan: Mapping[str, float], batch: int = 8) -> int:
    """Of `batch` rows, how many got another token than from the slow twin."""
    logits = language_logits(batch, VOCAB)
    mask = torch.randint(-(2**31), 2**31, (batch, VOCAB // 32), device="cuda").to(torch.int32)
    constrained = torch.arange(batch, device="cuda") % 2 == 0
    rows = _rows(batch, plan)
    workspace = SamplingWorkspace(max_batch=batch, vocab_size=VOCAB, device="cuda")
    picks = Picks.empty(batch, "cuda")
    masked_sampling(logits, rows, picks, workspace, mask=mask, constrained=constrained, cuts=_has_cuts(plan))
    twin = masked_sampling_reference(logits, rows, mask=mask, constrained=constrained.cpu())
    return int((picks.tokens.cpu() != twin.tokens).sum())


def _rows(batch: int, plan: Mapping[str, float]) -> RowParams:
    rows = replace(RowParams.greedy(batch, "cuda"), seed=torch.arange(batch, device="cuda"))
    for name, value in plan.items():
        getattr(rows, name).fill_(value)
    return rows


def _has_cuts(plan: Mapping[str, float]) -> bool:
    return any(name in plan for name in ("top_k", "top_p", "min_p"))


def sampling_microseconds(
    batch: int, plan: Mapping[str, float], *, dtype: torch.dtype = torch.float32, cold: bool = False
) -> float:
    """One launch on [batch, VOCAB] logits, every row with a mask that allows half of the tokens.

    `cold`: the logits come from memory; otherwise from L2, where the product that computed them leaves them.
    """
    torch.manual_seed(0)
    buffers = max(2, _CACHE_BYTES // (batch * VOCAB * dtype.itemsize)) if cold else 1
    logits = [language_logits(batch, VOCAB, dtype) for _ in range(min(buffers, 40))]
    mask = torch.randint(-(2**31), 2**31, (batch, VOCAB // 32), device="cuda").to(torch.int32)
    constrained = torch.ones(batch, dtype=torch.uint8, device="cuda")
    rows, cuts = _rows(batch, plan), _has_cuts(plan)
    workspace = SamplingWorkspace(max_batch=batch, vocab_size=VOCAB, device="cuda", cuts=cuts)
    picks = Picks.empty(batch, "cuda")

    def launch(which: Tensor) -> None:
        masked_sampling(which, rows, picks, workspace, mask=mask, constrained=constrained, cuts=cuts)

    launches = [partial(launch, which) for which in logits]
    return graph_microseconds(launches * (1 if len(launches) > 10 else 20))


def attention_microseconds(rows: int, context: int, *, heads: int = 32, kv_heads: int = 8, head_dim: int = 64) -> float:
    """One layer's attention of `rows` sequences with `context` tokens each, in bfloat16, from memory."""
    pages = -(-context // 16)
    layer_bytes = rows * pages * 16 * 2 * kv_heads * head_dim * 2
    caches = [
        torch.randn(rows * pages, 16, 2 * kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(min(max(_CACHE_BYTES // layer_bytes, 2), 32))
    ]
    query = torch.randn(rows, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    tables = torch.randperm(rows * pages, device="cuda").view(rows, pages).int()
    table_of = torch.arange(rows, dtype=torch.int32, device="cuda")
    lengths = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    out = torch.empty_like(query)
    workspace = AttentionWorkspace(max_rows=rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, device="cuda")

    def launch(cache: Tensor) -> None:
        paged_attention(
            query, cache, tables, table_of, lengths, scale=0.125, out=out, workspace=workspace, max_context=8192
        )  # fmt: skip

    return graph_microseconds([partial(launch, cache) for cache in caches])


def masked_sampling_us() -> dict[str, dict[str, float]]:
    """Plan -> batch -> microseconds, float32 logits in L2."""
    return {
        name: {str(batch): round(sampling_microseconds(batch, plan), 2) for batch in BATCHES}
        for name, plan in PLANS.items()
    }


def main() -> int:
    wrong = {name: count for name, plan in PLANS.items() if (count := different_tokens(plan))}
    if wrong:
        print(f"different from the slow twin: {wrong} of 8 tokens")
        return 1
    print(torch.cuda.get_device_name(), "microseconds of one launch in graph replay; batches", *BATCHES)
    table = masked_sampling_us()
    for name, times in table.items():
        print(f"sampling, {name:20}", *(f"{time:8.1f}" for time in times.values()))
    for name in ("greedy", "gumbel"):
        cold = [sampling_microseconds(batch, PLANS[name], cold=True) for batch in BATCHES]
        print(f"sampling, {name:10} (memory)", *(f"{time:8.1f}" for time in cold))
        half = [sampling_microseconds(batch, PLANS[name], dtype=torch.bfloat16) for batch in BATCHES]
        print(f"sampling, {name:10} (bf16)  ", *(f"{time:8.1f}" for time in half))
    attention: dict[str, dict[str, float]] = {}
    for rows in (1, 4, 8, 64):
        for context in (32, 128, 1024, 4096, 8192):
            time = attention_microseconds(rows, context)
            attention.setdefault(str(rows), {})[str(context)] = round(time, 2)
            rate = rows * context * 2048 / time / 1e6
            print(f"attention, {rows:3} rows, context {context:5}: {time:8.1f} us, {rate:5.2f} TB/s")
    print(json.dumps({"masked_sampling_us": table, "paged_attention_us": attention}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
