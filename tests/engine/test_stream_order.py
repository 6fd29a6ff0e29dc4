"""What the GPU runners ask of several streams is ordered by events: watched on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from structgen.engine import Engine, LlamaModel, SamplingParams, device_masks
from structgen.engine.bench_lora import random_adapter
from structgen.engine.cuda_graphs import GraphMaker
from structgen.engine.cuda_runner import CudaRunner
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput, LaneTables
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.fused_sampler import FusedSampler
from structgen.engine.made_up_weights import MadeUpWeights
from structgen.engine.megakernel_runner import MegakernelRunner
from structgen.engine.model_config import ModelConfig
from tests.engine.fake_cuda import FakeGpu, FakeStream
from tests.engine.fakes import ENDS, Lending, Quoted, is_quoted

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = ModelConfig(vocab_size=40, hidden=16, intermediate=16, layers=1, heads=2, kv_heads=1, head_dim=8, context=256)
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 0.9, "top_k": 20},
    {"frequency_penalty": 0.7},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": "raw", "temperature": 0.8},
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """What the host writes and reads through numpy is told too."""
    fake = FakeGpu()
    fake.install(monkeypatch)
    order = fake.order

    def told(owner: type, name: str, written: Callable[..., Tensor]) -> None:
        method = getattr(owner, name)

        def tell(*values: Any, **options: Any) -> Any:
            order.host_writes(written(*values), f"{owner.__name__}.{name}")
            return method(*values, **options)

        monkeypatch.setattr(owner, name, tell)

    told(DeviceMasks, "_copy", lambda masks, slot, *_: slot.mask)
    told(DeviceInput, "stage", lambda staged, *_: staged.packed)
    told(LaneTables, "copy_to", lambda tables, target: target)
    told(MegakernelRunner, "_fill", lambda runner, slot, rows, *_: rows.host)
    told(FusedSampler, "fill", lambda sampler, staged, *_: staged.host)
    for runner in (CudaRunner, MegakernelRunner):
        sample = runner.sample

        def sample_and_tell(self: Any, slot: Any, sample: Any = sample) -> None:
            order.host_writes(slot.mask, "filling masks")
            sample(self, slot)

        monkeypatch.setattr(runner, "sample", sample_and_tell)
    arrive, wait = CudaSampling.arrive, MegakernelRunner.wait

    def arrive_and_tell(self: CudaSampling, slot: Any) -> None:
        order.host_reads(self.arriving, "reading tokens")
        arrive(self, slot)

    def wait_and_tell(self: MegakernelRunner, slot: Any, seconds: float) -> None:
        wait(self, slot, seconds)
        order.host_reads(self._rows_of(slot.index).arriving[8], "reading tokens")

    monkeypatch.setattr(CudaSampling, "arrive", arrive_and_tell)
    monkeypatch.setattr(MegakernelRunner, "wait", wait_and_tell)
    with order:
        yield fake


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    generator = torch.Generator().manual_seed(1)
    return LlamaModel(CONFIG, MadeUpWeights(CONFIG, lambda shape: torch.randn(shape, generator=generator)), "float32")


def serve(engine: Engine, *, adapters: bool = False) -> None:
    """More requests than lanes, of every kind, prompts in pieces, a cancel, and adapters loaded in between."""
    sequences = []
    for number in range(14):
        matcher = (Quoted() if number % 2 else Lending(40)) if number % 3 else None
        sequences.append(
            engine.submit(
                [(number + place) % 40 for place in range(1 + 5 * (number % 5))],
                SamplingParams(max_tokens=4 + number % 4, seed=number, **KINDS[number % len(KINDS)]),
                matcher,
                ENDS if matcher else frozenset(),
                adapter=engine.adapters[-1] if engine.adapters and number % 2 else None,
            )
        )
        engine.step()
        if number == 5:
            engine.cancel(sequences[4])
        if adapters and number % 4 == 1:
            engine.load_adapter(str(number), random_adapter(CONFIG, number + 1, number))
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for number, sequence in enumerate(sequences):
        assert sequence.error is None
        assert number % 3 == 0 or sequence.finish_reason == "cancelled" or is_quoted(sequence.output_ids)


def make(kind: type[CudaRunner], model: LlamaModel, gpu: FakeGpu, **options: Any) -> CudaRunner:
    runner = kind(model, max_batch=6, max_context=64, **options)
    for name in ("up", "compute", "down"):
        gpu.order.names[getattr(runner, f"_{name}")] = f"stream {name!r}"
    return runner


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("way", ["warm", "cold", "no graphs"])
@pytest.mark.parametrize("kind", [CudaRunner, MegakernelRunner])
def test_all_accesses_are_ordered(
    kind: type[CudaRunner], way: str, depth: int, gpu: FakeGpu, model: LlamaModel
) -> None:
    runner = make(kind, model, gpu, graphs=way != "no graphs")
    if way == "warm":
        runner.warm_up(16)
    serve(Engine(runner, max_batch=6, depth=depth, prefill_tokens=10), adapters=True)
    assert gpu.order.faults == []


@pytest.mark.parametrize("octets", [1, 16, 1 << 20])
@pytest.mark.parametrize("kind", [CudaRunner, MegakernelRunner])
def test_masks_that_come_and_go_are_ordered(
    kind: type[CudaRunner], octets: int, gpu: FakeGpu, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lent masks in a table with room for one, for two, and for all of them; several engines take turns at it."""
    monkeypatch.setattr(device_masks, "RESIDENT_OCTETS", octets)
    runner = make(kind, model, gpu)
    for depth in (2, 1, 2):
        serve(Engine(runner, max_batch=6, depth=depth, prefill_tokens=10))
    assert gpu.order.faults == []


