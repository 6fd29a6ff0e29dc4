"""A `tokenizers.Tokenizer` from the tokenizer metadata of a GGUF file.

Two models cover the Llama family: `gpt2` (byte-level BPE with a merge list and a named pre-tokenizer) and `llama`
(SentencePiece BPE with scores and byte tokens). Each is built twice: once as the model was trained with, for prompts,
and once plain (no special tokens, no space put in front), for text that must be spelled exactly.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from structgen.grammar.token_bytes import SPACE_MARK, Spelling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
# `tokenizer.ggml.pre` -> how text is cut into words before merging: "words" and "digits" are GPT-2's own rule without
# and with single digits; anything else is a regex.
PRE_TOKENIZERS = {
    "default": "words",
    "gpt-2": "words",
    "gpt2": "words",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama-bpe": LLAMA3_WORDS,
    "llama3": LLAMA3_WORDS,
    "llama-v3": LLAMA3_WORDS,
    "qwen2": QWEN2_WORDS,
    "deepseek-r1-qwen": QWEN2_WORDS,
}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def spelling_of(metadata: dict[str, Any]) -> Spelling | None:
    """How the tokens are written; None for a tokenizer model that is not known here."""
    known: dict[str, Spelling] = {"gpt2": "byte-level", "llama": "sentencepiece"}
    return known.get(metadata.get("tokenizer.ggml.model", ""))


def token_types(metadata: dict[str, Any]) -> list[int]:
    """The type of each token; all NORMAL when the file does not say."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    return types


def build_tokenizer(metadata: dict[str, Any], *, plain: bool) -> Tokenizer:
    """The tokenizer, with special tokens and beginning-of-sequence rule, or without both when `plain`.

    Raises KeyError for an unknown pre-tokenizer name.
    """
    if spelling_of(metadata) == "byte-level":
        tokenizer = _byte_level(metadata)
    else:
        tokenizer = _sentencepiece(metadata, space_in_front=not plain)
    _add_tokens(tokenizer, metadata, plain=plain)
    if not plain:
        _add_beginning(tokenizer, metadata)
    return tokenizer


def _byte_level(metadata: dict[str, Any]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    rule = PRE_TOKENIZERS[metadata.get("tokenizer.ggml.pre", "default")]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # Vocabularies cut by a regex come from rank lists: a word that is a token is never merged up from pieces.
    by_rank = rule not in ("words", "digits")
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(metadata), merges=merges, ignore_merges=by_rank))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not by_rank)
    if by_rank:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated"), byte_level])
    elif rule == "digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: dict[str, Any], *, space_in_front: bool) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = _vocabulary(metadata)
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = _merges_by_score(metadata, vocabulary)
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    marks: list[Any] = [normalizers.Replace(" ", SPACE_MARK)]
    front = space_in_front and metadata.get("tokenizer.ggml.add_space_prefix", True)
    if front:
        marks.insert(0, normalizers.Prepend(SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(marks)
    parts: list[Any] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if front else parts)
    return tokenizer


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return {token: index for index, token in reversed(list(enumerate(tokens)))}


def _merges_by_score(metadata: dict[str, Any], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece merges the pair whose result has the best score: so each way to cut a token in two is a merge."""
    types, scores = token_types(metadata), metadata["tokenizer.ggml.scores"]
    usable = {token for token, index in vocabulary.items() if types[index] == TokenType.NORMAL}
    merges: list[tuple[float, int, str, str]] = []
    for token in usable:
        index = vocabulary[token]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in usable and right in usable:
                merges.append((-scores[index], index, left, right))
    merges.sort(key=lambda merge: (merge[0], merge[1], vocabulary[merge[2]], vocabulary[merge[3]]))
    return [(left, right) for _, _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, metadata: dict[str, Any], *, plain: bool) -> None:
    from tokenizers import AddedToken

    pairs = list(zip(metadata["tokenizer.ggml.tokens"], token_types(metadata), strict=True))
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in pairs if kind == TokenType.USER_DEFINED])
    if not plain:
        control = [AddedToken(t, normalized=False, special=True) for t, kind in pairs if kind == TokenType.CONTROL]
        tokenizer.add_special_tokens(control)


def _add_beginning(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    from tokenizers import processors

    default = metadata.get("tokenizer.ggml.model") == "llama"
    index = metadata.get("tokenizer.ggml.bos_token_id")
    if index is not None and metadata.get("tokenizer.ggml.add_bos_token", default):
        beginning = metadata["tokenizer.ggml.tokens"][index]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{beginning}:0 $A:0", pair=None, special_tokens=[(beginning, index)]
        )
