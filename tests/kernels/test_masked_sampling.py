"""Masked sampling: the kernel against its slow twin token by token, the twin against the distribution it stands for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgen.engine.sampler import RowSampling, Sampler
from structgen.engine.sampling_params import SamplingParams
from structgen.kernels.masked_sampling import (
    NOT_FINITE,
    NOTHING_ALLOWED,
    OK,
    STATUS_SHIFT,
    HandOver,
    Picks,
    RowParams,
    SamplingWorkspace,
    masked_sampling,
)
from structgen.kernels.masked_sampling_reference import gumbel_noise, kept_tokens, masked_sampling_reference, philox

VOCAB = 5003  # two chunks, the second one short, no multiple of anything


def params(rows: list[dict[str, float]], device: str) -> RowParams:
    """Row parameters from what differs from greedy; seeds and offsets beyond 32 bits."""
    made = RowParams.greedy(len(rows), "cpu")
    for index, row in enumerate(rows):
        for name, value in ({"seed": (index + 1) << 33 | 5, "offset": 7 << 32 | index} | row).items():
            getattr(made, name)[index] = value
    return RowParams(**{name: getattr(made, name).to(device) for name in RowParams.__dataclass_fields__})


def random_mask(rows: int, vocab: int, seed: int = 0) -> Tensor:
    """Words of which half are zero."""
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), generator=random)
    return (words * torch.randint(0, 2, words.shape, generator=random)).int()


def mask_of(tokens: list[int], vocab: int) -> Tensor:
    words = [0] * -(-vocab // 32)
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return torch.tensor([word - (1 << 32) if word >> 31 else word for word in words], dtype=torch.int32)


def run(
    logits: Tensor,
    rows: RowParams,
    mask: Tensor | None = None,
    constrained: list[bool] | None = None,
    *,
    mask_rows: Tensor | None = None,
    hand_over: HandOver | None = None,
    workspace: SamplingWorkspace | None = None,
    cuts: bool = True,
    check_forbidden: bool = True,
) -> Picks:
    batch, vocab = logits.shape
    device = rows.seed.device
    workspace = workspace or SamplingWorkspace(max_batch=batch, vocab_size=vocab, device=device, cuts=cuts)
    picks = Picks.empty(batch, device, logprobs=True)
    picks.tokens.fill_(-7)
    picks.status.fill_(9)
    masked_sampling(
        logits.to(device),
        rows,
        picks,
        workspace,
        mask=None if mask is None else mask.to(device),
        mask_rows=None if mask_rows is None else mask_rows.to(device),
        hand_over=hand_over,
        constrained=None if mask is None else torch.tensor(constrained or [True] * batch, device=device),
        cuts=cuts,
        check_forbidden=check_forbidden,
    )
    assert not workspace.counters.any()
    logprobs = picks.logprobs.cpu() if picks.logprobs is not None else None
    return Picks(tokens=picks.tokens.cpu(), status=picks.status.cpu(), logprobs=logprobs)


def check(found: Picks, wanted: Picks) -> None:
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.status.tolist() == wanted.status.tolist()
    assert found.logprobs is not None
    assert wanted.logprobs is not None
    torch.testing.assert_close(found.logprobs, wanted.logprobs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuts", [True, False])
def test_greedy_is_the_lowest_id_of_the_highest_allowed_logits(dtype: torch.dtype, cuts: bool, device: str) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[1] = logits[1].round()  # ties in every chunk and quarter
    constrained = [True, True, False, True]
    mask = random_mask(4, VOCAB)
    rows = params([{}] * 4, device)
    wanted = masked_sampling_reference(logits, rows, mask=mask, constrained=torch.tensor(constrained), logprobs=True)
    check(run(logits, rows, mask, constrained, cuts=cuts), wanted)


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("check_forbidden", [True, False])
def test_rows_read_the_masks_of_a_table_that_they_are_told(cuts: bool, check_forbidden: bool, device: str) -> None:
    """One mask for two rows, and no matter what for a row that is not constrained."""
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1))
    constrained, table = [True, True, False, True, True], random_mask(9, VOCAB)
    table[8] = mask_of([VOCAB - 1], VOCAB)
    at = torch.tensor([7, 0, -1, 7, 8], dtype=torch.int32)
    rows = params([{}, {"temperature": 1.5, "top_k": 30 * cuts}, {}, {"temperature": 0.8}, {}], device)
    found = run(logits, rows, table, constrained, mask_rows=at, cuts=cuts, check_forbidden=check_forbidden)
    flags = torch.tensor(constrained)
    check(found, masked_sampling_reference(logits, rows, mask=table, mask_rows=at, constrained=flags, logprobs=True))
    gathered = table[at.long().clamp_min(0)]
    check(found, run(logits, rows, gathered, constrained, cuts=cuts, check_forbidden=check_forbidden))
    assert found.tokens[4] == VOCAB - 1


def test_tokens_are_handed_over_in_the_same_launch(device: str) -> None:
    """To their lanes, of which some have no row, and to the host; rows without a token hand over 0 and say why."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[1, 5] = torch.nan
    mask = random_mask(4, VOCAB)
    mask[2] = 0
    rows = params([{}, {}, {}, {"temperature": 1.0}], device)
    hand_over = HandOver(
        lanes=torch.tensor([5, 0, 3, 1], dtype=torch.int32, device=device),
        last_tokens=torch.full((6,), -1, dtype=torch.int64, device=device),
        packed=torch.full((5,), -1, dtype=torch.int64, pin_memory=device == "cuda"),
    )
    found = run(logits, rows, mask, hand_over=hand_over)
    if device == "cuda":
        torch.cuda.synchronize()
    assert found.status.tolist() == [OK, NOT_FINITE, NOTHING_ALLOWED, OK]
    first, _, _, last = found.tokens.tolist()
    assert hand_over.last_tokens.tolist() == [0, last, -1, 0, -1, first]
    assert hand_over.packed.tolist() == [first, NOT_FINITE << STATUS_SHIFT, NOTHING_ALLOWED << STATUS_SHIFT, last, -1]


