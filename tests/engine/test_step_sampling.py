"""A step's columns against their slow twins: row by row."""

from __future__ import annotations

import random

import numpy as np
import torch

from structgen.engine import SamplingParams
from structgen.engine.adapters import Adapter
from structgen.engine.device_input import FIELDS, DeviceInput
from structgen.engine.fused_sampler import FusedSampler, has_cuts, wants_more
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream, bits_at
from structgen.engine.sampler import IGNORED
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Sequence
from structgen.engine.step import row_tokens
from structgen.engine.step_sampling import NOBODY, SamplingSource, StepSampling

VOCAB, BATCH = 70, 12
ASKED = [
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=3),
    SamplingParams(temperature=1e-40, top_p=1e-40, seed=-1),
    SamplingParams(temperature=1.0, top_k=1, seed=2**64 - 1),
    SamplingParams(temperature=1.0, top_k=900, min_p=0.2, seed=5, stream=4),
    SamplingParams(frequency_penalty=0.5),
    SamplingParams(logprobs=True),
]


def source(params: SamplingParams) -> SamplingSource:
    history = TokenHistory(params, [1]) if params.edits_logits else None
    return SamplingSource(params, RandomStream(params.seed, params.stream), history)


def test_many_streams_are_read_as_one_is() -> None:
    rng = random.Random(0)
    streams = [RandomStream(rng.choice((None, number, -number, 2**63 + number)), number % 3) for number in range(50)]
    positions = [rng.choice((0, 1, 159, rng.randrange(2**20))) for _ in streams]
    bits = bits_at(np.array([stream.start for stream in streams], dtype=np.uint64), positions)
    assert [one * 2.0**-53 for one in bits.tolist()] == [
        stream.at(position) for stream, position in zip(streams, positions, strict=True)
    ]


def test_a_step_as_a_sequence_has_its_rows() -> None:
    sources = [source(params) for params in ASKED] + [NOBODY]
    rows = StepSampling(sources, [*range(len(ASKED)), 0])
    assert len(rows) == len(list(rows)) == len(ASKED) + 1
    assert [row.params for row in rows[:-1]] == ASKED
    assert rows[1].uniform == RandomStream(3).at(1)
    assert rows[3].uniform == 0, "greedy rows draw nothing"
    assert (rows[-1].params, rows[-1].history) == (IGNORED.params, None)
    for some in ([0, 1], [4], [5], [6], [2], [3]):
        chosen = StepSampling([sources[row] for row in some], [7] * len(some))
        assert has_cuts(chosen) == has_cuts(list(chosen))
        assert wants_more(chosen) == wants_more(list(chosen))


def test_the_sampler_writes_columns_as_it_writes_rows() -> None:
    """Steps with the rows of the one before, with others, and with rows that nobody waits for."""
    rng = random.Random(1)
    sampler = FusedSampler(VOCAB, "cpu", max_batch=BATCH)
    columns, rows = sampler.stage(), sampler.stage()
    sources = [source(rng.choice(ASKED)) for _ in range(BATCH)]
    for step in range(60):
        if rng.random() < 0.3:
            sources = [rng.choice((each, source(rng.choice(ASKED)), NOBODY)) for each in sources]
        count = rng.randrange(1, BATCH + 1) if rng.random() < 0.3 else BATCH
        sampling = StepSampling(sources[:count], [step + row for row in range(count)])
        constrained = [rng.random() < 0.5 for _ in range(count)]
        sampler.fill(columns, constrained, sampling)
        sampler.fill(rows, constrained, list(sampling))
        for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
            one, other = (getattr(staged.rows, name)[:count] for staged in (columns, rows))
            assert torch.equal(one, other), name
        assert torch.equal(columns.constrained, rows.constrained)


def made_row(rng: random.Random, lane: int) -> PlanRow:
    """As the scheduler leaves it: at its last token, which is known or sampled by the step before."""
    sequence = Sequence(lane, range(1, rng.randrange(2, 6)), SamplingParams(), None, frozenset())
    sequence.lane = lane
    for _ in range(rng.randrange(4)):
        sequence.append(rng.randrange(90))
    if rng.random() < 0.2:
        sequence.adapter = Adapter("some", rng.randrange(1, 4), b"")
    in_flight = rng.random() < 0.6
    sequence.unknown = in_flight + 1
    return PlanRow(sequence, sequence.total - (not in_flight), 1, True)


def staged_row_by_row(plan: StepPlan, rows: int, sampled: int) -> list[int]:
    """The slow twin of DeviceInput.stage."""
    packed = [[0] * rows, [0] * rows, [BATCH] * rows, [0] * rows, [-1] * rows, [0] * sampled, [BATCH] * sampled]
    ids, positions, tables, adapters, outputs, sampled_at, targets = packed
    at = sampling = 0
    for row in plan.rows:
        for place, token in enumerate(row_tokens(row)):
            ids[at], positions[at], tables[at] = token, row.start + place, row.sequence.lane
            adapters[at] = row.sequence.adapter_slot
            at += 1
        if row.samples:
            outputs[at - 1] = targets[sampling] = row.sequence.lane
            sampled_at[sampling] = at - 1
            sampling += 1
    return [number for column in packed for number in column]


def test_a_step_is_staged_in_columns_as_row_by_row() -> None:
    """Decode rows, chunks that sample and chunks that do not, in any number; what the step before wrote is gone."""
    rng = random.Random(2)
    staged = DeviceInput(usual_rows=4, max_batch=BATCH, table_pages=4, pinned=False)
    for _ in range(100):
        lanes = rng.sample(range(BATCH), rng.randrange(1, BATCH + 1))
        made = [made_row(rng, lane) for lane in lanes]
        split = rng.choice((0, len(made), rng.randrange(len(made) + 1)))
        chunks = [PlanRow(row.sequence, 0, row.sequence.total, rng.random() < 0.5) for row in made[split:]]
        plan = StepPlan(tuple(made[:split]), tuple(chunks))
        rows = plan.tokens + rng.randrange(5)
        targets = [row.sequence.lane for row in plan.sampling_rows]
        packed = staged.stage(plan, targets, rows, BATCH)
        assert packed.tolist() == staged_row_by_row(plan, rows, BATCH)
        assert staged.sampled_at == packed.tolist()[FIELDS * rows :][: len(targets)]
