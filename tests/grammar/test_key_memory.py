"""The memory of keys against its slow twin, which reads the whole text again for every token."""

from __future__ import annotations

import random

import numpy as np
import pytest

from structgen.grammar.key_memory import KeyMemory
from structgen.grammar.seen_keys import seen_keys
from structgen.grammar.vocabulary import Vocabulary

PIECES = [
    *(bytes((i,)) for i in b'{}[]":,ab1\\'),
    *(b'"a', b'a"', b'"a"', b'"a":', b'"":"","', b'":"","', b'","a"', b'{"a":1,"', b'","a":"b","b":', b"\\", b'\\"'),
]
VOCABULARY = Vocabulary([*PIECES, b"", None], [len(PIECES) + 1])


def _object(rng: random.Random, depth: int) -> str:
    """The text of an object, in which keys may come twice."""
    members = []
    for _ in range(rng.randrange(4)):
        key = rng.choice(["", "a", "b", "ab", ":", ",", 'a\\"', "\\\\"])
        value = rng.choice(["1", '"a"', '""', "[]", '[{"a":1}]', _object(rng, depth - 1) if depth else "{}"])
        members.append(f'"{key}":{value}')
    return "{" + ",".join(members) + "}"


def _tokens(rng: random.Random, text: bytes) -> list[int]:
    """A text cut into tokens at random."""
    ids = []
    while text:
        fitting = [i for i, piece in enumerate(PIECES) if text.startswith(piece)]
        ids.append(rng.choice(fitting))
        text = text[len(PIECES[ids[-1]]) :]
    return ids


def _expected(text: bytes) -> list[int]:
    return [i for i, piece in enumerate(PIECES) if seen_keys(text + piece).repeated]


@pytest.mark.parametrize("seed", range(60))
def test_forbids_what_would_repeat_a_key(seed: int) -> None:
    rng = random.Random(seed)
    text = _object(rng, 2).encode()
    ids = _tokens(rng, text)
    memory = KeyMemory(VOCABULARY)
    done: list[int] = []
    for token in ids:
        whole = b"".join(PIECES[i] for i in done)
        if seen_keys(whole).repeated:
            break
        memory.update(done)
        assert [i for i in range(len(PIECES)) if memory.would_repeat(i)] == _expected(whole)
        row = np.full(VOCABULARY.mask_words, -1, np.int32)
        memory.forbid(row)
        forbidden = [i for i in range(len(PIECES)) if not row[0] >> i & 1]
        assert forbidden == _expected(whole), whole
        done.append(token)
        if rng.random() < 0.2:  # go back, and on by another way to cut the text
            kept = rng.randrange(len(done) + 1)
            memory.truncate(kept)
            del done[kept:]
            memory.update(done)
            rest = text[len(b"".join(PIECES[i] for i in done)) :]
            done += _tokens(rng, rest[: rng.randrange(len(rest) + 1)])


def test_long_texts_get_more_room() -> None:
    text = b"{" + b",".join(b'"%d":{"a":1}' % i for i in range(1000)) + b',"999'
    memory = KeyMemory(Vocabulary([bytes((i,)) for i in range(256)], []), text[:10])
    memory.update(list(text[10:40]))
    memory.update(list(text[10:]))
    assert memory.would_repeat(ord('"'))
    assert not memory.would_repeat(ord("9"))