SAMPLED = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {},
    {"temperature": 1.5, "top_k": 3},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 4000},
    {"temperature": 1.0, "top_k": 100000},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 3.0, "top_p": 0.97},
    {"temperature": 1e-9, "top_p": 0.97},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 2.0, "top_k": 60, "top_p": 0.8},
    {"temperature": 3.0, "top_k": 200, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 0.6, "min_p": 0.2},
]


@pytest.mark.parametrize("spread", [4.0, 0.5])
@pytest.mark.parametrize("masked", [True, False])
def test_it_samples_token_by_token_as_the_slow_twin_does(spread: float, masked: bool, device: str) -> None:
    batch = len(SAMPLED)
    logits = torch.randn(batch, VOCAB, generator=torch.Generator().manual_seed(int(spread))) * spread + 10
    mask, rows = (random_mask(batch, VOCAB) if masked else None), params(SAMPLED, device)
    constrained = [index % 4 != 1 for index in range(batch)]
    wanted = masked_sampling_reference(logits, rows, mask=mask, constrained=torch.tensor(constrained), logprobs=True)
    check(run(logits, rows, mask, constrained), wanted)


def test_without_cuts_the_noise_and_the_choice_are_the_same(device: str) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5)).bfloat16()
    rows = params([{"temperature": 1.0}, {"temperature": 0.5}, {}], device)
    check(run(logits, rows, cuts=False), run(logits, rows, cuts=True))


