"""Tokenizers of byte-pair ranks: small files of our own, merged by hand."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from structgen.grammar import Vocabulary
from structgen.grammar.tokenizer_files import load_tokenizer

pytest.importorskip("tokenizers")

MERGES = [b"ab", b"abc", b" a", b"\xc3\xa9", b" ab"]


def lines_of(tokens: list[bytes]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


@pytest.fixture
def tiktoken(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.model"
    path.write_text(lines_of([bytes((i,)) for i in range(256)] + MERGES))
    return path


def test_tokens_and_special_tokens(tiktoken: Path) -> None:
    loaded = load_tokenizer(tiktoken)
    assert loaded.tokens[:256] == [bytes((i,)) for i in range(256)]
    assert loaded.tokens[256:261] == MERGES
    assert loaded.tokens[261:] == [None] * 256
    assert loaded.eos_token_ids == {loaded.special[name] for name in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", [b"abc"]),
        ("abab", [b"ab", b"ab"]),
        ("x abc", [b"x", b" ", b"abc"]),  # the lower rank merges first, and then nothing joins the blank
        ("é", [b"\xc3\xa9"]),
        ("12345", [b"1", b"2", b"3", b"4", b"5"]),
    ],
)
def test_pairs_merge_by_rank(tiktoken: Path, text: str, tokens: list[bytes]) -> None:
    vocabulary = Vocabulary.from_tokenizer(tiktoken)
    assert [vocabulary.tokens[i] for i in vocabulary.encode(text.encode())] == tokens


def test_bytes_that_are_no_text_are_spelled(tiktoken: Path) -> None:
    vocabulary = Vocabulary.from_tokenizer(tiktoken)
    ids = vocabulary.encode(b"a\xff\xc3")
    assert b"".join(vocabulary.tokens[i] or b"" for i in ids) == b"a\xff\xc3"


def test_tekken(tmp_path: Path) -> None:
    tokens = [bytes((i,)) for i in range(256)] + [b"ab"]
    document = {
        "config": {
            "pattern": r"\s+|\S+",
            "num_vocab_tokens": 300,
            "default_vocab_size": 257 + 3,
            "default_num_special_tokens": 3,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
    }
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(document))
    vocabulary = Vocabulary.from_tokenizer(path)
    assert vocabulary.tokens[:3] == (None, None, None)
    assert vocabulary.eos_token_ids == {2}
    assert [vocabulary.tokens[i] for i in vocabulary.encode(b"abb")] == [b"ab", b"b"]
