"""The resident loop on the GPU: checked against one launch a token, then timed with masks from the host for each."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from structgen.kernels.bench_micro import processors
from structgen.kernels.decoder import Decoder, StepInput
from structgen.kernels.host_masks import HostMasks
from structgen.kernels.mailbox import ENDED, FREE, MASKED
from structgen.kernels.model_shape import LLAMA_1B, ModelShape
from structgen.kernels.random_model import RandomBench
from structgen.kernels.resident import ResidentLoop, Verdict
from structgen.kernels.resident_kernel import ResidentKernel
from structgen.kernels.round_trips import PATIENCE, LateMasks, OneByOne, Resident, differences, milliseconds
from structgen.kernels.schedule import Schedule

FIRST = 128  # tokens of context in front
STEPS = 128
CASES = ((LLAMA_1B.vocab_size // 2, 0.0), (LLAMA_1B.vocab_size // 2, 0.3), (LLAMA_1B.vocab_size // 2, 0.7), (64, 0.0))
SMALL = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=8000)


def first_step(bench: RandomBench, batch: int, temperature: float = 0.0) -> StepInput:
    """Rows at `FIRST` and around; the last page table is the spare one."""
    step = bench.step([-1 - row for row in range(batch)], [FIRST - 1 + row for row in range(batch)])
    step.last_tokens.copy_(torch.arange(len(step.last_tokens)))
    step.temperatures.fill_(temperature)
    spare = torch.full_like(step.tables[:1], bench.tables.numel())  # the one page that no row has
    return replace(step, tables=torch.cat([step.tables, spare]))


def check(shape: ModelShape = SMALL, batches: tuple[int, ...] = (1, 3, 8)) -> int:
    """Same tokens in all ways, rows on their own, stop, and a silent host. -> how many were wrong."""
    bad = 0
    bench = RandomBench.build(Schedule.build(shape, 1, processors()), FIRST + STEPS + 16)
    for batch in batches:
        decoder = Decoder(Schedule.build(shape, batch, processors()), bench.model)
        kernel = ResidentKernel(decoder, slots=STEPS)
        for temperature, allowed in ((0.0, shape.vocab_size // 2), (0.8, shape.vocab_size // 2), (0.8, 50)):
            masks, step = HostMasks(shape.vocab_size, allowed), first_step(bench, batch, temperature)
            found = {
                "resident": Resident(kernel, step).run(STEPS, masks),
                "late masks": LateMasks(kernel, step, graphs=False).run(STEPS, masks),
                "late masks, graph": LateMasks(kernel, step, graphs=True).run(STEPS, masks),
                "launches": OneByOne(decoder, step, split=False, graphs=False).run(STEPS, masks),
                "two graphs": OneByOne(decoder, step, split=True, graphs=True).run(STEPS, masks),
            }
            for name, tokens in found.items():
                other, wrong = differences(decoder, step, masks, tokens)
                label = f"batch {batch}, temperature {temperature}, {allowed} allowed, {name}, {other} ties"
                bad += _report(label, wrong == 0)
        bad += _report(f"batch {batch}: stop, silence, rows on their own", _endings(kernel, first_step(bench, batch)))
    return bad


def _endings(kernel: ResidentKernel, step: StepInput) -> bool:
    batch, spare = len(step.ids), len(step.tables) - 1
    good = True
    for watchdog, verdict in ((0.02, Verdict.HOST_LATE), (PATIENCE, Verdict.STOPPED)):
        kernel.load(step, spare_table=spare)
        loop = ResidentLoop(kernel, steps=STEPS, watchdog=watchdog)
        loop.rows[:] = FREE
        loop.grant(4)
        free = [loop.next_tokens(PATIENCE).tolist() for _ in range(4)]
        if verdict is Verdict.HOST_LATE:
            time.sleep(0.1)
            good &= kernel.finished()
        good &= loop.close() is verdict
    kernel.load(step, spare_table=spare)
    with ResidentLoop(kernel, steps=STEPS, watchdog=PATIENCE) as loop:
        loop.rows[:], loop.mask[:] = FREE, 0
        loop.grant(2)
        found = [loop.next_tokens(PATIENCE).tolist() for _ in range(2)]
        loop.rows[0], loop.rows[1:] = ENDED, FREE
        loop.grant(2)
        found += [loop.next_tokens(PATIENCE).tolist() for _ in range(2)]
        loop.rows[:] = MASKED
        loop.grant()
        nothing = loop.next_tokens(PATIENCE).tolist()
    rest = [tokens[1:] for tokens in found]
    good &= rest == [tokens[1:] for tokens in free] and [tokens[0] for tokens in found[2:]] == [-1, -1]
    return good and found[:2] == free[:2] and nothing == [-1] * batch


def _free_running(kernel: ResidentKernel, step: StepInput, masks: HostMasks) -> float:
    """ms a token when the host's one word holds for all: what the device alone takes."""
    times = []
    for _ in range(3):
        kernel.load(step, spare_table=len(step.tables) - 1)
        with ResidentLoop(kernel, steps=STEPS, watchdog=PATIENCE) as loop:
            masks.fill(0, None, loop.mask)
            loop.rows[:] = MASKED
            begin = time.perf_counter()
            loop.grant(STEPS)
            for _ in range(STEPS):
                loop.next_tokens(PATIENCE)
            times.append((time.perf_counter() - begin) * 1000 / STEPS)
    return statistics.median(times)


def _report(label: str, good: bool) -> int:
    print(f"{label}: {'ok' if good else 'WRONG'}", flush=True)
    return int(not good)


def run(batches: tuple[int, ...] = (1, 8)) -> dict[str, Any]:
    """ms a token, the host's part of the round trip included, by batch, tokens allowed and ms a mask takes."""
    bench = RandomBench.build(Schedule.build(LLAMA_1B, 1, processors()), FIRST + STEPS + 16)
    result: dict[str, Any] = {"read_mb": round(LLAMA_1B.weight_bytes / 1e6, 1), "steps": STEPS, "context": FIRST}
    for batch in batches:
        decoder = Decoder(Schedule.build(LLAMA_1B, batch, processors()), bench.model)
        kernel, step = ResidentKernel(decoder, slots=STEPS), first_step(bench, batch)
        ways: dict[str, OneByOne | LateMasks | Resident] = {
            "launches": OneByOne(decoder, step, split=False, graphs=False),
            "graph": OneByOne(decoder, step, split=False, graphs=True),
            "two_graphs": OneByOne(decoder, step, split=True, graphs=True),
            "late_masks": LateMasks(kernel, step, graphs=True),
            "resident": Resident(kernel, step),
        }
        for allowed, mask_ms in CASES:
            masks = HostMasks(LLAMA_1B.vocab_size, allowed, seconds=mask_ms / 1000)
            case: dict[str, float] = {}
            for name, way in ways.items():
                _, wrong = differences(decoder, step, masks, way.run(STEPS, masks))
                assert not wrong, f"{name}: {wrong} tokens are others than one by one: not timed"
                case[name] = round(milliseconds(way.run, STEPS, masks), 4)
            case["free_running"] = round(_free_running(kernel, step, masks), 4)
            result[f"batch {batch}, {allowed} allowed, mask {mask_ms} ms"] = case
            print(f"batch {batch}, {allowed} allowed, mask {mask_ms} ms: {case}", flush=True)
    return result
