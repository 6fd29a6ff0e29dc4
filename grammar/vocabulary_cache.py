"""A vocabulary's tables on disk: arrays only, no pickle, one file for each vocabulary.

The key is a hash of all that goes in, and of the sources that make the tables. Nothing depends on a file: one that is
missing, damaged or cannot be written means that the tables are built.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from structgen.grammar.numba_cache import cache_folder
from structgen.grammar.tables import Array

MAX_FILES = 16  # the least recently used are dropped; a file of 131,000 tokens has 6 MB
LEAST_TOKENS = 4096  # smaller vocabularies are built as fast as they are read

_SOURCES = ("token_trie.py", "plain_text.py", "blank_tokens.py", "vocabulary_cache.py")

T = TypeVar("T", bound=tuple[Any, ...])


def key_of(blob: Array, starts: Array, mask_words: int) -> str:
    """For tokens as `Vocabulary.token_bytes` has them: special, missing and empty ones are all without bytes."""
    digest = hashlib.sha256(f"{mask_words} {len(starts)} ".encode())
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    digest.update(starts.tobytes())
    digest.update(blob.tobytes())
    return digest.hexdigest()[:32]


def load(key: str, kind: type[T]) -> T | None:
    """Named tuples of arrays, numbers and named tuples, as `save` has stored them; None when there are none."""
    path = _folder() / f"{key}.npz"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        found = _restored(kind, "", arrays)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None
    with suppress(OSError):
        os.utime(path)
    return found


def save(key: str, value: tuple[Any, ...]) -> None:
    """Store, or leave it where the folder cannot be written."""
    folder = _folder()
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            np.savez(file, **_flat(value, ""))
        os.replace(temporary, folder / f"{key}.npz")
        _drop_oldest(folder)
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _folder() -> Path:
    return cache_folder() / "vocabulary"


def _drop_oldest(folder: Path) -> None:
    files = [(path.stat().st_mtime, path) for path in folder.iterdir() if path.suffix in (".npz", ".tmp")]
    for _, path in sorted(files, reverse=True)[MAX_FILES:]:
        path.unlink(missing_ok=True)


def _flat(value: tuple[Any, ...], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value._asdict().items():  # type: ignore[attr-defined]
        if isinstance(item, tuple):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = np.asarray(item)
    return flat


def _restored(kind: type[T], prefix: str, arrays: dict[str, Array]) -> T:
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, tuple):
            fields[name] = _restored(hint, f"{prefix}{name}.", arrays)
        else:
            array = arrays[prefix + name]
            fields[name] = int(array) if hint is int else array
    return kind(**fields)
