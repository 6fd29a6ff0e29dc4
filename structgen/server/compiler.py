"""Constraints -> compiled grammars, in worker threads: never in the event loop, and never twice at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from structgen.errors import GrammarError
from structgen.grammar import Grammar
from structgen.server.constraints import ConstraintSpec, find_constraint
from structgen.server.errors import NO_RETRY, ApiError, api_error
from structgen.server.output_check import output_check
from structgen.server.settings import ServerSettings


@dataclass(frozen=True)
class CompiledConstraint:
    """A constraint ready for requests.

    Attributes:
        compiled: a `CompiledGrammar`; its `matcher()` is called in the engine's thread.
        check: finished text -> why it is not valid; None when it is.
        least: tokens of the shortest output, EOS included.
    """

    spec: ConstraintSpec
    compiled: Any
    check: Callable[[str], str | None]
    least: int


class GrammarCompiler:
    """The compiled constraints of one vocabulary: the last used ones are kept, equal requests share one compile."""

    def __init__(self, vocabulary: Callable[[], Any], settings: ServerSettings) -> None:
        self._vocabulary = vocabulary
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
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(self._workers, self._build, spec)
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

    def warm_up(self) -> None:
        """Read the vocabulary and compile what every grammar needs, before the first request waits for it."""
        spec = find_constraint({"response_format": {"type": "json_object"}}, self._settings)
        assert spec is not None
        self._kept[spec.key] = self._build(spec)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _build(self, spec: ConstraintSpec) -> CompiledConstraint:
        """In a worker thread."""
        check = output_check(spec)
        compiled = _grammar(spec).compile(self._vocabulary())
        # Asked here, before anyone else holds the grammar: later its lazy tables belong to the engine's thread.
        return CompiledConstraint(spec, compiled, check, compiled.matcher().min_tokens_to_complete)

    def _keep(self, spec: ConstraintSpec, done: asyncio.Future[CompiledConstraint]) -> None:
        self._running.pop(spec.key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[spec.key] = done.result()
        while len(self._kept) > self._settings.compiled_grammars:
            self._kept.popitem(last=False)


def _grammar(spec: ConstraintSpec) -> Grammar:
    if spec.kind == "json":
        return Grammar.from_json_schema(spec.payload)
    if spec.kind == "regex":
        return Grammar.from_regex(spec.payload)
    return Grammar.from_choices(spec.payload)