def test_a_mask_that_is_not_waited_for_is_found(
    gpu: FakeGpu, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's own test: the sampling does not wait for what is brought."""
    runner = make(CudaRunner, model, gpu)
    monkeypatch.setattr(FakeStream, "wait_event", waits_only_for_inputs(runner))
    serve(Engine(runner, max_batch=6, depth=2, prefill_tokens=10))
    assert any("stream 'up'" in fault and "stream 'compute'" in fault for fault in gpu.order.faults)


def waits_only_for_inputs(runner: CudaRunner) -> Callable[[FakeStream, Any], None]:
    wait = FakeStream.wait_event

    def waits(stream: FakeStream, event: Any) -> None:
        if all(event is not slot.mask_there for slot in runner._slots._made.values()):
            wait(stream, event)

    return waits


@pytest.mark.parametrize("after", range(0, 24, 3))
@pytest.mark.parametrize("kind", [CudaRunner, MegakernelRunner])
def test_a_warm_up_that_runs_out_of_memory_leaves_all_ordered(
    kind: type[CudaRunner], after: int, gpu: FakeGpu, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(kind, model, gpu)

    def capture(maker: GraphMaker, work: Callable[[], None]) -> Any:
        if gpu.captures == after:
            raise torch.OutOfMemoryError
        return gpu.capture(maker, work)

    with monkeypatch.context() as patch:
        patch.setattr(GraphMaker, "capture", capture)
        runner.warm_up(16)
    serve(Engine(runner, max_batch=6, depth=2, prefill_tokens=10))
    assert gpu.order.faults == []


@pytest.mark.parametrize("after", [1, 2, 9, 10, 20])
def test_a_launch_that_gives_up_leaves_all_ordered(after: int, gpu: FakeGpu, model: LlamaModel) -> None:
    engine = Engine(make(MegakernelRunner, model, gpu), max_batch=6, depth=2, prefill_tokens=10)
    gpu.gives_up = after
    serve(engine)
    assert engine.metrics.rescued_steps > 0
    assert gpu.order.faults == []


def waits_for_nothing(stream: FakeStream, other: object) -> None: ...


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (FakeStream, "wait_event", waits_for_nothing),
        (FakeStream, "wait_stream", waits_for_nothing),
        (CudaRunner, "_wait_for", lambda runner, slot, seconds: None),
        (torch.cuda, "synchronize", lambda device=None: None),
        (CudaRunner, "_comes_to_rest", lambda runner: True),
    ],
)
def test_what_is_not_waited_for_is_found(
    owner: Any, name: str, instead: Any, gpu: FakeGpu, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's own test: each kind of waiting is left out once."""
    monkeypatch.setattr(owner, name, instead)
    runner = make(CudaRunner, model, gpu)
    if name == "_comes_to_rest":
        runner.warm_up(16)
    serve(Engine(runner, max_batch=6, depth=2, prefill_tokens=10), adapters=True)
    assert gpu.order.faults
