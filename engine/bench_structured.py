"""What structure costs and saves: constrained against free, jump-forward, depth 2 against depth 1.

Records are written under their grammars; free text of the same length then runs the same steps but for what the
constraint adds. Costs are seconds a token, prompts are known prefixes. Contenders take turns at every group of records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from structgen.engine.bench_rounds import Rounds
from structgen.engine.engine import Engine
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.sequence import MaskSource, Sequence

MAX_TOKENS = 160
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Task:
    """One record to be written; `matcher` makes a fresh cursor. `seed` fixes what is sampled."""

    prompt: list[int]
    matcher: Callable[[], MaskSource]
    ends: frozenset[int]
    seed: int = 0


Group = Items[Task]  # written at the same time


@dataclass
class Writer:
    """One contender: an engine, and whether it writes records or free text.

    `tokens` are the lengths of what it last wrote, a group; free text has the lengths of `like`'s records.
    """

    engine: Engine
    like: Writer | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    load: Load = field(default_factory=lambda: Load())

    def write(self, number: int, group: Group) -> float:
        """Seconds a token for the group of that number. RuntimeError when a record fails."""
        engine = self.engine
        engine.trace.reset()
        steps, forced, started = engine.metrics.steps, engine.metrics.tokens_forced, time.perf_counter()
        if self.like is None:
            sequences = [self._submit(task, MAX_TOKENS, task.matcher()) for task in group]
        else:
            lengths = zip(group, self.like.tokens[number], strict=True)
            sequences = [self._submit(task, length, None) for task, length in lengths if length]
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - started
        for sequence in sequences:
            if sequence.finish_reason == "error":
                raise RuntimeError(f"the benchmark failed: {sequence.error}")
        self.tokens[number] = [len(sequence.output_ids) for sequence in sequences]
        tokens = sum(self.tokens[number])
        self.load.add(engine, seconds, engine.metrics.steps - steps, tokens, engine.metrics.tokens_forced - forced)
        return seconds / tokens

    def _submit(self, task: Task, tokens: int, matcher: MaskSource | None) -> Sequence:
        params = SamplingParams(max_tokens=tokens, temperature=TEMPERATURE, seed=task.seed)
        return self.engine.submit(task.prompt, params, matcher, task.ends if matcher else frozenset())


@dataclass
class Load:
    """What an engine's trace says about some turns, in seconds: in all, device and host at work, device idle."""

    seconds: float = 0.0
    device: float = 0.0
    host: float = 0.0
    bubble: float = 0.0
    steps: int = 0
    tokens: int = 0
    forced: int = 0

    def add(self, engine: Engine, seconds: float, steps: int, tokens: int, forced: int) -> None:
        totals = engine.trace.totals
        self.seconds += seconds
        self.device += sum(totals.get(f"device.{kind}", 0.0) for kind in ("forward", "sample"))
        self.host += sum(totals.get(f"host.{kind}", 0.0) for kind in ("fill", "sample", "commit", "plan", "launch"))
        self.bubble += totals.get("device.bubble", 0.0)
        self.steps, self.tokens, self.forced = self.steps + steps, self.tokens + tokens, self.forced + forced

    @property
    def bubble_percent(self) -> float:
        """Of the time between the device's first and last work."""
        return 100 * self.bubble / (self.device + self.bubble)

    @property
    def over_the_longer(self) -> float:
        """A step's time over max(device, host): 1 when the shorter hides under the longer.

        The time is the device's, from first to last work of a turn: beginnings and ends of texts are no steps.
        """
        return (self.device + self.bubble) / max(self.device, self.host)

    @property
    def microseconds(self) -> float:
        """Of a step."""
        return self.seconds / self.steps * 1e6


@dataclass(frozen=True)
class Contest:
    """The rounds of some writers over groups of tasks: `by_group[g]` has one turn a round."""

    by_group: list[Rounds]
    weights: list[int]  # tokens of each group

    @classmethod
    def hold(cls, writers: dict[str, Writer], groups: Items[Group], rounds: int, *, warm: bool = False) -> Contest:
        """The first turn at a group is not counted: it finds masks, prefixes, and the lengths of free text.

        `warm`: the records were written before, so that only lengths are wanted.
        """
        found = [Rounds() for _ in groups]
        for number, group in enumerate(groups):
            wanted = [writer.like for writer in writers.values() if writer.like] if warm else writers.values()
            for writer in sorted(wanted, key=lambda writer: writer.like is not None):
                writer.write(number, group)
        for writer in writers.values():
            writer.load = Load()
        for _ in range(rounds):
            for number, group in enumerate(groups):
                found[number].take_turns({name: _Turn(writer, number, group).cost for name, writer in writers.items()})
        any_writer = next(iter(writers.values()))
        return cls(found, [sum(any_writer.tokens[number]) for number in range(len(groups))])

    def gain(self, name: str, over: str) -> float:
        """Tokens per second of one writer over another's: the median of all turns at all groups."""
        return self._all().ratio(over, name)

    def total_gain(self, name: str, over: str) -> float:
        """Tokens per second over all groups together; each group counts with its median turn."""
        return self.seconds_per_token(over) / self.seconds_per_token(name)

    def seconds_per_token(self, name: str) -> float:
        costs = [rounds.median(name) for rounds in self.by_group]
        return sum(cost * weight for cost, weight in zip(costs, self.weights, strict=True)) / sum(self.weights)

    def _all(self) -> Rounds:
        joined = Rounds()
        for rounds in self.by_group:
            for name, costs in rounds.costs.items():
                joined.costs.setdefault(name, []).extend(costs)
        return joined


@dataclass(frozen=True)
class _Turn:
    writer: Writer
    number: int
    group: Group

    def cost(self) -> float:
        return self.writer.write(self.number, self.group)
