"""Tokenizers that are byte-pair ranks and a splitting pattern: tiktoken files, and Mistral's tekken.

Such a file has no merge list: pairs merge in the order of the rank of what they make.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

# The pattern that Llama 3 splits text with before merging (a tiktoken file does not carry its own).
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
LLAMA3_SPECIAL_COUNT = 256


def is_tiktoken(path: Path) -> bool:
    """Whether the file begins with a line of base64 and a rank."""
    with path.open("rb") as file:
        words = file.readline(200).split()
    return len(words) == 2 and words[1].isdigit() and words[0].translate(None, b"+/=").isalnum()


def read_tiktoken(path: Path) -> tuple[list[bytes | None], dict[str, int], Callable[[bytes], list[int]]]:
    """Tokens by id (special ones None), the special tokens by name, and the encoder.

    Raises:
        ValueError: a line is not base64 and a rank.
    """
    ranks: dict[bytes, int] = {}
    for line in path.read_bytes().splitlines():
        if line:
            text, rank = line.split()
            ranks[base64.b64decode(text)] = int(rank)
    names = [*_LLAMA3_SPECIAL]
    names += [f"<|reserved_special_token_{i}|>" for i in range(2, LLAMA3_SPECIAL_COUNT - len(names) + 2)]
    size = max(ranks.values()) + 1
    tokens: list[bytes | None] = [None] * (size + len(names))
    for spelled, place in ranks.items():
        tokens[place] = spelled
    return tokens, {name: size + i for i, name in enumerate(names)}, _encoder(ranks, LLAMA3_PATTERN, 0)


def read_tekken(document: dict[str, Any]) -> tuple[list[bytes | None], dict[str, int], Callable[[bytes], list[int]]]:
    """The same for the content of a `tekken.json`: special tokens come first there."""
    config = document["config"]
    first = int(config["default_num_special_tokens"])
    count = int(config["default_vocab_size"]) - first
    ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in document["vocab"][:count]}
    tokens: list[bytes | None] = [None] * (first + len(ranks))
    for spelled, place in ranks.items():
        tokens[first + place] = spelled
    special = {entry["token_str"]: int(entry["rank"]) for entry in document.get("special_tokens") or ()}
    special = special or {"<unk>": 0, "<s>": 1, "</s>": 2}
    return tokens, special, _encoder(ranks, str(config["pattern"]), first)


def is_tekken(document: Any) -> bool:
    return isinstance(document, dict) and "num_vocab_tokens" in document.get("config", {}) and "vocab" in document


def load_json(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def _encoder(ranks: dict[bytes, int], pattern: str, first: int) -> Callable[[bytes], list[int]]:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    splitter = Split(Regex(pattern), "isolated")

    @lru_cache(maxsize=1 << 16)
    def merged(piece: bytes) -> tuple[int, ...]:
        return tuple(first + ranks[part] for part in _merge(piece, ranks))

    def encode(text: bytes) -> list[int]:
        try:
            pieces = [piece.encode() for piece, _ in splitter.pre_tokenize_str(text.decode())]
        except UnicodeDecodeError:
            pieces = [text]
        return [token for piece in pieces for token in merged(piece)]

    return encode


def _merge(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge neighbours, lowest rank first. Quadratic, on pieces that are words."""
    if piece in ranks:
        return [piece]
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        best, place = min((ranks.get(a + b, 1 << 60), i) for i, (a, b) in enumerate(pairwise(parts)))
        if best == 1 << 60:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts
