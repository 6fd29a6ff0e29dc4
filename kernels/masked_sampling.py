"""masked_sampling: logits and a bitmask -> one token a row on the GPU, in one launch, without the host.

Mask, temperature, greedy or Gumbel choice, top-k / top-p / min-p and the token's log probability. Nothing is allocated
and nothing is waited for, so a CUDA graph can hold it. Sizes: B rows, V tokens. Row parameters are read from device
memory: a captured graph follows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 4096  # logits a program looks at; as in device/sampling.py
GROUP: Final = 32  # tokens of a mask word
OK: Final = 0
NOT_FINITE: Final = 1  # a logit is NaN or +inf, or all are -inf
NOTHING_ALLOWED: Final = 2

WARPS: Final = 8  # of a program; measured (README)
_FIELDS = 5  # of a chunk's partial result


@dataclass(frozen=True, kw_only=True)
class RowParams:
    """How each row samples; tensors [B] on the logits' device.

    temperature  float32, 0 is greedy (and ignores the rest)
    min_p        float32, keep what has at least this share of the likeliest token's probability; 0 keeps all
    top_k        int32, of those keep so many of the most likely, ties by lower id; 0 keeps all
    top_p        float32, of those keep the fewest most likely that reach this share of their mass; 1 keeps all
    seed         int64, names the row's random stream
    offset       int64, place in the stream: a new one for every token of a sequence
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    offset: Tensor

    @classmethod
    def greedy(cls, batch: int, device: torch.device | str) -> RowParams:
        return cls(
            temperature=torch.zeros(batch, device=device),
            top_k=torch.zeros(batch, dtype=torch.int32, device=device),
            top_p=torch.ones(batch, device=device),
            min_p=torch.zeros(batch, device=device),
            seed=torch.zeros(batch, dtype=torch.int64, device=device),
            offset=torch.zeros(batch, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True, kw_only=True)
class Picks:
    """What is written; tensors [B].

    tokens    int64; 0 where status is not OK, so that it can be looked up in an embedding
    status    int8: OK, NOT_FINITE or NOTHING_ALLOWED
    logprobs  float32 or None: log softmax of the masked logits at the token, without temperature and cuts
    """

    tokens: Tensor
    status: Tensor
    logprobs: Tensor | None = None

    @classmethod
    def empty(cls, batch: int, device: torch.device | str, *, logprobs: bool = False) -> Picks:
        return cls(
            tokens=torch.zeros(batch, dtype=torch.int64, device=device),
            status=torch.zeros(batch, dtype=torch.int8, device=device),
            logprobs=torch.zeros(batch, device=device) if logprobs else None,
        )


STATUS_SHIFT: Final = 48  # of a packed result: the status lies above the token


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """Where the tokens go besides, in the same launch.

    lanes        int32 [B]: where in last_tokens each row's token goes; rows without a token leave 0 there
    last_tokens  int64
    packed       int64 [B]: a row's token, and its status above it. It may be the host's, in page-locked memory: what is
                 written is there when the launch is through
    """

    lanes: Tensor
    last_tokens: Tensor
    packed: Tensor


class SamplingWorkspace:
    """What the programs of one launch tell each other; one a stream. `cuts` adds 8 bytes a logit for top-k/p/min-p."""

    def __init__(self, *, max_batch: int, vocab_size: int, device: torch.device | str, cuts: bool = True) -> None:
        self.max_batch, self.vocab_size, self.cuts = max_batch, vocab_size, cuts
        self.chunks = -(-vocab_size // CHUNK)
        slots = max_batch * self.chunks

        def buffer(size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.partials = buffer(_FIELDS * slots, torch.float32)
        self.partial_ids = buffer(slots, torch.int32)
        self.counters = buffer(max_batch, torch.int32)  # zero between launches: a row's last program resets it
        groups = slots * (CHUNK // GROUP) if cuts else 1
        self.group_tops = buffer(groups, torch.float32)
        self.group_list = buffer(groups, torch.int32)
        candidates = slots * CHUNK if cuts else 1
        self.candidate_logits = buffer(candidates, torch.float32)
        self.candidate_ids = buffer(candidates, torch.int32)


def masked_sampling(
    logits: Tensor,
    rows: RowParams,
    picks: Picks,
    workspace: SamplingWorkspace,
    *,
    mask: Tensor | None = None,
    mask_rows: Tensor | None = None,
    constrained: Tensor | None = None,
    hand_over: HandOver | None = None,
    cuts: bool = False,
    check_forbidden: bool = True,
) -> None:
    """Pick a token for every row of `logits` [B, V] (float32 or bfloat16) and write it to `picks`.

    mask             int32 [B, ceil(V / 32)], bit 1 = allowed (token t: bit t % 32 of word t // 32)
    mask_rows        int32 [B]: which row of `mask` each row reads, where that is a table of any number of masks; what
                     stands there for a row that is not constrained does not matter
    constrained      uint8 or bool [B]: the rows whose mask counts
    cuts             honour top_k, top_p and min_p; False saves their bookkeeping when no row uses them
    check_forbidden  also find non-finite logits that the mask forbids. False does not even load the logits of mask
                     words that are zero: then NOT_FINITE is about the loaded ones only
    ValueError when shapes, types or the workspace do not fit. A row's token depends on that row alone.
    """
    from structgen.kernels.device.sampling import sample_rows

    batch, vocab = logits.shape
    _check(logits, rows, picks, workspace, mask, constrained, cuts)
    if mask_rows is not None:
        _check_vector("mask_rows", mask_rows, batch, torch.int32)
    if hand_over is not None:
        _check_vector("lanes", hand_over.lanes, batch, torch.int32)
        _check_vector("last_tokens", hand_over.last_tokens, 1, torch.int64)
        _check_vector("packed", hand_over.packed, batch, torch.int64)
    chunks = workspace.chunks
    sample_rows[(chunks, batch)](
        logits,
        logits.stride(0),
        workspace.partial_ids if mask is None else mask,
        0 if mask is None else mask.stride(0),
        workspace.partial_ids if mask_rows is None else mask_rows,
        workspace.partial_ids if constrained is None else constrained,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.seed,
        rows.offset,
        picks.tokens,
        picks.status,
        workspace.partials if picks.logprobs is None else picks.logprobs,
        workspace.partial_ids if hand_over is None else hand_over.lanes,
        picks.tokens if hand_over is None else hand_over.last_tokens,
        picks.tokens if hand_over is None else hand_over.packed,
        workspace.partials,
        workspace.partial_ids,
        workspace.counters,
        workspace.group_tops,
        workspace.group_list,
        workspace.candidate_logits,
        workspace.candidate_ids,
        vocab,
        chunks,
        HAS_MASK=mask is not None,
        MASK_TABLE=mask_rows is not None,
        CHECK_FORBIDDEN=check_forbidden,
        LOGPROBS=picks.logprobs is not None,
        HANDS_OVER=hand_over is not None,
        CUTS=cuts,
        CHUNKS_PADDED=1 << (chunks - 1).bit_length(),
        num_warps=WARPS,
    )


def _check(
    logits: Tensor,
    rows: RowParams,
    picks: Picks,
    workspace: SamplingWorkspace,
    mask: Tensor | None,
    constrained: Tensor | None,
    cuts: bool,
) -> None:
    batch, vocab = logits.shape
    if logits.dtype not in (torch.float32, torch.bfloat16) or logits.stride(1) != 1:
        raise ValueError(f"logits must be float32 or bfloat16 with adjoining columns, not {logits.dtype}")
    if vocab != workspace.vocab_size or batch > workspace.max_batch:
        raise ValueError(f"the workspace is for {workspace.max_batch} rows of {workspace.vocab_size}")
    if cuts and not workspace.cuts:
        raise ValueError("the workspace was made without cuts")
    if (mask is None) != (constrained is None):
        raise ValueError("mask and constrained come together")
    if mask is not None and (mask.dtype != torch.int32 or mask.stride(1) != 1 or mask.shape[1] * 32 < vocab):
        raise ValueError(f"mask must be int32 [B, {-(-vocab // 32)}]")
    named = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    for name, dtype in (named | {"seed": torch.int64, "offset": torch.int64}).items():
        _check_vector(name, getattr(rows, name), batch, dtype)
    _check_vector("tokens", picks.tokens, batch, torch.int64)
    _check_vector("status", picks.status, batch, torch.int8)
    if picks.logprobs is not None:
        _check_vector("logprobs", picks.logprobs, batch, torch.float32)


def _check_vector(name: str, vector: Tensor, batch: int, dtype: torch.dtype) -> None:
    if vector.dtype != dtype or len(vector) < batch or not vector.is_contiguous():
        raise ValueError(f"{name} must be {dtype} [{batch}]")
