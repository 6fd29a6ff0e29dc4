from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, Vocabulary, vocabulary_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    return tmp_path / "structgen" / "vocabulary"


def tokens(seed: int = 1) -> list[bytes | None]:
    rng = random.Random(seed)
    letters = 'abcdé漢😀 "\\{}:,0123\n'
    texts = {"".join(rng.choices(letters, k=rng.randrange(2, 9))) for _ in range(6000)}
    return [*(bytes((byte,)) for byte in range(256)), *(text.encode() for text in sorted(texts)), b"", None]


def vocabulary(seed: int = 1, **options: Any) -> Vocabulary:
    listed = tokens(seed)
    return Vocabulary(listed, [len(listed) - 1], **options)


def flat(tables: tuple[Any, ...]) -> list[Any]:
    return [leaf for item in tables for leaf in (flat(item) if isinstance(item, tuple) else [item])]


def equal(one: Vocabulary, other: Vocabulary) -> bool:
    pairs = zip(flat((one.trie, one.plain_text)), flat((other.trie, other.plain_text)), strict=True)
    return all(
        type(a) is type(b) and np.array_equal(a, b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0)
        for a, b in pairs
    )


def test_what_is_read_equals_what_was_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = vocabulary()
    assert built.trie.nodes > 6000
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(Vocabulary, "_built", lambda self: pytest.fail("was not read"))
    read = vocabulary()
    assert equal(built, read)
    assert len(list(folder.iterdir())) == 1


def test_masks_are_the_same(folder: Path, allowed: Callable[..., set[int]]) -> None:
    masks = []
    for _ in range(2):
        matcher = Grammar.from_json_schema({"type": "object"}).compile(vocabulary()).matcher()
        assert matcher.accept(ord("{"))
        assert matcher.accept(ord('"'))
        masks.append(allowed(matcher))
    assert masks[0] == masks[1]
    assert len(masks[0]) > 1000


def test_other_vocabularies_have_other_files(folder: Path) -> None:
    listed = tokens()
    without = [None if i == 300 else token for i, token in enumerate(listed)]
    others = [
        vocabulary(),
        vocabulary(2),
        vocabulary(size=len(listed) + 64),
        Vocabulary(without, [len(listed) - 1]),
        Vocabulary(listed, [5]),
    ]
    assert all(one.trie.nodes for one in others)
    assert len(list(folder.iterdir())) == len(others)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "text", "pickle"])
def test_a_damaged_file_is_built_anew(folder: Path, damage: str) -> None:
    good = vocabulary()
    assert good.trie.nodes
    (path,) = folder.iterdir()
    data = path.read_bytes()
    if damage == "pickle":
        objects: dict[str, Any] = {"trie.byte": np.array([{"a": 1}], dtype=object)}
        np.savez(path, **objects)
    else:
        middle = len(data) // 2
        changed = data[:middle] + bytes((data[middle] ^ 1,)) + data[middle + 1 :]
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "changed": changed, "text": b"hello"}[damage])
    assert equal(good, vocabulary())
    assert path.read_bytes()[:2] == b"PK"
    assert vocabulary_cache.load(path.stem, type(good._tables)) is not None


def test_a_file_of_another_form_is_built_anew(folder: Path) -> None:
    good = vocabulary()
    assert good.trie.nodes
    (path,) = folder.iterdir()
    np.savez(path, something=np.zeros(3))
    assert equal(good, vocabulary())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "file"))
    assert vocabulary().trie.nodes > 6000


def test_a_disk_that_is_full_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert vocabulary().trie.nodes > 6000
    assert list(folder.iterdir()) == []


def test_the_oldest_files_are_dropped(folder: Path) -> None:
    folder.mkdir(parents=True)
    for age in range(20):
        path = folder / f"{age}.npz"
        path.write_bytes(b"")
        os.utime(path, (1000 - age, 1000 - age))
    assert vocabulary().trie.nodes
    names = {path.name for path in folder.iterdir()}
    assert len(names) == vocabulary_cache.MAX_FILES
    assert "0.npz" in names
    assert "19.npz" not in names


def test_small_vocabularies_are_not_kept(folder: Path) -> None:
    assert Vocabulary([b"a", None], [1]).trie.nodes == 1
    assert not folder.exists()
