"""64 sequences at a time, each under another schema, with cancels, stops and budgets at random.

Every output validates or is the beginning of one, equals what the request gets alone, and leaves nothing behind.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from structgen.engine import Engine, SamplingParams, Sequence
from structgen.grammar import CompiledGrammar, Grammar, Matcher, Vocabulary
from structgen.validate import Validator

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEMAS, BATCH = 64, 64
ROUNDS, REQUESTS = 4, 500  # every round has the same requests, cancelled at other moments
WAITING = 40  # requests beyond those that can run
CHECK_EVERY = 16  # steps
PAGES = 700  # fewer than 64 long requests want


class MakeEngine(Protocol):
    def __call__(self, max_batch: int, depth: int, *, pages: int = ..., **options: Any) -> Engine: ...


@dataclass(frozen=True)
class Task:
    """One request, before it is submitted."""

    schema: int
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass
class Language:
    """One of the 64 schemas: no value of one is a value of another."""

    schema: dict[str, Any]
    compiled: CompiledGrammar
    validator: Validator


def schema_of(number: int) -> dict[str, Any]:
    """A closed object whose keys name the schema, with a member of one of eight kinds."""
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer", "minimum": -number, "maximum": 1000 + number},
        {"type": "array", "items": {"enum": [number, None, f"v{number}"]}, "maxItems": 5},
        {"type": "string", "pattern": f"^[a-f]{{2,8}}-{number}$"},
        {"anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": {"type": "number"}}]},
        {"type": "string", "format": "date"},
        {"$ref": "#/$defs/node"},
        {"type": "array", "prefixItems": [{"const": number}, {"type": "string", "maxLength": 9}], "minItems": 2},
    ]
    node = {"type": "object", "properties": {"below": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {f"k{number}": kinds[number % len(kinds)], "note": {"type": "string", "maxLength": 12}},
        "required": [f"k{number}"],
        "additionalProperties": False,
        "$defs": {"node": node},
    }


@pytest.fixture(scope="module")
def languages(small_vocabulary: Vocabulary) -> list[Language]:
    found = []
    for number in range(SCHEMAS):
        schema = schema_of(number)
        grammar = Grammar.from_json_schema(schema, whitespace=("flexible", "compact")[number // 8 % 2])
        found.append(Language(schema, grammar.compile(small_vocabulary), Validator(schema)))
    return found


def make_tasks(languages: list[Language]) -> list[Task]:
    rng = random.Random(7)
    common = [rng.randrange(97, 123) for _ in range(64)]
    return [make_task(number % SCHEMAS, languages[number % SCHEMAS], common, rng) for number in range(REQUESTS)]


def make_task(schema: int, language: Language, common: list[int], rng: random.Random) -> Task:
    least = language.compiled.matcher().min_tokens_to_complete
    prompt = (*common[: rng.choice([0, 10, 40, 64])], *(rng.randrange(97, 123) for _ in range(rng.randrange(1, 12))))
    stops = frozenset({rng.choice([ord("a"), ord("0"), ord('"'), ord("}")])} if rng.random() < 0.1 else ())
    params = SamplingParams(
        max_tokens=least + rng.choice([0, 1, 2, 5, 20, 40, 100]),
        temperature=rng.choice([0.0, 0.7, 1.2]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        seed=rng.randrange(1000),
        stop_token_ids=stops,
    )
    return Task(schema, prompt, params)


def submit(engine: Engine, task: Task, languages: list[Language]) -> Sequence:
    compiled = languages[task.schema].compiled
    return engine.submit(task.prompt, task.params, compiled.matcher(), compiled.vocabulary.eos_token_ids)


@pytest.fixture(scope="module")
def tasks(languages: list[Language]) -> list[Task]:
    return make_tasks(languages)


@pytest.fixture(scope="module")
def alone(tasks: list[Task], languages: list[Language], make_engine: MakeEngine) -> list[tuple[list[int], str | None]]:
    """What each request gets when it is the only one, one step at a time: (tokens, reason)."""
    engine = make_engine(1, 1, pages=64, share_prefixes=False)
    found: list[tuple[list[int], str | None]] = []
    for task in tasks:
        sequence = submit(engine, task, languages)
        while engine.has_work:
            engine.step()
        found.append((sequence.output_ids, sequence.finish_reason))
    return found


class Traffic:
    """Submits all tasks once, keeps some of them waiting, and cancels at random."""

    def __init__(self, engine: Engine, tasks: list[Task], languages: list[Language], rng: random.Random) -> None:
        self.engine, self.tasks, self.languages, self.rng = engine, tasks, languages, rng
        self.order = rng.sample(range(len(tasks)), len(tasks))
        self.running: dict[Sequence, int] = {}
        self.most_running = 0

    def run(self) -> Iterator[tuple[int, Sequence]]:
        """(number of the task, its finished sequence), as they end."""
        steps = 0
        while self.order or self.engine.has_work:
            while self.order and len(self.running) < BATCH + WAITING:
                number = self.order.pop()
                self.running[submit(self.engine, self.tasks[number], self.languages)] = number
            if self.running and self.rng.random() < 0.4:
                self.engine.cancel(self.rng.choice([*self.running]))
            self.most_running = max(self.most_running, sum(bool(each.output_ids) for each in self.running))
            for output in self.engine.step():
                if output.finish_reason is not None:
                    yield self.running.pop(output.sequence), output.sequence
            steps += 1
            if steps % CHECK_EVERY == 0:
                self.engine.check_integrity()
        assert not self.running, "a request never ended"


def test_two_thousand_requests_are_valid_alone_or_together_and_leave_nothing(
    depth: int,
    languages: list[Language],
    tasks: list[Task],
    alone: list[tuple[list[int], str | None]],
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(BATCH, depth, pages=PAGES)
    rng = random.Random(depth)
    blocks, reasons, most = [], dict.fromkeys(("stop", "length", "cancelled"), 0), 0
    for _ in range(ROUNDS):
        traffic, finished = Traffic(engine, tasks, languages, rng), []
        for number, sequence in traffic.run():
            check(sequence, languages[tasks[number].schema], *alone[number])
            reasons[str(sequence.finish_reason)] += 1
            finished.append(sequence)
        most = max(most, traffic.most_running)
        assert not any(sequence.pages for sequence in finished), "a finished request still owns pages"
        del traffic, sequence, finished
        engine.check_integrity()
        blocks.append(blocks_in_use())
        kept = [each for each in gc.get_objects() if type(each) in (Sequence, Matcher)]
        assert len(kept) <= 2 * depth * BATCH, "more is kept than the last plan of each slot"
    assert sum(reasons.values()) == ROUNDS * REQUESTS
    assert min(reasons.values()) > 100, f"too tame: {reasons}"
    assert most > BATCH // 2, "hardly anything ran at the same time"
    assert engine._pages.available == PAGES, "a page is still owned"
    assert blocks[-1] - blocks[1] < 5 * REQUESTS, f"memory grows: {blocks}"  # each request makes hundreds


def check(sequence: Sequence, language: Language, tokens: list[int], reason: str | None) -> None:
    """What holds for one finished request, whatever ran beside it."""
    assert sequence.error is None
    vocabulary = language.compiled.vocabulary
    text = b"".join(vocabulary.tokens[token] or b"" for token in sequence.output_ids)
    matcher = language.compiled.matcher()
    assert all(map(matcher.accept, sequence.output_ids)), f"{text!r} is not of its own schema"
    if sequence.finish_reason == "cancelled":
        assert sequence.output_ids == tokens[: len(sequence.output_ids)]
        return
    assert (sequence.output_ids, sequence.finish_reason) == (tokens, reason)
    if matcher.is_complete:
        assert not language.validator.errors(text.decode())
    else:
        assert sequence.params.stop_token_ids, f"{text!r} is cut off"


def blocks_in_use() -> int:
    """Python's allocated blocks of memory, after a collection."""
    gc.collect()
    return sys.getallocatedblocks()
