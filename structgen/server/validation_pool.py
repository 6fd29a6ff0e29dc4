"""Validator processes: killed when they take too long, replaced at the next request."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from structgen.errors import GrammarLimitError, SchemaError
from structgen.validate import FormatPolicy, ValidationIssue
from structgen.validation import worker

# The child gets this process's import path, whatever made it.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from structgen.validation.worker import main; main()"


class ValidationPool:
    """Asks validators in other processes.

    Args:
        size: processes at once; 0 validates in this process, where nothing can be killed.
        timeout: seconds for one request, waiting for a free process not included.
    """

    def __init__(self, *, size: int, timeout: float) -> None:
        self._size = size
        self._timeout = timeout
        self._free: asyncio.Queue[Process | None] = asyncio.Queue()
        self._processes: set[Process] = set()
        for _ in range(size):
            self._free.put_nowait(None)  # a place for a process that does not run yet

    async def start(self) -> None:
        """Have one process ready before it is needed."""
        if self._size:
            self._free.get_nowait()
            self._free.put_nowait(await self._begin())

    async def schema_issues(self, schema: str, text: str | None, policy: FormatPolicy) -> list[ValidationIssue]:
        """What is wrong with a JSON text; with None only the schema (JSON text as well) is looked at.

        Raises:
            SchemaError: the schema is not valid. GrammarLimitError: too deep, or it takes too long.
        """
        return await self._issues({"schema": schema, "format": policy, "text": text})

    async def pattern_issues(self, pattern: str, text: str) -> list[ValidationIssue]:
        """Whether a text matches a pattern as a whole. Raises GrammarLimitError when that takes too long."""
        return await self._issues({"pattern": pattern, "text": text})

    async def close(self) -> None:
        for process in list(self._processes):
            await self._end(process)

    async def _issues(self, request: dict[str, Any]) -> list[ValidationIssue]:
        if self._size:
            answer = await self._ask(json.dumps(request).encode())
        else:
            answer = await asyncio.to_thread(worker.answer, request)
        if error := answer.get("error"):
            kind = GrammarLimitError if error["kind"] == "GrammarLimitError" else SchemaError
            raise kind(error["message"], pointer=error["pointer"], hint=error["hint"])
        return [ValidationIssue(*issue) for issue in answer["issues"]]

    async def _ask(self, request: bytes) -> dict[str, Any]:
        process = await self._free.get()
        healthy = False
        try:
            if process is None:
                process = await self._begin()
            answer = await asyncio.wait_for(_exchange(process, request), self._timeout)
            healthy = True
            return answer
        except TimeoutError:
            message = f"validating takes longer than {self._timeout:g} s"
            raise GrammarLimitError(message, hint="simplify its patterns and references") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise GrammarLimitError("validating takes too much memory", hint="simplify the schema") from None
        finally:
            if process is not None and not healthy:
                await self._end(process)
            self._free.put_nowait(process if healthy else None)

    async def _begin(self) -> Process:
        # Its own session: Ctrl-C ends the server first, and the end of its input ends the child.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _START, json.dumps(sys.path), stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        self._processes.add(process)
        await _exchange(process, b'{"pattern": "", "text": null}')  # its imports are not the request's time
        return process

    async def _end(self, process: Process) -> None:
        self._processes.discard(process)
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _exchange(process: Process, request: bytes) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(worker.LENGTH.pack(len(request)) + request)
    await process.stdin.drain()
    (length,) = worker.LENGTH.unpack(await process.stdout.readexactly(worker.LENGTH.size))
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(length))
    return answer
