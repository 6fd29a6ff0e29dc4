"""LoRA in the engine, against its slow twin: the adapter merged into the weights."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgen.engine import AdapterError, Engine, LlamaModel, ModelError, SamplingParams, Sequence, lora
from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.llama import Chunk, ForwardInput
from structgen.engine.lora import AdapterTable
from structgen.engine.lora_files import read_adapter
from structgen.engine.step import StepSlot

IDS = [3, 17, 80, 5, 5, 61, 0, 42, 7, 23, 88, 12]
WAYS = ["_grouped", "_gathered", "_masked"]
SAVED: dict[str, dict[str, Any]] = {
    "all matrices": {},
    "query and value only": {"targets": ["self_attn.q_proj", "self_attn.v_proj"]},
    "up and down, one layer": {"targets": ["mlp.up_proj", "mlp.down_proj"], "layers": [1]},
    "rank-stabilised": {"use_rslora": True},
    "ranks and alphas by module": {"ranks": {"k_proj": 2, "down_proj": 7}, "alphas": {"k_proj": 3.0, "o_proj": 16}},
    "rank 1": {"r": 1, "alpha": 0.5},
    "bfloat16 files": {"dtype": torch.bfloat16},
}


def table_of(model: LlamaModel, *adapters: Any, slots: int = 4, max_rank: int = 8) -> AdapterTable:
    table = AdapterTable(model.config, slots=slots, max_rank=max_rank, dtype=model.dtype)
    for slot, adapter in enumerate(adapters, 1):
        table.load(slot, read_adapter(adapter.folder, model.config))
    return table


def logits(model: LlamaModel, table: AdapterTable, texts: list[tuple[list[int], int]]) -> list[Tensor]:
    """Logits of several texts in one step, each under its slot."""
    count, longest = sum(len(ids) for ids, _ in texts), max(len(ids) for ids, _ in texts)
    model.reserve(longest)
    cache = KVCache(model.config, len(texts), longest, model.dtype)
    chunks, offset = [], 0
    for page, (ids, _) in enumerate(texts):
        own = PageTable(pages=torch.tensor([page]), rows=1, first=page)
        chunks.append(Chunk(offset=offset, count=len(ids), start=0, table=own))
        offset += len(ids)
    positions = torch.cat([torch.arange(len(ids)) for ids, _ in texts])
    pages = torch.cat([torch.full((len(ids),), page) for page, (ids, _) in enumerate(texts)])
    step = ForwardInput(
        ids=torch.tensor([token for ids, _ in texts for token in ids]),
        positions=positions,
        places=pages * longest + positions,
        decode_table=PageTable(pages=torch.zeros(0, dtype=torch.int64), rows=0),
        decode_lengths=(),
        chunks=chunks,
        adapters=torch.cat([torch.full((len(ids),), slot) for ids, slot in texts]),
    )
    assert step.adapters is not None
    assert step.adapters.shape == (count,)
    found = model.head(model.hidden(step, cache, table))
    return [found[chunk.offset : chunk.offset + chunk.count] for chunk in chunks]


# -- the sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("saved", SAVED)
def test_logits_equal_those_of_the_merged_weights(
    saved: str, way: str, tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = save_adapter("one", **SAVED[saved])
    table = table_of(tiny.plain, adapter)
    monkeypatch.setattr(table, "bind", getattr(table, way))
    (found,) = logits(tiny.plain, table, [(IDS, 1)])
    expected = tiny.merged(adapter).logits(IDS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert (expected - tiny.plain.logits(IDS)).abs().max() > 0.1, "the adapter must matter"


def test_large_ranks_take_each_part_by_itself(
    tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "SPLIT_ROWS", 1)
    adapters = [save_adapter("a", ranks={"k_proj": 2}), save_adapter("b", targets=["self_attn.v_proj", "mlp.up_proj"])]
    for precision, tolerance in (("float32", 1e-3), ("bfloat16", 0.5)):
        model = tiny.merged(None, precision)
        texts = [(IDS, 1), (IDS, 2), (IDS, 0), (IDS * 2, 2)]
        for found, (ids, slot) in zip(logits(model, table_of(model, *adapters), texts), texts, strict=True):
            expected = tiny.merged(adapters[slot - 1] if slot else None).logits(ids)
            torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("way", WAYS)
def test_one_step_mixes_adapters_and_none(
    way: str, tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slot 3 is loaded twice, with fewer rows the second time; slot 4 holds an adapter nobody uses."""
    adapters = [save_adapter(name, r=r) for name, r in (("a", 3), ("b", 8), ("c", 1), ("unused", 2))]
    table = table_of(tiny.plain, adapters[0], adapters[1], adapters[1], adapters[3])
    table.load(3, read_adapter(adapters[2].folder, tiny.config))
    monkeypatch.setattr(table, "bind", getattr(table, way))
    slots = [2, 0, 1, 3, 2]
    texts = [(IDS[start:], slot) for start, slot in enumerate(slots)]
    for found, (ids, slot) in zip(logits(tiny.plain, table, texts), texts, strict=True):
        expected = tiny.merged(adapters[slot - 1] if slot else None).logits(ids)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precision_stays_near(precision: Any, tiny: Any, save_adapter: Callable[..., Any]) -> None:
    """As near to float32 as the model without an adapter comes (the same relative error of all logits together)."""
    adapter = save_adapter("one")
    model = tiny.merged(None, precision)
    table = table_of(model, adapter)
    for ids in (IDS, IDS * 4):  # int8 has a path for few tokens and one for many
        (found,) = logits(model, table, [(ids, 1)])
        expected = tiny.merged(adapter).logits(ids)
        error = (found.float() - expected).norm() / expected.norm()
        assert error < 0.1


