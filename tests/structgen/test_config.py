from __future__ import annotations

from pathlib import Path

import pytest

from structgen import config
from structgen.engine.bench import default_model
from structgen.grammar import numba_cache


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/structgen"),
        ({"XDG_CACHE_HOME": "/xdg", "STRUCTGEN_CACHE": "/own"}, "/own/structgen"),
        ({"STRUCTGEN_CACHE": "~/own"}, "/home/someone/own/structgen"),
        ({"STRUCTGEN_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/someone/.cache/structgen"),
        ({}, "/home/someone/.cache/structgen"),
    ],
)
def test_models_compiled_code_and_tables_share_one_folder_that_follows_the_environment(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STRUCTGEN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/someone", **given}.items():
        monkeypatch.setenv(name, value)
    assert config.cache_folder() == Path(expected)
    assert numba_cache.cache_folder() == Path(expected)
    assert default_model().is_relative_to(expected)


@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("yes", True), ("0", False), ("", False), ("false", False)]
)
def test_offline(monkeypatch: pytest.MonkeyPatch, value: str, offline: bool) -> None:
    monkeypatch.setenv("STRUCTGEN_OFFLINE", value)
    assert config.offline() is offline