def test_equal_logits_are_cut_by_id_so_that_top_k_keeps_exactly_k(device: str) -> None:
    logits = torch.zeros(8, 200)
    logits[:, 150:153] = 1.0
    rows = params([{"temperature": 1.0, "top_k": 5}] * 4 + [{"temperature": 1.0, "top_p": 0.05}] * 4, device)
    found = run(logits, rows)
    check(found, masked_sampling_reference(logits, rows, logprobs=True))
    assert set(found.tokens[:4].tolist()) <= {150, 151, 152, 0, 1}
    # exp(1) * 3 of 205.15: 0.0397; three tokens of exp(0) more reach 0.05
    assert set(found.tokens[4:].tolist()) <= {150, 151, 152, 0, 1, 2}


def test_one_allowed_token_is_always_taken(device: str) -> None:
    logits = torch.randn(32, 300)
    mask = torch.stack([mask_of([index * 9], 300) for index in range(32)])
    rows = params([{"temperature": 1.0, "top_p": 0.5 + index % 2 * 0.5, "seed": index} for index in range(32)], device)
    assert run(logits, rows, mask).tokens.tolist() == [index * 9 for index in range(32)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_ends_alone_and_says_why(temperature: float, bad: float, device: str) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3))
    mask = mask_of([4999, 40], VOCAB).repeat(5, 1)
    logits[0, 4500] = bad  # forbidden by the mask, and still told
    mask[1] = 0
    logits[2] = -math.inf
    logits[3, [40, 4999]] = -math.inf
    rows = params([{"temperature": temperature, "top_k": 3}] * 5, device)
    found = run(logits, rows, mask)
    assert found.status.tolist() == [NOT_FINITE, NOTHING_ALLOWED, NOT_FINITE, NOTHING_ALLOWED, OK]
    check(found, masked_sampling_reference(logits, rows, mask=mask, constrained=torch.ones(5), logprobs=True))
    assert run(logits, rows, mask, check_forbidden=False).status.tolist() == [OK, 2, 2, 2, OK]


def test_a_row_depends_on_itself_alone(device: str) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(8)) * 2
    mask = random_mask(4, VOCAB, seed=2)
    each = [{"temperature": 1.0, "top_p": 0.9, "seed": 11, "offset": 3}, {}, {"temperature": 5.0}]
    together = run(logits[:3], params(each, device), mask[:3])
    workspace = SamplingWorkspace(max_batch=4, vocab_size=VOCAB, device=device)
    others = run(logits[[3, 3, 2, 0]], params([{}, {"temperature": 1.0}, {}, each[0]], device), mask[[3, 3, 2, 0]])
    for index, row in enumerate(each):
        own = params([row | {"seed": (index + 1) << 33 | 5, "offset": 7 << 32 | index} | row], device)
        alone = run(logits[[index]], own, mask[[index]], workspace=workspace)
        assert alone.tokens[0] == together.tokens[index]
        assert alone.logprobs is not None
        assert together.logprobs is not None
        assert alone.logprobs[0] == together.logprobs[index]
    assert others.tokens[3] == together.tokens[0]


def chi_square(counts: Tensor, shares: Tensor) -> float:
    """How many standard deviations the statistic lies above its mean; ids of share 0 must not occur."""
    assert not counts[shares == 0].any()
    seen = shares > 0
    wanted = shares[seen] * counts.sum()
    statistic = ((counts[seen] - wanted) ** 2 / wanted).sum().item()
    freedom = int(seen.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def shares_of(logits: Tensor, row: dict[str, float]) -> Tensor:
    """The distribution the parameters mean, computed here once more and simply."""
    shares = torch.softmax(logits.double() / row["temperature"], 0)
    order = shares.argsort(descending=True, stable=True)
    order = order[shares[order] >= row.get("min_p", 0.0) * shares.max()]
    kept = order[: int(row.get("top_k", 0)) or None]
    before = shares[kept].cumsum(0) - shares[kept]
    kept = kept[before < row.get("top_p", 1.0) * shares[kept].sum()]
    cut = torch.zeros_like(shares)
    cut[kept] = shares[kept]
    return cut / cut.sum()


DISTRIBUTIONS: list[dict[str, float]] = [
    {"temperature": 1.0},
    {"temperature": 1.7, "top_k": 6},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.08},
    {"temperature": 1.5, "top_k": 10, "top_p": 0.8, "min_p": 0.15},  # in another order other tokens would be kept
]


