"""A step of single-token rows equals the same step as decode rows and chunks: on the CPU, with the plain attention."""

from __future__ import annotations

import torch

from structgen.engine import SamplingParams, Sequence
from structgen.engine.adapters import Adapter
from structgen.engine.bench_lora import random_adapter
from structgen.engine.cuda_buckets import Bucket
from structgen.engine.cuda_runner import CudaRunner
from structgen.engine.device_input import DeviceInput, LaneTables, unpack
from structgen.engine.host_input import HostInput
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import AdapterTable
from structgen.engine.paged_rows import PagedRows
from structgen.engine.runner import PAGE_SIZE
from structgen.engine.scheduler import PlanRow, StepPlan
from tests.engine.tiny import CONFIG, random_weights

PAGE, CONTEXT, BATCH = 4, 48, 3


def sequence(number: int, tokens: int, pages: list[int]) -> Sequence:
    made = Sequence(
        number,
        [(7 * number + 3 * each) % CONFIG.vocab_size for each in range(tokens)],
        SamplingParams(),
        None,
        frozenset(),
    )
    made.pages, made.lane = pages, number
    return made


def test_rows_of_tokens_equal_decode_rows_and_chunks() -> None:
    torch.manual_seed(0)
    model = LlamaModel(CONFIG, random_weights(), "float32")
    model.reserve(CONTEXT)
    one, two, three = sequence(0, 9, [5, 0, 3]), sequence(1, 6, [1, 2]), sequence(2, 21, [4, 9, 8, 7, 6, 11])
    steps = [
        StepPlan((), (PlanRow(one, 0, 8, False), PlanRow(two, 0, 5, False), PlanRow(three, 0, 13, False))),
        StepPlan((PlanRow(one, 8, 1, True), PlanRow(two, 5, 1, True)), (PlanRow(three, 13, 8, True),)),
    ]
    assert torch.allclose(as_host(model, steps), as_rows(model, steps), atol=1e-5)


def test_the_gpu_runner_hands_each_row_its_adapter() -> None:
    """Its forward pass without its streams and graphs: what it computes for one step of rows with different slots."""
    model = LlamaModel(CONFIG, random_weights(), "float32")
    model.reserve(CONTEXT)
    table = AdapterTable(CONFIG, slots=2, max_rank=3, dtype=torch.float32)
    for slot in (1, 2):
        table.load(slot, random_adapter(CONFIG, 3, slot, 0.3))
    texts = [sequence(0, 3, [5]), sequence(1, 3, [1]), sequence(2, 3, [4])]
    for slot, each in enumerate(texts):
        each.adapter = Adapter(str(slot), slot, b"") if slot else None
    plan = StepPlan((), tuple(PlanRow(each, 0, 3, True) for each in texts))
    staged = DeviceInput(usual_rows=16, max_batch=BATCH, table_pages=CONTEXT // PAGE_SIZE, pinned=False)
    lane_tables = LaneTables(BATCH, CONTEXT // PAGE_SIZE, scratch=12)
    lane_tables.update(plan)
    runner = object.__new__(CudaRunner)
    runner.model, runner._adapters = model, table
    runner.cache = KVCache(CONFIG, 13, PAGE_SIZE, torch.float32)
    runner.last_tokens = torch.zeros(BATCH + 1, dtype=torch.int64)
    tables = lane_tables.copy_to(staged.tables)
    packed = staged.stage(plan, [0, 1, 2], 16, BATCH)
    for adapted in (True, False):
        logits = torch.zeros(BATCH, CONFIG.vocab_size)
        bucket = Bucket(packed, 16, BATCH, unpack(packed, 16, BATCH), tables, logits, None, adapted, wants_graph=False)
        runner._compute_logits(bucket)
        for row, each in enumerate(texts):
            alone = under_adapter(model, table, each.prompt_ids, row if adapted else 0)
            torch.testing.assert_close(bucket.logits[row], alone, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(alone, under_adapter(model, table, texts[2].prompt_ids, 2), atol=1e-2)


def under_adapter(model: LlamaModel, table: AdapterTable, ids: list[int], slot: int) -> torch.Tensor:
    """Logits of a text's last token, run as one prefill chunk."""
    made = sequence(0, 0, [0])
    made.prompt_ids, made.prompt_length = ids, len(ids)
    made.adapter = Adapter("alone", slot, b"") if slot else None
    laid_out = HostInput(step_tokens=32, max_batch=1, table_pages=1, page_size=PAGE_SIZE)
    laid_out.stage(StepPlan((), (PlanRow(made, 0, len(ids), True),)))
    cache = KVCache(CONFIG, 1, PAGE_SIZE, torch.float32)
    return model.head(model.hidden(laid_out.forward, cache, table))[-1]


def as_host(model: LlamaModel, steps: list[StepPlan]) -> torch.Tensor:
    cache = KVCache(CONFIG, 12, PAGE, torch.float32)
    laid_out = HostInput(step_tokens=32, max_batch=BATCH, table_pages=CONTEXT // PAGE, page_size=PAGE)
    for plan in steps:
        laid_out.stage(plan)
        hidden = model.hidden(laid_out.forward, cache)
    return model.head(hidden[laid_out.sampled_at])


def as_rows(model: LlamaModel, steps: list[StepPlan]) -> torch.Tensor:
    cache = KVCache(CONFIG, 13, PAGE, torch.float32)
    staged = DeviceInput(usual_rows=32, max_batch=BATCH, table_pages=CONTEXT // PAGE, pinned=False)
    lane_tables = LaneTables(BATCH, CONTEXT // PAGE, scratch=12)
    for plan in steps:
        lane_tables.update(plan)
        lanes = [row.sequence.lane for row in plan.sampling_rows]
        rows = unpack(staged.stage(plan, lanes, 32, BATCH), 32, BATCH)
        tables = lane_tables.copy_to(staged.tables)
        step = PagedRows.of(rows.ids.long(), rows.positions, rows.lanes, tables, PAGE)
        hidden = model.hidden_rows(step, cache)
    assert rows.targets.tolist() == [0, 1, 2]
    return model.head(hidden[rows.sampled_at.long()])


def test_a_lane_table_is_sent_again_only_when_it_has_changed() -> None:
    tables = LaneTables(2, 4, scratch=99)
    target = torch.zeros(3, 4, dtype=torch.int32)
    one = sequence(1, 5, [3, 4])
    plan = StepPlan((PlanRow(one, 4, 1, True),), ())
    tables.update(plan)
    assert tables.copy_to(target)[1].tolist() == [3, 4, 99, 99]
    tables.update(plan)
    assert tables.version == 1
    one.pages += [7]
    tables.update(plan)
    assert tables.version == 2
    assert tables.copy_to(target)[1].tolist() == [3, 4, 7, 99]
    one.pages = [8, 4, 7]  # preempted and admitted again
    tables.update(plan)
    assert tables.copy_to(target)[1].tolist() == [8, 4, 7, 99]
