"""The GPU runners' host side on a GPU that is not there (fake_cuda.py): tokens, faults, captures, deadlines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from structgen.engine import Engine, LlamaModel, SamplingParams, Sequence, cuda_runner, device_masks
from structgen.engine.bench_lora import random_adapter
from structgen.engine.cuda_buckets import padded, rows_up_to
from structgen.engine.cuda_runner import CudaRunner
from structgen.engine.cuda_warm_up import LEAST_FREE, prepare
from structgen.engine.errors import StepTimeoutError
from structgen.engine.megakernel_runner import MegakernelRunner
from structgen.kernels.decoder import RUN_HEAD, RUN_LAYERS, KernelTimeout
from tests.engine.fake_cuda import FakeEvent, FakeGpu
from tests.engine.fakes import ENDS, Forcing, Lending, Quoted, is_quoted
from tests.engine.tiny import CONFIG, random_weights

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH = 12
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8},
    "cuts": {"temperature": 0.9, "top_k": 20, "top_p": 0.9},
    "penalties": {"frequency_penalty": 0.7, "repetition_penalty": 1.2, "logit_bias": {5: 1.0}},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    fake.install(monkeypatch)
    return fake


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return LlamaModel(CONFIG, random_weights(), "float32")


@pytest.fixture(params=[CudaRunner, MegakernelRunner], ids=["graphs", "megakernel"])
def make(request: pytest.FixtureRequest, gpu: FakeGpu, model: LlamaModel) -> Callable[..., CudaRunner]:
    def runner(**options: Any) -> CudaRunner:
        made: CudaRunner = request.param(model, **{"max_batch": BATCH, "max_context": 512, **options})
        return made

    return runner


@pytest.fixture
def megakernel(gpu: FakeGpu, model: LlamaModel) -> MegakernelRunner:
    return MegakernelRunner(model, max_batch=BATCH, max_context=512)


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def submit(
    engine: Engine, count: int, *, adapter: str | None = None, lends: bool = True, **params: Any
) -> list[Sequence]:
    """Prompts of many lengths; every other request under a grammar that forces its first token, and every fourth under
    one that lends its masks, if any does.
    """
    made = []
    for number in range(count):
        prompt = [(number * 31 + 7 * place) % 90 for place in range(1 + 17 * (number % 6))]
        chosen = SamplingParams(**{"max_tokens": 6 + number % 5, "seed": number, **params})
        matcher = (Lending(CONFIG.vocab_size) if lends and number % 4 == 1 else Quoted()) if number % 2 else None
        made.append(engine.submit(prompt, chosen, matcher, ENDS if number % 2 else frozenset(), adapter=adapter))
    return made


def texts(engine: Engine, count: int, **params: Any) -> list[list[int]]:
    sequences = submit(engine, count, **params)
    drain(engine)
    assert [sequence.error for sequence in sequences] == [None] * count
    assert all(is_quoted(sequence.output_ids) for sequence in sequences[1::2])
    return [sequence.output_ids for sequence in sequences]


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_same_at_any_depth_and_without_graphs(kind: str, make: Callable[..., CudaRunner]) -> None:
    params, count = KINDS[kind], 13
    expected = texts(Engine(make(graphs=False), max_batch=BATCH, depth=1), count, **params)
    for depth, warm in ((1, False), (2, False), (2, True)):
        runner = make()
        if warm:
            runner.warm_up(64)
        assert texts(Engine(runner, max_batch=BATCH, depth=depth), count, **params) == expected


@pytest.mark.parametrize("kind", ["greedy", "penalties", "logprobs"])
def test_greedy_tokens_are_the_cpus(kind: str, make: Callable[..., CudaRunner], model: LlamaModel) -> None:
    found, expected = Engine(make(), max_batch=BATCH), Engine(model, max_batch=BATCH, max_context=512)
    ours, theirs = submit(found, 9, **KINDS[kind]), submit(expected, 9, **KINDS[kind])
    drain(found)
    drain(expected)
    assert [each.output_ids for each in ours] == [each.output_ids for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert [told.token_id for told in one.logprobs] == [told.token_id for told in other.logprobs]
        assert [told.logprob for told in one.logprobs] == pytest.approx([told.logprob for told in other.logprobs])


def test_both_runners_pick_the_same_tokens(gpu: FakeGpu, model: LlamaModel) -> None:
    for params in KINDS.values():
        one, other = (
            texts(Engine(kind(model, max_batch=BATCH, max_context=512), max_batch=BATCH), 5, **params)
            for kind in (CudaRunner, MegakernelRunner)
        )
        assert one == other


def test_forced_tokens_run_as_rows_that_see_each_other(
    gpu: FakeGpu, megakernel: MegakernelRunner, model: LlamaModel
) -> None:
    """Up to eight rows of one sequence in a step of the kernel, beside rows of others; the texts are the CPU's."""

    def run(engine: Engine) -> list[list[int]]:
        held = [
            engine.submit([number + 1] * (number + 2), SamplingParams(max_tokens=40), Forcing(number), ENDS)
            for number in range(3)
        ]
        drain(engine)
        assert [each.error for each in held] == [None] * 3
        assert engine.metrics.tokens_forced > 40
        return [each.output_ids for each in held]

    assert run(Engine(megakernel, max_batch=BATCH)) == run(Engine(model, max_batch=BATCH, max_context=512))
    chunks = [decoder.batch for decoder in gpu.decoders if RUN_LAYERS in decoder.modes]
    assert {2, 4, 8} <= set(chunks)


