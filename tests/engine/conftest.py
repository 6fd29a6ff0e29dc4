"""What tests of the engine share: a small byte-pair vocabulary, and an engine on a fake runner of that width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from structgen.engine import Engine
from structgen.grammar import Vocabulary
from tests.engine.hash_runner import VOCABULARY, HashRunner

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more threads, and lose much where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_vocabulary() -> Vocabulary:
    """The 256 bytes, merges, and EOS."""
    return VOCABULARY


@pytest.fixture(params=[1, 2], ids=["depth 1", "depth 2"], scope="session")
def depth(request: pytest.FixtureRequest) -> int:
    depth: int = request.param
    return depth


@pytest.fixture(scope="session")
def make_engine() -> MakeEngine:
    """(max_batch, depth, pages=..., options of Engine) -> Engine on a HashRunner."""

    def make(max_batch: int, depth: int, *, pages: int = 1024, **options: Any) -> Engine:
        return Engine(
            HashRunner(pages, max_batch=max_batch, threaded=depth > 1), max_batch=max_batch, depth=depth, **options
        )

    return make
