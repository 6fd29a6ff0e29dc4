"""ThreadGovernor on a simulated machine, and that the thread count does not change a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from structgen.engine.llama import LlamaModel, Precision
from structgen.engine.model_config import ModelConfig
from structgen.engine.threads import ThreadGovernor
from structgen.engine.weight_source import DictWeights

IDLE, BUSY = {1: 11.0, 2: 7.0}, {1: 20.0, 2: 100.0}


def simulate(governor: ThreadGovernor, steps: int, machine: Callable[[int], dict[int, float]]) -> Counter[int]:
    used: Counter[int] = Counter()
    for step in range(steps):
        threads = governor.threads
        used[threads] += 1
        governor.report(machine(step)[threads], rows=1)
    return used


def test_an_idle_machine_gets_all_threads() -> None:
    assert simulate(ThreadGovernor(2), 1000, lambda _: IDLE)[1] <= 4


def test_a_busy_machine_gets_one_thread_and_few_trials() -> None:
    assert simulate(ThreadGovernor(2), 1000, lambda _: BUSY)[2] <= 6  # one hopeless step a trial is enough


def test_it_follows_when_the_machine_becomes_busy_and_idle_again() -> None:
    governor = ThreadGovernor(2)
    simulate(governor, 200, lambda _: IDLE)
    assert simulate(governor, 60, lambda _: BUSY)[2] <= 8
    assert simulate(governor, 400, lambda _: IDLE)[2] >= 250


def test_a_single_slow_step_changes_nothing() -> None:
    assert simulate(ThreadGovernor(2), 600, lambda step: BUSY if step % 20 == 19 else IDLE)[1] <= 4


def test_one_core_has_nothing_to_choose() -> None:
    assert simulate(ThreadGovernor(1), 100, lambda _: {1: 1.0}) == {1: 100}


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_results_do_not_depend_on_the_number_of_threads(precision: Precision) -> None:
    config = ModelConfig(
        vocab_size=64, hidden=128, intermediate=256, layers=2, heads=4, kv_heads=2, head_dim=32, context=64
    )
    generator = torch.Generator().manual_seed(1)

    class Random(DictWeights):
        def get(self, name: str) -> torch.Tensor:
            shape = SHAPES[name.removesuffix(".weight").rsplit(".", 1)[-1]]
            return torch.randn(shape, generator=generator) * 0.1

        def has(self, name: str) -> bool:
            return False

    model = LlamaModel(config, Random({}), precision)
    before = torch.get_num_threads()
    try:
        for count in (1, 7, 40):
            torch.set_num_threads(1)
            one = model.logits(list(range(count)))
            torch.set_num_threads(2)
            assert torch.equal(one, model.logits(list(range(count))))
    finally:
        torch.set_num_threads(before)


SHAPES = {
    "embed_tokens": (64, 128),
    "lm_head": (64, 128),
    "norm": (128,),
    "input_layernorm": (128,),
    "post_attention_layernorm": (128,),
    "q_proj": (128, 128),
    "k_proj": (64, 128),
    "v_proj": (64, 128),
    "o_proj": (128, 128),
    "gate_proj": (256, 128),
    "up_proj": (256, 128),
    "down_proj": (128, 256),
}