@pytest.mark.parametrize("row", DISTRIBUTIONS, ids=str)
def test_the_slow_twin_has_the_distribution(row: dict[str, float]) -> None:
    draws, vocab = 3000, 14
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(2))
    rows = params([row | {"seed": 77 + index} for index in range(draws)], "cpu")
    found = masked_sampling_reference(logits.expand(draws, -1), rows)
    assert chi_square(found.tokens.bincount(minlength=vocab), shares_of(logits, row)) < 4


@pytest.mark.parametrize("row", DISTRIBUTIONS, ids=str)
def test_the_kernel_has_the_distribution(row: dict[str, float], device: str) -> None:
    draws, vocab = (20000 if device == "cuda" else 8), 14  # the interpreter takes 0.3 s for each
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(4))
    rows = params([row | {"seed": 5, "offset": index} for index in range(draws)], device)
    found = run(logits.repeat(draws, 1), rows)
    assert chi_square(found.tokens.bincount(minlength=vocab), shares_of(logits, row)) < 4


@pytest.mark.parametrize("row", DISTRIBUTIONS, ids=str)
def test_the_engine_draws_from_the_same_distribution(row: dict[str, float]) -> None:
    draws, vocab = 4000, 14
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(6))
    chosen = SamplingParams(**row)  # type: ignore[arg-type]
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(9))
    rows = [RowSampling(chosen, uniform) for uniform in uniforms.tolist()]
    nothing = torch.zeros(draws, 1, dtype=torch.int32)
    sampled = Sampler(vocab).sample(logits.repeat(draws, 1), nothing, [False] * draws, rows)
    assert chi_square(sampled.tokens.bincount(minlength=vocab), shares_of(logits, row)) < 4


def test_the_noise_is_gumbels_and_differs_by_token_seed_and_offset() -> None:
    noise = gumbel_noise(200_000, 1, 2)
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.03
    assert len(set(noise.tolist())) > 190_000
    assert not torch.equal(noise, gumbel_noise(200_000, 2, 2))
    assert not torch.equal(noise, gumbel_noise(200_000, 1, 3))


def test_philox_gives_the_published_numbers() -> None:
    # Random123's known answers for philox4x32-7: all bits zero.
    zero = [int(lane) for lane in philox(torch.zeros(1, dtype=torch.int64), 0, 0)]
    assert zero == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def test_kept_tokens_are_a_prefix_of_the_order() -> None:
    scaled = torch.tensor([0.0, -1.0, 0.0, -2.0])
    assert kept_tokens(scaled, 1, 1.0, 0.0).tolist() == [True, False, False, False]
    assert kept_tokens(scaled, 3, 0.5, 0.0).tolist() == [True, False, True, False]
    assert kept_tokens(scaled, 0, 1.0, 0.3).tolist() == [True, True, True, False]


def test_what_does_not_fit_is_refused(device: str) -> None:
    rows = params([{}], device)
    small = SamplingWorkspace(max_batch=1, vocab_size=64, device=device, cuts=False)
    with pytest.raises(ValueError, match="workspace"):
        run(torch.zeros(1, 65), rows, workspace=small)
    with pytest.raises(ValueError, match="cuts"):
        run(torch.zeros(1, 64), rows, workspace=small, cuts=True)
    with pytest.raises(ValueError, match="logits"):
        run(torch.zeros(1, 64, dtype=torch.float16), rows)
    with pytest.raises(ValueError, match="temperature"):
        run(torch.zeros(2, 64), rows)
    with pytest.raises(ValueError, match="mask"):
        run(torch.zeros(1, 64), rows, torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="mask_rows"):
        run(torch.zeros(1, 64), rows, torch.zeros(1, 2, dtype=torch.int32), mask_rows=torch.zeros(1))
