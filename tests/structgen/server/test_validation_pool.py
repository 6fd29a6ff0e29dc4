"""Validator processes: the same answers as in this process, and an end to those that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from structgen.errors import GrammarLimitError, SchemaError
from structgen.server.validation_pool import ValidationPool

T = TypeVar("T")

BACKTRACKING = '{"pattern": "^(a+)+$"}'
SLOW_TEXT = '"' + "a" * 60 + '!"'


def run(scenario: Callable[[ValidationPool], Awaitable[T]], *, size: int, timeout: float = 20.0) -> T:
    async def main() -> T:
        pool = ValidationPool(size=size, timeout=timeout)
        await pool.start()
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.parametrize("size", [0, 1])
def test_answers(size: int) -> None:
    async def scenario(pool: ValidationPool) -> None:
        schema = '{"multipleOf": 0.1}'
        assert await pool.schema_issues(schema, None, "assert") == []
        assert await pool.schema_issues(schema, "0.3", "assert") == []
        (issue,) = await pool.schema_issues(schema, "0.35", "assert")
        assert issue.schema_pointer == "/multipleOf"
        assert len(await pool.schema_issues('{"format": "date"}', '"x"', "assert")) == 1
        assert await pool.schema_issues('{"format": "date"}', '"x"', "annotate") == []
        assert await pool.pattern_issues("(?P<x>a|b)+", "abba") == []
        assert len(await pool.pattern_issues("(?P<x>a|b)+", "abc")) == 1
        assert await pool.pattern_issues("[", "what only the grammar understands passes") == []
        assert len(await pool.schema_issues('{"items": false}', str([1] * 1000), "assert")) <= 100
        with pytest.raises(SchemaError) as caught:
            await pool.schema_issues('{"items": {"type": "strin"}}', None, "assert")
        assert caught.value.pointer == "/items/type"
        with pytest.raises(GrammarLimitError):
            await pool.schema_issues('{"items": ' * 2000 + "{}" + "}" * 2000, None, "assert")

    run(scenario, size=size)


def test_a_pattern_that_backtracks_is_killed_and_the_next_request_works() -> None:
    async def scenario(pool: ValidationPool) -> None:
        assert await pool.schema_issues(BACKTRACKING, '"aaa"', "assert") == []
        with pytest.raises(GrammarLimitError, match="longer than"):
            await pool.schema_issues(BACKTRACKING, SLOW_TEXT, "assert")
        assert len(await pool.schema_issues(BACKTRACKING, '"b"', "assert")) == 1

    run(scenario, size=1, timeout=0.5)


def test_giving_up_kills_the_work_too() -> None:
    async def scenario(pool: ValidationPool) -> None:
        task = asyncio.create_task(pool.schema_issues(BACKTRACKING, SLOW_TEXT, "assert"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pool.schema_issues("true", "1", "assert") == []

    run(scenario, size=1)


def test_requests_share_the_processes() -> None:
    async def scenario(pool: ValidationPool) -> list[int]:
        texts = ["0.1", "0.15"] * 10
        answers = await asyncio.gather(*(pool.schema_issues('{"multipleOf": 0.1}', text, "assert") for text in texts))
        return [len(issues) for issues in answers]

    assert run(scenario, size=1) == [0, 1] * 10
