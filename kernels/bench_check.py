"""Correctness of the decode step on the GPU against plain PyTorch in float32, with poisoned outputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from structgen.kernels.bench_micro import processors
from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS, USE_MASK, Decoder
from structgen.kernels.model_shape import LLAMA_1B, SMOLLM2_135M, ModelShape
from structgen.kernels.random_model import RandomBench
from structgen.kernels.reference import ReferenceStep
from structgen.kernels.schedule import Schedule

CONTEXTS = (1, 127, 128, 129, 255, 256, 257, 1000, 4096)
LIMIT = 1e-2
SMALL = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=1000)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    hidden: float  # relative error of the residual after the last layer
    logits: float
    cache: float  # of the keys and values of all layers
    same: int  # rows whose best token is the reference's
    rows: int
    chosen: bool  # the kernel chose the best of its own logits

    @property
    def good(self) -> bool:
        return worst(self.hidden, self.logits, self.cache) < LIMIT and self.chosen


def relative(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||; NaN if anything is NaN."""
    expected = expected.float()
    return float((found.float() - expected).norm() / expected.norm())


def worst(*errors: float) -> float:
    """The largest error. NaN counts as larger than any, where `max` may not see it."""
    return max(errors, key=lambda error: (isnan(error), error))


def compare(
    decoder: Decoder, bench: RandomBench, positions: list[int], tables_of: list[int] | None = None, seed: int = 0
) -> Comparison:
    """One step of random tokens at `positions`, in two launches (layers, head) that keep the logits."""
    rows, shape, model = len(positions), bench.shape, bench.model
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, shape.vocab_size, (rows,), generator=generator).tolist()
    step = bench.step(ids, positions, tables_of)
    cache = [layer.clone() for layer in model.cache]
    reference = ReferenceStep(shape, model.weights, model.cos, model.sin)
    tables = bench.tables[step.table_of.long()].long()
    residuals = reference.hidden(step.ids.long(), step.positions.long(), tables, cache)
    expected = reference.logits(residuals[-1])
    for buffer in decoder.scratch:
        buffer.fill_(float("nan"))
    decoder.tokens.fill_(-7)
    decoder.launch(step, RUN_LAYERS)
    decoder.launch(step, RUN_HEAD | KEEP_LOGITS)
    decoder.check()
    passes = int(decoder.state[0])
    found = decoder.residuals[2 + (passes * shape.layers - 1) % 2, :rows]
    return Comparison(
        hidden=relative(found, residuals[-1]),
        logits=relative(decoder.logits, expected),
        cache=worst(*(relative(own, other) for own, other in zip(model.cache, cache, strict=True))),
        same=int((decoder.logits.argmax(1) == expected.argmax(1)).sum()),
        rows=rows,
        chosen=bool((decoder.tokens == decoder.logits.argmax(1)).all()),
    )


def masked_choice(decoder: Decoder, bench: RandomBench, allowed: int) -> bool:
    """Under a mask of `allowed` random tokens a row the sparse and the dense head choose the best allowed token."""
    rows, vocab = decoder.schedule.batch, bench.shape.vocab_size
    step = bench.step(list(range(5, 5 + rows)), [100 + row for row in range(rows)])
    decoder.launch(step, RUN_LAYERS)
    decoder.launch(step, RUN_HEAD | KEEP_LOGITS)
    which = torch.stack([torch.randperm(vocab, device="cuda")[:allowed] for _ in range(rows)])
    bits = torch.zeros(rows, step.mask.shape[1] * 32, dtype=torch.int64, device="cuda").scatter_(1, which, 1)
    words = (bits.view(rows, -1, 32) << torch.arange(32, device="cuda")).sum(2)
    step.mask.copy_(words.to(torch.int32))
    expected = which.gather(1, decoder.logits.gather(1, which).argmax(1, keepdim=True))[:, 0]
    good = True
    for limit in (-1, 1 << 30):  # dense, sparse
        decoder.tokens.fill_(-7)
        decoder.launch(step, RUN_HEAD | USE_MASK, sparse_limit=limit)
        good &= bool((decoder.tokens == expected).all())
    decoder.check()
    return good


def run(steps: int) -> int:
    """The list of the README. -> 0 when all is well."""
    bad = 0
    for name, shape in (("Llama-3.2-1B", LLAMA_1B), ("SmolLM2-135M", SMOLLM2_135M)):
        schedules = [Schedule.build(shape, batch, processors()) for batch in (1, 3, 8)]
        bench = RandomBench.build(schedules[0], max(CONTEXTS))
        one, three, eight = (Decoder(schedule, bench.model) for schedule in schedules)
        for context in CONTEXTS:
            bad += _report(f"{name}, context {context}", compare(one, bench, [context - 1]))
        bad += _report(f"{name}, batch 3", compare(three, bench, [127, 4095, 7]))
        bad += _report(f"{name}, batch 8", compare(eight, bench, [127, 0, 126, 128, 999, 4095, 15, 16]))
        causal = compare(eight, bench, list(range(250, 258)), [3] * 8)
        bad += _report(f"{name}, eight causal rows of one sequence", causal)
        for allowed in (1, 64, 3000):
            good = masked_choice(one, bench, allowed) and masked_choice(eight, bench, allowed)
            print(f"{name}, {allowed} tokens allowed, sparse and dense head: {'ok' if good else 'WRONG'}")
            bad += not good
        bad += _many(name, eight, bench, steps)
    return int(bad > 0)


def run_small() -> int:
    schedule = Schedule.build(SMALL, 1, 8)
    bench = RandomBench.build(schedule, 300, rows=1)
    return _report("small model", compare(Decoder(schedule, bench.model), bench, [290]))


def _report(label: str, result: Comparison) -> int:
    print(
        f"{label}: hidden {result.hidden:.1e}, logits {result.logits:.1e}, cache {result.cache:.1e}, "
        f"best token {result.same}/{result.rows} {'ok' if result.good else 'WRONG'}"
    )
    return int(not result.good)


def _many(name: str, decoder: Decoder, bench: RandomBench, steps: int) -> int:
    """`steps` rows at random places, eight at a time; more than 99 % must have the reference's best token."""
    generator = torch.Generator().manual_seed(1)
    rounds = -(-steps // 8)
    same, largest = 0, 0.0
    for seed in range(rounds):
        positions = torch.randint(0, 2048, (8,), generator=generator).tolist()
        result = compare(decoder, bench, positions, seed=seed)
        same += result.same
        largest = worst(largest, result.logits)
    share = same / (8 * rounds)
    print(
        f"{name}, {8 * rounds} random rows: best token the same in {share:.2%}, largest error of logits {largest:.1e}"
    )
    return int(share <= 0.99 or not largest < LIMIT)
