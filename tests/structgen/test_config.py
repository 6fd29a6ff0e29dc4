from __future__ import annotations

from pathlib import Path

import pytest

from structgen import config


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STRUCTGEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.cache_folder() == tmp_path / "xdg" / "structgen"
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "own"))
    assert config.cache_folder() == tmp_path / "own" / "structgen"
    monkeypatch.delenv("STRUCTGEN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.cache_folder() == tmp_path / ".cache" / "structgen"


@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("yes", True), ("0", False), ("", False), ("false", False)]
)
def test_offline(monkeypatch: pytest.MonkeyPatch, value: str, offline: bool) -> None:
    monkeypatch.setenv("STRUCTGEN_OFFLINE", value)
    assert config.offline() is offline