# -- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("octets", [1, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_that_are_lent_give_the_tokens_of_masks_that_are_copied(
    kind: str, octets: int, make: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for all that are lent, and with room for a single one."""
    monkeypatch.setattr(device_masks, "RESIDENT_OCTETS", octets)
    params = KINDS[kind]
    expected = texts(Engine(make(), max_batch=BATCH, depth=1, jump_forward=False), 17, lends=False, **params)
    engine = Engine(make(), max_batch=BATCH, depth=2, jump_forward=False)
    for _ in range(2):
        assert texts(engine, 17, **params) == expected
    runner: Any = engine.runner
    residency = runner._slots._masks.residency
    residency.check_integrity()
    assert any(residency._masks) or isinstance(runner, MegakernelRunner)
    assert not residency._in_flight


@pytest.mark.parametrize("after", [3, 6, 9])
def test_a_step_that_failed_runs_again_under_the_masks_that_were_lent(
    after: int, make: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(Engine(make(), max_batch=BATCH, depth=2, jump_forward=False), 9)
    engine = Engine(make(), max_batch=BATCH, depth=2, jump_forward=False)
    runner: Any = engine.runner
    wait, waits = runner.wait, iter(range(1000))

    def fail_once(slot: Any, seconds: float) -> None:
        wait(slot, seconds)
        if next(waits) == after:
            raise RuntimeError("lost")

    monkeypatch.setattr(runner, "wait", fail_once)
    assert texts(engine, 9) == expected
    assert engine.metrics.rescued_steps == 1


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [1, 2, 5, 6])
def test_a_launch_that_gives_up_is_noticed_whatever_the_step_is_for(
    after: int, kind: str, depth: int, gpu: FakeGpu, model: LlamaModel
) -> None:
    """Layers and heads in turn, for tokens, masks, logits or cuts: the step runs again, and the tokens are right."""
    expected = texts(Engine(MegakernelRunner(model, max_batch=3, max_context=512), depth=1), 3, **KINDS[kind])
    runner = MegakernelRunner(model, max_batch=3, max_context=512)
    engine = Engine(runner, max_batch=3, depth=depth)
    gpu.gives_up = after
    assert texts(engine, 3, **KINDS[kind]) == expected
    resets = [stream for decoder in gpu.decoders for stream in decoder.resets]
    assert engine.metrics.rescued_steps == len(resets) == 1
    assert set(resets) == {runner._compute}, "between steps, which follow each other on this stream"


def test_a_launch_that_gives_up_is_noticed_in_a_step_that_samples_nothing(gpu: FakeGpu, model: LlamaModel) -> None:
    """Four prompt tokens a step: the first steps have layers alone."""
    prompt, params = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], SamplingParams(max_tokens=8)
    alone = Engine(model, max_batch=1, max_context=512)
    expected = alone.submit(prompt, params)
    drain(alone)
    runner = MegakernelRunner(model, max_batch=1, max_context=512)
    engine = Engine(runner, max_batch=1, prefill_tokens=3, depth=2)
    sequence = engine.submit(prompt, params)
    engine.step()
    assert engine.metrics.steps >= 1
    decoder = next(each for each in gpu.decoders if each.batch == 4)
    assert decoder.modes
    assert not any(mode & RUN_HEAD for mode in decoder.modes), "nothing has been sampled yet"
    decoder.error[0] = 1
    drain(engine)
    assert engine.metrics.rescued_steps >= 1
    assert len(decoder.resets) == 1
    assert sequence.output_ids == expected.output_ids


def test_rows_that_always_give_up_end_and_say_why(gpu: FakeGpu, megakernel: MegakernelRunner) -> None:
    for decoder in gpu.decoders:
        decoder.reset = lambda: None  # type: ignore[method-assign]
        decoder.error[0] = 1
    engine = Engine(megakernel, max_batch=BATCH)
    sequences = submit(engine, 3)
    drain(engine)
    assert all(KernelTimeout.__name__ in str(each.error) for each in sequences)


def test_what_the_copy_stream_reads_is_kept_until_it_is_through(make: Callable[..., CudaRunner]) -> None:
    runner = make()
    engine = Engine(runner, max_batch=BATCH, depth=2)
    engine.submit([3, 4], SamplingParams(max_tokens=5, logprobs=True))
    kept = []
    read = runner._read

    def spy(slot: Any) -> None:
        kept.append(runner._slots[slot.index].logprobs)
        read(slot)

    sample = runner.sample

    def sample_and_look(slot: Any) -> None:
        sample(slot)
        kept.append(runner._slots[slot.index].logprobs)

    runner._read, runner.sample = spy, sample_and_look  # type: ignore[method-assign]
    drain(engine)
    assert kept[0] is not None
    assert None in kept, "given back with the step"


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runner, "REST_SECONDS", 0.05)


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("which", ["_up", "_compute", "_down"])
def test_closing_a_device_that_hangs_ends_and_is_told(
    which: str, make: Callable[..., CudaRunner], caplog: pytest.LogCaptureFixture
) -> None:
    runner = make()
    engine = Engine(runner, max_batch=BATCH)
    texts(engine, 3)
    getattr(runner, which).hangs = True
    begin = time.perf_counter()
    engine.close()
    engine.close()
    assert time.perf_counter() - begin < 5
    assert [record.message for record in caplog.records if "hangs" in record.message][1:] == [], "told once"
    assert "hangs" in caplog.text
    assert runner._slots, "what the device may still read is not given back"


def test_closing_a_lost_device_ends_and_is_told(
    make: Callable[..., CudaRunner], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make()

    def lost(event: object) -> bool:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(FakeEvent, "query", lost)
    runner.close()
    assert "illegal memory access" in caplog.text


@pytest.mark.usefixtures("short_patience")
def test_a_step_or_an_adapter_that_waits_for_a_device_that_hangs_ends(make: Callable[..., CudaRunner]) -> None:
    runner = make()
    engine = Engine(runner, max_batch=BATCH, step_seconds=0.05)
    sequence = engine.submit([3, 4], SamplingParams(max_tokens=30))
    engine.step()
    runner._compute.hangs = runner._down.hangs = True  # type: ignore[attr-defined]
    with pytest.raises(StepTimeoutError):
        engine.load_adapter("late", random_adapter(CONFIG, 2, 0))
    assert engine.adapters == ()
    with pytest.raises(StepTimeoutError):
        drain(engine)
    assert sequence.finish_reason == "error"


# -- large steps ------------------------------------------------------------------------------------------------------


def test_steps_of_more_tokens_than_the_largest_graph_are_served(
    make: Callable[..., CudaRunner], model: LlamaModel
) -> None:
    """1,500 and 2,100 tokens in one step; then small ones again."""
    assert [padded(tokens) for tokens in (1, 9, 1024, 1025, 2048, 2049)] == [1, 16, 1024, 2048, 2048, 3072]
    found = Engine(make(max_context=1024), max_batch=BATCH, prefill_tokens=2100, share_prefixes=False)
    expected = Engine(model, max_batch=BATCH, max_context=1024, prefill_tokens=2100, share_prefixes=False)
    lengths = []
    for engine in (found, expected):
        sequences = [
            engine.submit([(7 * number + place) % 90 for place in range(700)], SamplingParams(max_tokens=4))
            for number in range(3)
        ]
        drain(engine)
        assert engine.metrics.failed == 0
        lengths.append([each.output_ids for each in sequences])
    assert lengths[0] == lengths[1]
    assert (0, padded(2100), False) in found.runner._buckets._made  # type: ignore[attr-defined]


# -- warm-up ----------------------------------------------------------------------------------------------------------


def test_after_the_warm_up_nothing_is_captured_while_serving(make: Callable[..., CudaRunner], gpu: FakeGpu) -> None:
    """Whatever the rows ask for, however many there are, under adapters and without, and when the table has grown."""
    runner = make(max_adapters=3, max_lora_rank=32)
    runner.warm_up(64)
    engine = Engine(runner, max_batch=BATCH, prefill_tokens=64 - BATCH)

    def serve(*adapters: str | None) -> None:
        for adapter in adapters:
            for count in (1, 3, 14):
                for params in KINDS.values():
                    submit(engine, count, adapter=adapter, **params)
                drain(engine)

    made = gpu.captures
    assert made > 0
    serve(None)
    assert gpu.captures == made
    for name, rank, moves in (("small", 2, True), ("same", 2, False), ("large", 20, True)):
        engine.load_adapter(name, random_adapter(CONFIG, rank, rank))
        assert (gpu.captures > made) is moves, f"{name}: graphs are made anew when the tensors have moved, and not else"
        made = gpu.captures
        serve(name, None)
        assert gpu.captures == made
    assert engine.metrics.failed == 0


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_adapters_may_be_loaded_at_any_time_and_change_nobody_elses_tokens(
    depth: int, warm: bool, make: Callable[..., CudaRunner], model: LlamaModel
) -> None:
    """Between any two ticks, in the middle of adapted and plain texts, each load growing the table."""
    adapters = [random_adapter(CONFIG, rank, rank, 0.5) for rank in (2, 5, 9, 14)]

    def run(engine: Engine) -> list[list[int]]:
        made = []
        for number, adapter in enumerate(adapters):
            engine.load_adapter(str(number), adapter)
            for name in (None, *map(str, range(number + 1))):
                prompt = [(number * 13 + 7 * place) % 90 for place in range(9 + number)]
                made.append(engine.submit(prompt, SamplingParams(max_tokens=9), adapter=name))
            for _ in range(5):
                engine.step()
        drain(engine)
        assert [each.error for each in made] == [None] * len(made)
        return [each.output_ids for each in made]

    runner = make()
    if warm:
        runner.warm_up(64)
    assert run(Engine(runner, max_batch=BATCH, depth=depth)) == run(Engine(model, max_batch=BATCH, max_context=512))


@pytest.mark.parametrize("pieces", [0, 2, 5])
@pytest.mark.parametrize("depth", [1, 2])
def test_graphs_made_between_two_ticks_leave_a_sampled_steps_tokens_alone(
    depth: int, pieces: int, make: Callable[..., CudaRunner]
) -> None:
    """A warm-up that ended early, then an adapter for which it goes on while a step is sampled and not committed."""

    def run(ticks: int | None) -> list[list[int]]:
        runner = make()
        runner._warm_rows = rows_up_to(64)
        for piece in islice(runner._preparations(runner._warm_rows, adapted=False), pieces):
            piece()
        engine = Engine(runner, max_batch=BATCH, depth=depth)
        sequences = submit(engine, 3, temperature=0.9, max_tokens=12)
        for tick in range(12):
            if tick == ticks:
                engine.load_adapter("late", random_adapter(CONFIG, 2, 0))
            engine.step()
        drain(engine)
        assert [each.error for each in sequences] == [None] * 3
        return [each.output_ids for each in sequences]

    expected = run(None)
    for ticks in (2, 5, 7):
        assert run(ticks) == expected


def test_which_graphs_a_warm_up_makes() -> None:
    assert rows_up_to(1) == (1,)
    assert rows_up_to(64) == (1, 2, 4, 8, 16, 32, 64)
    assert rows_up_to(320)[-1] == 512
    assert rows_up_to(5000)[-1] == 1024


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="structgen.engine"):
        yield caplog


def test_a_warm_up_ends_when_time_or_memory_is_up(gpu: FakeGpu, log_lines: pytest.LogCaptureFixture) -> None:
    device, done = torch.device("cpu"), list[int]()
    assert prepare((lambda: done.append(1) for _ in range(5)), device, "steps")
    assert "prepared steps in" in log_lines.text
    assert not prepare((lambda: time.sleep(0.02) for _ in range(50)), device, "slow steps", seconds=0.05)
    assert "slow steps took" in log_lines.text

    def without_memory() -> None:
        raise torch.OutOfMemoryError

    assert not prepare([lambda: None, without_memory, lambda: done.append(1)], device, "steps")
    assert "ran out of memory and ends after 1 pieces" in log_lines.text
    gpu.free = LEAST_FREE - 1
    assert not prepare([lambda: done.append(1)], device, "steps")
    assert "511 MB of memory left" in log_lines.text
    assert len(done) == 5


def test_a_runner_whose_warm_up_ended_early_serves_all_the_same(make: Callable[..., CudaRunner], gpu: FakeGpu) -> None:
    runner = make()
    gpu.free = 0
    runner.warm_up()
    assert gpu.captures == 0
    texts(Engine(runner, max_batch=BATCH), 9)
    assert gpu.captures > 0
