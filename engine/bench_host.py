"""python -m structgen.engine.bench_host: microseconds of a step that are the host's, with a device that does nothing.

Recorded records are written under their grammars, as in bench_gpu.py; a step's inputs and sampling parameters are
staged as for a GPU, and its tokens are there at once. The last line is one JSON object: the sum by batch and writer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable

import torch

from structgen.engine.bench_gpu import BATCHES, LLAMA_1B, PROMPT_TOKENS, recorded_tasks
from structgen.engine.bench_structured import MAX_TOKENS, Task, Writer
from structgen.engine.bench_vocabulary import made_up_vocabulary
from structgen.engine.device_input import DeviceInput, LaneTables
from structgen.engine.device_masks import DeviceMasks
from structgen.engine.engine import Engine
from structgen.engine.fused_sampler import FusedSampler
from structgen.engine.runner import MOST_SLOTS, PAGE_SIZE
from structgen.engine.step import StepSlot
from structgen.grammar.warm_up import warm_up

MOST = max(BATCHES)
CONTEXT = 1024
PARTS = ("commit", "fill", "sample", "plan", "launch")


class NoDevice:
    """A ModelRunner whose steps cost the host what they cost it with a GPU, but for the calls to the driver."""

    vocab_size, max_context, page_size = LLAMA_1B.vocab_size, CONTEXT, PAGE_SIZE
    pages = 2 * MOST * (PROMPT_TOKENS + MAX_TOKENS) // PAGE_SIZE
    default_depth, pinned, shares_masks = 2, False, True

    def __init__(self) -> None:
        self._staged = DeviceInput(usual_rows=CONTEXT, max_batch=MOST, table_pages=CONTEXT // PAGE_SIZE, pinned=False)
        self._tables = LaneTables(MOST, CONTEXT // PAGE_SIZE, scratch=self.pages)
        self._sampler = FusedSampler(self.vocab_size, "cpu", max_batch=MOST)
        self._parameters = self._sampler.stage()
        self._masks = DeviceMasks(self.vocab_size, slots=MOST_SLOTS, max_batch=MOST, device=torch.device("cpu"))

    def launch(self, slot: StepSlot) -> None:
        self._tables.update(slot.plan)
        self._staged.stage(slot.plan, slot.lanes, max(MOST, slot.plan.tokens), MOST)

    def sample(self, slot: StepSlot) -> None:
        constrained = slot.constrained[: len(slot.rows)]
        masks = self._masks.bring(slot) if True in constrained else None
        self._sampler.fill(self._parameters, constrained, slot.sampling, masks)

    def wait(self, slot: StepSlot, seconds: float) -> None:
        self._masks.release(slot)
        slot.host_tokens[:] = 0
        slot.host_status[:] = 0

    def clear(self, pages: Iterable[int]) -> None: ...

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        return []

    def close(self) -> None: ...


def microseconds(tasks: list[Task], batch: int, *, jump: bool, rounds: int) -> dict[str, float]:
    """Of a step, by part: the best of the rounds, each over all groups of so many records."""
    engine = Engine(NoDevice(), max_batch=MOST, jump_forward=jump, share_prefixes=False)
    writer, best = Writer(engine), dict.fromkeys(PARTS, float("inf"))
    many = (tasks * batch)[: max(batch, len(tasks))]
    for _ in range(rounds + 1):
        spent: Counter[str] = Counter()
        before = engine.metrics.steps
        for first in range(0, len(many) - batch + 1, batch):
            writer.write(first, many[first : first + batch])
            spent.update({part: engine.trace.totals.get(f"host.{part}", 0.0) for part in PARTS})
        steps = engine.metrics.steps - before
        best = {part: min(best[part], spent[part] / steps * 1e6) for part in PARTS}
    engine.close()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench_host", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    tasks, sums = list(recorded_tasks(made_up_vocabulary())), {}
    print(f"{'microseconds a step':<28}" + "".join(f"{part:>8}" for part in (*PARTS, "sum")))
    for batch in BATCHES:
        for name, jump in (("constrained", False), ("jump-forward", True)):
            parts = microseconds(tasks, batch, jump=jump, rounds=options.rounds)
            sums[f"{name}_{batch}"] = round(sum(parts.values()), 1)
            numbers = (*parts.values(), sum(parts.values()))
            print(f"batch {batch:<3} {name:<18}" + "".join(f"{number:>8.1f}" for number in numbers))
    print(json.dumps(sums))


if __name__ == "__main__":
    main()
