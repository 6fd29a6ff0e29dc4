"""masked_sampling_reference: the slow twin of the masked sampling kernel, a row at a time in plain PyTorch.

It has the same random numbers: Philox4x32-7 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011; seven
rounds are the fewest that pass BigCrush) with the row's seed as key, and as counter the token's place and the offset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structgen.kernels.masked_sampling import CHUNK, NOT_FINITE, NOTHING_ALLOWED, OK, Picks, RowParams

ROUNDS = 7
_LOW = 0xFFFFFFFF


def masked_sampling_reference(
    logits: Tensor,
    rows: RowParams,
    *,
    mask: Tensor | None = None,
    mask_rows: Tensor | None = None,
    constrained: Tensor | None = None,
    logprobs: bool = False,
) -> Picks:
    """The picks for `logits` [B, V], on the CPU; the arguments are those of masked_sampling."""
    picks = Picks.empty(len(logits), "cpu", logprobs=logprobs)
    for row in range(len(logits)):
        x = logits[row].float().cpu()
        highest = x.max()  # propagates NaN
        if mask is not None and constrained is not None and bool(constrained[row]):
            words = mask[row if mask_rows is None else int(mask_rows[row])]
            x = x.masked_fill(~allowed_tokens(words.cpu(), len(x)), -torch.inf)
        if not torch.isfinite(highest):
            picks.status[row] = NOT_FINITE
        elif x.max() == -torch.inf:
            picks.status[row] = NOTHING_ALLOWED
        else:
            picks.status[row] = OK
            picks.tokens[row] = pick(x, rows, row)
        if picks.logprobs is not None:
            found = picks.status[row] == OK
            picks.logprobs[row] = torch.log_softmax(x, 0)[picks.tokens[row]] if found else -torch.inf
    return picks


def allowed_tokens(words: Tensor, vocab: int) -> Tensor:
    """bool [vocab] of mask words int32 [ceil(vocab / 32)]."""
    return ((words[:, None] >> torch.arange(32)) & 1).bool().view(-1)[:vocab]


def pick(x: Tensor, rows: RowParams, row: int) -> Tensor:
    """The token of one row of masked logits [V]."""
    temperature = rows.temperature[row].item()
    if temperature <= 0:
        return x.argmax()
    scaled = (x - x.max()) * (1 / max(temperature, 1e-30))
    noise = gumbel_noise(len(x), int(rows.seed[row]), int(rows.offset[row]))
    kept = kept_tokens(scaled, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
    return torch.where(kept & (scaled > -torch.inf), scaled + noise, -torch.inf).argmax()


def kept_tokens(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """bool [V]: what min-p, then top-k, then top-p of the rest keep of logits that are shifted and scaled."""
    values, order = torch.sort(scaled, descending=True, stable=True)
    likely = int((values >= torch.tensor(min_p).log()).sum()) if min_p > 0 else len(scaled)
    count = min(top_k or likely, likely)
    masses = values[:count].double().exp()
    before = masses.cumsum(0) - masses
    keep = torch.ones(count, dtype=torch.bool) if top_p >= 1 else before < top_p * masses.sum()
    kept = torch.zeros(len(scaled), dtype=torch.bool)
    kept[order[:count]] = keep
    return kept


def gumbel_noise(vocab: int, seed: int, offset: int) -> Tensor:
    """Standard Gumbel noise float32 [vocab]: token i has lane (i // 1024) % 4 of its draw of four randoms."""
    ids = torch.arange(vocab)
    counter = (ids // CHUNK) * (CHUNK // 4) + ids % (CHUNK // 4)
    lanes = philox(counter, offset, seed)
    random = torch.stack(lanes).gather(0, ((ids // (CHUNK // 4)) % 4)[None])[0]
    v = (random.float() * 2.0**-32 + 2.0**-33).clamp(max=0.99999994)
    return -(-torch.log1p(-v)).log()


def philox(counter: Tensor, offset: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four uint32 randoms (as int64) for each counter; the other words of the counter are the offset's, low first."""
    c0 = counter.to(torch.int64)
    c1, c2, c3 = (torch.full_like(c0, word) for word in (offset & _LOW, (offset >> 32) & _LOW, 0))
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        high0, low0 = _product(0xD2511F53, c0)
        high2, low2 = _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def _product(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of factor * x, in parts that fit int64."""
    upper, lower = factor * (x >> 16), factor * (x & 0xFFFF)
    high = (upper + (lower >> 16)) >> 16
    return high, ((upper << 16) + lower) & _LOW