@pytest.mark.parametrize("way", WAYS)
def test_an_overflow_stays_with_its_own_tokens(
    way: str, tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tiny.plain, save_adapter("huge", size=1e25), save_adapter("good"))
    monkeypatch.setattr(table, "bind", getattr(table, way))
    bad, good, plain = logits(tiny.plain, table, [(IDS, 1), (IDS, 2), (IDS, 0)])
    assert not torch.isfinite(bad).any()
    torch.testing.assert_close(plain, tiny.plain.logits(IDS), rtol=1e-4, atol=1e-4)
    assert torch.isfinite(good).all()


# -- requests ---------------------------------------------------------------------------------------------------------


@contextmanager
def spied(engine: Engine) -> Iterator[list[tuple[int, list[int] | None]]]:
    """Of each step launched meanwhile: how many prompt tokens it runs, and its tokens' slots."""
    seen: list[tuple[int, list[int] | None]] = []
    launch = engine.runner.launch

    def watch(slot: StepSlot) -> None:
        launch(slot)
        slots = slot.input.forward.adapters
        seen.append((sum(row.count for row in slot.plan.chunks), None if slots is None else slots.tolist()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.runner, "launch", watch)
        yield seen


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def test_requests_with_different_adapters_share_steps(depth: int, tiny: Any, save_adapter: Callable[..., Any]) -> None:
    adapters = {"a": save_adapter("a"), "b": save_adapter("b", r=2), None: None}
    engine = Engine(tiny.plain, max_batch=4, depth=depth)
    engine.load_adapter("a", adapters["a"].folder)
    engine.load_adapter("b", adapters["b"].folder)
    assert engine.adapters == ("a", "b")
    requests = [(IDS[number:] * 3, [None, "a", "b"][number % 3]) for number in range(8)]
    sequences = [engine.submit(prompt, SamplingParams(max_tokens=6), adapter=name) for prompt, name in requests]
    drain(engine)
    for sequence, (prompt, name) in zip(sequences, requests, strict=True):
        assert sequence.output_ids == tiny.greedy(prompt, 6, adapters[name])


def test_steps_without_an_adapter_carry_no_slots(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    engine = Engine(tiny.plain)
    engine.load_adapter("a", save_adapter("a").folder)
    with spied(engine) as seen:
        engine.submit(IDS, SamplingParams(max_tokens=3))
        drain(engine)
        assert [slots for _, slots in seen] == [None] * len(seen)
        seen.clear()
        engine.submit(IDS, SamplingParams(max_tokens=3), adapter="a")
        drain(engine)
        assert all(slots and set(slots) == {1} for _, slots in seen)


def test_an_unknown_name_is_refused_before_any_work(tiny: Any) -> None:
    engine = Engine(tiny.plain)
    with pytest.raises(AdapterError, match="no adapter named 'x'"):
        engine.submit(IDS, SamplingParams(), adapter="x")
    assert not engine.has_work
    engine.check_integrity()


def test_a_refused_request_holds_nothing(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    engine = Engine(tiny.plain, max_adapters=1)
    engine.load_adapter("a", save_adapter("a").folder)
    with pytest.raises(ValueError, match="prompt_ids"):
        engine.submit([1000], SamplingParams(), adapter="a")
    engine.unload_adapter("a")
    engine.load_adapter("b", save_adapter("b").folder)
    engine.check_integrity()


def test_a_prefix_is_shared_under_the_same_adapter_only(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    """Also not with the same name loaded again: its files may have changed."""
    adapters = {"a": save_adapter("a"), "b": save_adapter("b"), None: None}
    engine = Engine(tiny.plain)
    engine.load_adapter("a", adapters["a"].folder)
    engine.load_adapter("b", adapters["b"].folder)
    prompt = (IDS * 10)[:100]

    def pages_reused(name: str | None) -> int:
        with spied(engine) as seen:
            sequence = engine.submit(prompt, SamplingParams(max_tokens=4), adapter=name)
            drain(engine)
        assert sequence.output_ids == tiny.greedy(prompt, 4, adapters[name])
        return (len(prompt) - sum(prefilled for prefilled, _ in seen)) // 16

    assert [pages_reused(name) for name in ("a", "b", None)] == [0, 0, 0]
    assert [pages_reused(name) for name in ("a", "b", None)] == [6, 6, 6]
    engine.unload_adapter("a")
    engine.load_adapter("a", adapters["a"].folder)
    assert [pages_reused(name) for name in ("a", "a", "b")] == [0, 6, 6]


@pytest.mark.parametrize("then", ["cancel", "finish"])
@pytest.mark.parametrize("steps", range(7))
def test_unload_at_any_stage(steps: int, then: str, depth: int, tiny: Any, save_adapter: Callable[..., Any]) -> None:
    """0 steps: waiting. Then prefill chunks in flight, decode in flight, finished."""
    adapters = {name: save_adapter(name) for name in "abc"}
    engine = Engine(tiny.plain, max_batch=2, max_adapters=2, depth=depth)
    engine.load_adapter("a", adapters["a"].folder)
    engine.load_adapter("b", adapters["b"].folder)
    other = engine.submit(IDS, SamplingParams(max_tokens=12), adapter="b")
    sequence = engine.submit((IDS * 30)[:300], SamplingParams(max_tokens=4), adapter="a")
    for _ in range(steps):
        engine.step()
    was_finished, held = sequence.finished, sequence.adapter
    engine.unload_adapter("a")
    assert held is not None
    assert engine.adapters == ("b",)
    with pytest.raises(AdapterError, match="no adapter named 'a'"):
        engine.submit(IDS, SamplingParams(), adapter="a")
    if then == "cancel":
        engine.cancel(sequence)
    engine.check_integrity()
    if held.refs:
        with pytest.raises(AdapterError, match="1 of them until"):
            engine.load_adapter("c", adapters["c"].folder)
    while held.refs:
        engine.step()
        engine.check_integrity()
    assert sequence.finished
    assert sequence.pages == []
    if then == "finish" or was_finished:
        assert sequence.output_ids == tiny.greedy((IDS * 30)[:300], 4, adapters["a"])
    engine.load_adapter("c", adapters["c"].folder)
    last = engine.submit(IDS, SamplingParams(max_tokens=5), adapter="c")
    drain(engine)
    assert last.output_ids == tiny.greedy(IDS, 5, adapters["c"])
    assert other.output_ids == tiny.greedy(IDS, 12, adapters["b"])


def test_a_name_loaded_again_while_the_old_one_runs(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    old, new = save_adapter("old"), save_adapter("new")
    engine = Engine(tiny.plain)
    engine.load_adapter("x", old.folder)
    first = engine.submit(IDS, SamplingParams(max_tokens=8), adapter="x")
    engine.step()
    engine.unload_adapter("x")
    engine.load_adapter("x", new.folder)
    second = engine.submit(IDS, SamplingParams(max_tokens=8), adapter="x")
    drain(engine)
    assert first.output_ids == tiny.greedy(IDS, 8, old)
    assert second.output_ids == tiny.greedy(IDS, 8, new)


def test_an_adapter_that_overflows_ends_only_its_own_requests(
    depth: int, tiny: Any, save_adapter: Callable[..., Any]
) -> None:
    good = save_adapter("good")
    engine = Engine(tiny.plain, max_batch=4, depth=depth)
    engine.load_adapter("huge", save_adapter("huge", size=1e25).folder)
    engine.load_adapter("good", good.folder)
    bad = engine.submit(IDS, SamplingParams(max_tokens=6), adapter="huge")
    fine = [engine.submit(IDS, SamplingParams(max_tokens=6), adapter=name) for name in ("good", None)]
    drain(engine)
    assert bad.finish_reason == "error"
    assert "finite" in str(bad.error)
    assert [each.output_ids for each in fine] == [tiny.greedy(IDS, 6, good), tiny.greedy(IDS, 6)]
    later = engine.submit(IDS, SamplingParams(max_tokens=6))
    drain(engine)
    assert later.output_ids == tiny.greedy(IDS, 6)


def test_a_table_that_fits_in_no_memory_is_told(
    tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters that are loaded go on, and a smaller one still fits."""
    made = lora._zeros

    def zeros(shape: tuple[int, ...], *more: Any) -> Tensor:
        if shape[1] > 16:
            raise MemoryError
        return made(shape, *more)

    monkeypatch.setattr(lora, "_zeros", zeros)
    small, wide, narrow = save_adapter("small", r=4), save_adapter("wide", r=9), save_adapter("narrow", r=2)
    engine = Engine(tiny.plain, max_adapters=2)
    engine.load_adapter("small", small.folder)
    with pytest.raises(AdapterError, match="no memory") as caught:
        engine.load_adapter("wide", wide.folder)
    assert "max_adapters" in caught.value.hint
    engine.check_integrity()
    assert engine.adapters == ("small",)
    engine.load_adapter("narrow", narrow.folder)
    requests = [engine.submit(IDS, SamplingParams(max_tokens=5), adapter=name) for name in ("small", "narrow", None)]
    drain(engine)
    assert [each.output_ids for each in requests] == [tiny.greedy(IDS, 5, of) for of in (small, narrow, None)]


@pytest.mark.parametrize("way", WAYS)
def test_a_table_grows_to_what_its_adapters_need_and_keeps_those_it_has(
    way: str, tiny: Any, save_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots 1 to 4 are loaded one after the other, the ranks rising and falling; every slot is looked at each time."""
    monkeypatch.setattr(AdapterTable, "bind", getattr(AdapterTable, way))
    kinds: list[dict[str, Any]] = [
        {"r": 2, "targets": ["self_attn.q_proj"], "layers": [1]},
        {"r": 5},
        {"r": 3, "targets": ["mlp.up_proj"]},
        {"r": 40, "targets": ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"]},
    ]
    table = table_of(tiny.plain, max_rank=64)
    sizes, loaded = [], []
    for slot, options in enumerate(kinds, 1):
        loaded.append(save_adapter(f"number {slot}", **options))
        table.load(slot, read_adapter(loaded[-1].folder, tiny.config))
        sizes.append([[stack.rows for stack in stacks] for stacks in table._stacks.values()])
        texts = [(IDS, number) for number in range(slot + 1)]
        for found, adapter in zip(logits(tiny.plain, table, texts), [None, *loaded], strict=True):
            torch.testing.assert_close(found, tiny.merged(adapter).logits(IDS), atol=2e-4, rtol=2e-4)
    assert sizes == [
        [[0, 8], [0, 0], [0, 0], [0, 0]],
        [[16, 16], [8, 8], [16, 16], [8, 8]],
        [[16, 16], [8, 8], [16, 16], [8, 8]],
        [[120, 120], [8, 8], [16, 16], [8, 8]],
    ]
    moves = table.moves
    for slot, adapter in enumerate(loaded, 1):
        table.load(slot, read_adapter(adapter.folder, tiny.config))
    assert table.moves == moves, "what fits moves nothing"


def test_what_cannot_be_loaded_leaves_the_engine_as_it_was(
    tiny: Any, save_adapter: Callable[..., Any], tmp_path: Path
) -> None:
    engine = Engine(tiny.plain, max_adapters=1, max_lora_rank=4)
    with pytest.raises(ModelError, match="rank is 8; at most 4"):
        engine.load_adapter("a", save_adapter("wide", r=8).folder)
    with pytest.raises(ModelError, match="no adapter_config"):
        engine.load_adapter("a", tmp_path / "nothing")
    with pytest.raises(ModelError, match="not finite"):
        engine.load_adapter("a", save_adapter("nan", size=float("nan")).folder)
    assert engine.adapters == ()
    engine.check_integrity()
    engine.load_adapter("a", save_adapter("good").folder)


def test_memory_is_flat_over_many_loads(tiny: Any, save_adapter: Callable[..., Any]) -> None:
    adapters = [save_adapter(name, r=8) for name in "abc"]
    engine = Engine(tiny.plain, max_adapters=2)

    def cycle(number: int) -> None:
        engine.load_adapter("x", adapters[number % 3].folder)
        engine.submit(IDS, SamplingParams(max_tokens=2), adapter="x")
        engine.step()
        engine.unload_adapter("x")
        drain(engine)

    for number in range(20):
        cycle(number)
    gc.collect()
    before = resident_bytes()
    tensors = living_tensors()
    for number in range(200):
        cycle(number)
    gc.collect()
    assert living_tensors() <= tensors
    assert resident_bytes() - before < 8 << 20


def living_tensors() -> int:
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        pytest.skip("this system does not tell a process's memory in /proc")


@pytest.mark.parametrize("seed", range(2))
def test_random_traffic_with_loads_and_unloads(
    seed: int, depth: int, tiny: Any, save_adapter: Callable[..., Any]
) -> None:
    """Names come and go, requests are cancelled; each text is its own adapter's, whatever was loaded since."""
    rng = random.Random(seed)
    files = [save_adapter(f"file {number}", r=rng.randrange(1, 9)) for number in range(5)]
    engine = Engine(tiny.plain, max_batch=3, max_adapters=3, depth=depth)
    current: dict[str, Any] = {}
    requests: list[tuple[Sequence, Any]] = []
    ticks = 0
    while ticks < 120 or engine.has_work:
        ticks += 1
        if rng.random() < 0.15 and ticks < 120:
            name = rng.choice("xy")
            try:
                if name in current:
                    engine.unload_adapter(name)
                    del current[name]
                else:
                    file = rng.choice(files)
                    engine.load_adapter(name, file.folder)
                    current[name] = file
            except AdapterError:
                assert len(engine.adapters) < 3, "two names; the third slot is one that is still held"
        if rng.random() < 0.25 and ticks < 120:
            wanted = rng.choice([None, *current])
            prompt = (IDS * 4)[: rng.choice([1, 20, 40])]
            params = SamplingParams(max_tokens=rng.randrange(1, 8))
            requests.append((engine.submit(prompt, params, adapter=wanted), current[wanted] if wanted else None))
        if rng.random() < 0.05 and requests:
            engine.cancel(rng.choice(requests)[0])
        engine.step()
        engine.check_integrity()
    for sequence, file in requests:
        assert sequence.output_ids == tiny.greedy(sequence.prompt_ids, len(sequence.output_ids), file)
