"""A step's columns against their slow twins: row by row."""

from __future__ import annotations

import random

import numpy as np
import torch

from structgen.engine import SamplingParams
from structgen.engine.adapters import Adapter
from structgen.engine.device_input import DeviceInput, packed_size
from structgen.engine.fused_sampler import FusedSampler, has_cuts, wants_more
from structgen.engine.penalties import TokenHistory
from structgen.engine.random_stream import RandomStream, bits_at
from structgen.engine.sampler import IGNORED
from structgen.engine.scheduler import PlanRow, StepPlan
from structgen.engine.sequence import Sequence
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


def test_decode_rows_are_staged_as_any_rows_are() -> None:
    rng = random.Random(2)
    staged = [DeviceInput(usual_rows=16, max_batch=BATCH, table_pages=4, pinned=False) for _ in range(2)]
    for _ in range(50):
        lanes = rng.sample(range(BATCH), rng.randrange(1, BATCH + 1))
        plan = StepPlan(tuple(made_row(rng, lane) for lane in lanes), ())
        packed = staged[0].stage(plan, lanes, 16, BATCH)
        staged[1]._stage_any(plan, lanes, 16, BATCH)
        assert torch.equal(packed, staged[1].packed[: packed_size(16, BATCH)])
        assert staged[0].sampled_at == staged[1].sampled_at
