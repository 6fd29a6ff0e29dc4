"""Constraints -> compiled grammars, in worker threads: never in the event loop, and never twice at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from structgen.errors import GrammarError
from structgen.grammar import Grammar
from structgen.server.constraints import ConstraintSpec, find_constraint
from structgen.server.errors import NO_RETRY, ApiError, api_error
from structgen.server.settings import ServerSettings
from structgen.server.validation_pool import ValidationPool
from structgen.validation.json_text import dump


@dataclass(frozen=True)
class CompiledConstraint:
    """A constraint ready for requests.

    Attributes:
        compiled: a `CompiledGrammar`; its `matcher()` is called in the engine's thread.
        check: finished text -> why it is not valid; None when it is. GrammarLimitError when that cannot be found out.
        least: tokens of the shortest output, EOS included.
    """

    spec: ConstraintSpec
    compiled: Any
    check: Callable[[str], Awaitable[str | None]]
    least: int


class GrammarCompiler:
    """The compiled constraints of one vocabulary: the last used ones are kept, equal requests share one compile."""

    def __init__(self, vocabulary: Callable[[], Any], validators: ValidationPool, settings: ServerSettings) -> None:
        self._vocabulary = vocabulary
        self._validators = validators
        self._settings = settings
        self._kept: OrderedDict[str, CompiledConstraint] = OrderedDict()
        self._running: dict[str, asyncio.Future[CompiledConstraint]] = {}
        self._workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="structgen-compile")

    async def compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        """Raises ApiError: the schema or pattern is invalid, unsupported, unsatisfiable or takes too long."""
        if spec.key in self._kept:
            self._kept.move_to_end(spec.key)
            return self._kept[spec.key]
        if spec.key not in self._running:
            task = asyncio.create_task(self._build(spec))
            self._running[spec.key] = task
            task.add_done_callback(lambda done: self._keep(spec, done))
        limit = self._settings.compile_timeout
        try:
            # Shielded: others may wait for the same compile, and a thread cannot be stopped anyway.
            return await asyncio.wait_for(asyncio.shield(self._running[spec.key]), limit)
        except TimeoutError:
            message = f"compiling `{spec.field}` takes longer than {limit:g} s"
            raise ApiError(message, code="schema_too_complex", param=spec.field, headers=NO_RETRY) from None
        except GrammarError as error:
            raise api_error(error, field=spec.field) or error from None

    async def warm_up(self) -> None:
        """Read the vocabulary and compile what every grammar needs, before the first request waits for it."""
        spec = find_constraint({"response_format": {"type": "json_object"}}, self._settings)
        assert spec is not None
        self._kept[spec.key] = await self._build(spec)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _build(self, spec: ConstraintSpec) -> CompiledConstraint:
        """The validator looks first: its errors are about the schema, the grammar's about what can be enforced."""
        if spec.kind == "json":
            await self._validators.schema_issues(dump(spec.payload), None, "assert")
        compiled, least = await asyncio.get_running_loop().run_in_executor(self._workers, self._compile, spec)
        return CompiledConstraint(spec, compiled, self._check_of(spec), least)

    def _compile(self, spec: ConstraintSpec) -> tuple[Any, int]:
        """In a worker thread."""
        compiled = _grammar(spec).compile(self._vocabulary())
        # Asked here, before anyone else holds the grammar: later its lazy tables belong to the engine's thread.
        return compiled, compiled.matcher().min_tokens_to_complete

    def _check_of(self, spec: ConstraintSpec) -> Callable[[str], Awaitable[str | None]]:
        """The last look at a finished output: by the validator, which knows nothing of the grammar that made it."""
        schema = dump(spec.payload)

        async def check(text: str) -> str | None:
            if spec.kind == "choice":
                return None if text in spec.payload else "the text is none of the choices"
            if spec.kind == "regex":
                issues = await self._validators.pattern_issues(spec.payload, text)
            else:
                issues = await self._validators.schema_issues(schema, text, "assert")
            return str(issues[0]) if issues else None

        return check

    def _keep(self, spec: ConstraintSpec, done: asyncio.Future[CompiledConstraint]) -> None:
        self._running.pop(spec.key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[spec.key] = done.result()
        self._trim()

    def _trim(self) -> None:
        """Let go of the longest unused; requests that still run keep theirs. The newest stays, whatever its size."""
        sizes = {key: int(kept.compiled.stats()["bytes"]) for key, kept in self._kept.items()}
        total = sum(sizes.values())
        while len(self._kept) > 1 and (
            total > self._settings.compiled_bytes or len(self._kept) > self._settings.compiled_grammars
        ):
            key, _ = self._kept.popitem(last=False)
            total -= sizes[key]


def _grammar(spec: ConstraintSpec) -> Grammar:
    if spec.kind == "json":
        return Grammar.from_json_schema(spec.payload)
    if spec.kind == "regex":
        return Grammar.from_regex(spec.payload)
    return Grammar.from_choices(spec.payload)
