"""Compiling for requests: kept, shared while it runs, bounded, and never in the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from structgen.server.compiler import GrammarCompiler
from structgen.server.constraints import ConstraintSpec, find_constraint
from structgen.server.errors import ApiError
from structgen.server.settings import ServerSettings
from structgen.server.validation_pool import ValidationPool

T = TypeVar("T")


class Vocabularies:
    """Hands out a vocabulary, and notes how often and on which thread it was asked for."""

    def __init__(self, vocabulary: Any) -> None:
        self.vocabulary = vocabulary
        self.threads: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self) -> Any:
        self.threads.append(threading.get_ident())
        self.gate.wait(10)
        return self.vocabulary


@pytest.fixture
def vocabularies(model: Any) -> Vocabularies:
    return Vocabularies(model.tokenizer.vocabulary)


def choice(*texts: str) -> ConstraintSpec:
    spec = find_constraint({"guided_choice": list(texts)}, ServerSettings())
    assert spec is not None
    return spec


def run(vocabularies: Vocabularies, scenario: Callable[[GrammarCompiler], Awaitable[T]], **limits: Any) -> T:
    async def main() -> T:
        settings = ServerSettings(**limits)
        compiler = GrammarCompiler(vocabularies, ValidationPool(size=0, timeout=5), settings)
        try:
            return await scenario(compiler)
        finally:
            vocabularies.gate.set()
            compiler.close()

    return asyncio.run(main())


def test_compiled_once_in_another_thread(vocabularies: Vocabularies) -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        together = await asyncio.gather(*(compiler.compile(choice("a", "b")) for _ in range(20)))
        again = await compiler.compile(choice("a", "b"))
        assert all(compiled is again for compiled in together)
        assert (again.least, again.spec.kind) == (2, "choice")

    run(vocabularies, scenario)
    assert len(vocabularies.threads) == 1
    assert threading.get_ident() not in vocabularies.threads


@pytest.mark.parametrize("limits", [{"compiled_grammars": 1}, {"compiled_bytes": 1}])
def test_what_is_kept_is_bounded(vocabularies: Vocabularies, limits: dict[str, int]) -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        for texts in ("a", "b", "b", "a"):
            await compiler.compile(choice(texts))

    run(vocabularies, scenario, **limits)
    assert len(vocabularies.threads) == 3


def test_a_compile_that_takes_too_long_is_an_answer(vocabularies: Vocabularies) -> None:
    vocabularies.gate.clear()

    async def scenario(compiler: GrammarCompiler) -> None:
        with pytest.raises(ApiError) as caught:
            await compiler.compile(choice("a"))
        assert (caught.value.code, caught.value.param) == ("schema_too_complex", "guided_choice")
        assert caught.value.headers["x-should-retry"] == "false"

    run(vocabularies, scenario, compile_timeout=0.05)


def test_giving_up_leaves_the_compile_to_the_others(vocabularies: Vocabularies) -> None:
    vocabularies.gate.clear()

    async def scenario(compiler: GrammarCompiler) -> None:
        first = asyncio.create_task(compiler.compile(choice("a")))
        second = asyncio.create_task(compiler.compile(choice("a")))
        await asyncio.sleep(0.01)
        first.cancel()
        vocabularies.gate.set()
        assert (await second).least == 2
        with pytest.raises(asyncio.CancelledError):
            await first

    run(vocabularies, scenario)
    assert len(vocabularies.threads) == 1
