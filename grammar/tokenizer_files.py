"""Tokenizers as they come: a folder, a `tokenizer.json`, GGUF, SentencePiece or tiktoken file, a tokenizer object.

What is wanted of each is the same: the exact bytes of every id, the ids that end an answer, and an encode that gives
the ids the model was trained on. `tokenizers` is imported, and a tokenizer for prompts built, when first needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structgen.grammar import hf_tokenizer, tiktoken_files
from structgen.grammar.gguf_metadata import GGUFError, read_metadata
from structgen.grammar.gguf_tokenizer import PRE_TOKENIZERS, TokenType, build_tokenizer, spelling_of, token_types
from structgen.grammar.sentencepiece_encode import SentencePieceEncoder
from structgen.grammar.sentencepiece_model import SentencePieceError, read_model
from structgen.grammar.sentencepiece_tokenizer import (
    build_backend,
    bytes_of_pieces,
    check_kind,
    special_tokens,
    with_added_tokens,
)
from structgen.grammar.token_bytes import Speller, Spelling, TokenizerFileError, token_bytes
from structgen.grammar.tokenizer_settings import (
    added_tokens_of_folder,
    content,
    default_template,
    ends_of,
    read_json_text,
    settings_of_folder,
    settings_of_object,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BESIDE = ("tokenizer.json", "tokenizer.model", "tekken.json")  # what a folder is searched for, in this order


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """One tokenizer, read.

    Attributes:
        tokens: bytes per id; None for special, control and unused ids, which are never generated inside a value.
        eos_token_ids: every id that ends an answer.
        encode: bytes -> ids that spell them exactly; ValueError when the vocabulary cannot.
        make_backend: builds `backend`, the tokenizer with its special tokens, for prompts.
        special: text of each special token -> id.
        size: width of the model's logits where a configuration says so, else the number of tokens.
    """

    tokens: list[bytes | None]
    eos_token_ids: frozenset[int]
    encode: Callable[[bytes], list[int]]
    special: dict[str, int]
    size: int
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    make_backend: Callable[[], Tokenizer] | None = field(default=None, repr=False)

    @cached_property
    def backend(self) -> Tokenizer | None:
        """For prompts; None where there is nothing but `encode`."""
        return None if self.make_backend is None else self.make_backend()


def load_tokenizer(path_or_tokenizer: Any) -> TokenizerFile:
    """Read a tokenizer from a file of any known kind, a folder with one, or a tokenizers/transformers object.

    Raises TokenizerFileError for a kind that is not supported, OSError for a file that cannot be read.
    """
    if isinstance(path_or_tokenizer, str | Path):
        path = Path(path_or_tokenizer).expanduser()
        return _load_file(_file_in(path) if path.is_dir() else path)
    if callable(getattr(path_or_tokenizer, "to_str", None)):
        return _from_text(path_or_tokenizer.to_str(), {})
    backend = getattr(path_or_tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return _from_text(backend.to_str(), settings_of_object(path_or_tokenizer))
    kind = type(path_or_tokenizer).__name__
    raise TokenizerFileError(
        f"a {kind} is not a tokenizer that can be read",
        hint="give a path, a tokenizers.Tokenizer, or a fast transformers tokenizer",
    )


def _file_in(folder: Path) -> Path:
    found = [folder / name for name in BESIDE if (folder / name).is_file()]
    found += sorted(folder.glob("*.model")) + sorted(folder.glob("*.tiktoken"))
    if not found:
        raise TokenizerFileError(
            f"no tokenizer in {folder}", hint="expected tokenizer.json, tokenizer.model, tekken.json or *.tiktoken"
        )
    return found[0]


def _load_file(path: Path) -> TokenizerFile:
    """By what is in the file: names as `tokenizer.model.v3` say little."""
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix == ".gguf" or start == b"GGUF":
        return _from_gguf(path)
    if path.suffix == ".json" or start.lstrip()[:1] == b"{":
        text, document = read_json_text(path)
        if tiktoken_files.is_tekken(document):
            return _from_ranks(tiktoken_files.read_tekken(document), path)
        return _from_document(document, text, settings_of_folder(path.parent))
    if tiktoken_files.is_tiktoken(path):
        return _from_ranks(tiktoken_files.read_tiktoken(path), path)
    return _from_sentencepiece(path)


def _from_ranks(
    loaded: tuple[list[bytes | None], dict[str, int], Callable[[bytes], list[int]]], path: Path
) -> TokenizerFile:
    """A tokenizer of byte-pair ranks; it has no `backend`, since nothing but bytes is encoded with it."""
    tokens, special, encode = loaded
    settings = settings_of_folder(path.parent)
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=ends_of(_ids(settings), special, content(settings.get("eos_token"))),
        encode=Speller(tokens, lambda text: encode(text.encode())),
        special=special,
        size=max(len(tokens), settings.get("vocab_size") or 0),
    )


# -- Hugging Face ---------------------------------------------------------------------------------------------------


def _from_text(text: str, settings: dict[str, Any]) -> TokenizerFile:
    return _from_document(json.loads(text), text, settings)


def _from_document(document: dict[str, Any], text: str, settings: dict[str, Any]) -> TokenizerFile:
    """A tokenizer.json, parsed and as text, and what lies beside it. Only the text is kept: it is far smaller."""
    spelling, added = hf_tokenizer.spelling_of(document), document.get("added_tokens") or []
    pieces = hf_tokenizer.pieces_of(document) | {entry["id"]: entry["content"] for entry in added}
    special = {entry["content"]: entry["id"] for entry in added if entry.get("special")}
    literal = {entry["id"] for entry in added}
    tokens: list[bytes | None] = [None] * (max(pieces, default=-1) + 1)
    unusable = {*special.values(), *hf_tokenizer.unknown_ids(document, pieces)}
    for index, piece in pieces.items():
        if index not in unusable:
            tokens[index] = piece.encode() if index in literal else token_bytes(piece, spelling)
    plain = cache(lambda: _tokenizer_of(json.dumps(hf_tokenizer.plain_document(json.loads(text)))))
    bos, eos = content(settings.get("bos_token")), content(settings.get("eos_token"))
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=ends_of(_ids(settings), special, eos),
        encode=Speller(tokens, lambda text: list(plain().encode(text, add_special_tokens=False).ids)),
        make_backend=lambda: _tokenizer_of(text),
        special=special,
        size=max(len(tokens), settings.get("vocab_size") or 0),
        chat_template=default_template(settings.get("chat_template")),
        bos_token=bos,
        eos_token=eos,
    )


def _ids(settings: dict[str, Any]) -> set[int]:
    return {index for index in settings.get("eos_token_ids", []) if isinstance(index, int)}


def _tokenizer_of(text: str) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


# -- SentencePiece --------------------------------------------------------------------------------------------------


def _from_sentencepiece(path: Path) -> TokenizerFile:
    try:
        model = read_model(path.read_bytes())
    except SentencePieceError as error:
        raise TokenizerFileError(f"{path.name}: {error}", hint="give a tokenizer.json or tokenizer.model") from None
    check_kind(model)
    settings = settings_of_folder(path.parent)
    model = with_added_tokens(model, added_tokens_of_folder(path.parent))
    tokens, special = bytes_of_pieces(model), special_tokens(model)
    bos, eos = model.piece_of(model.bos_id), model.piece_of(model.eos_id)
    encoder = cache(lambda: SentencePieceEncoder(model))
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=ends_of(_ids(settings), special, content(settings.get("eos_token")) or eos),
        encode=Speller(tokens, lambda text: encoder()(text)),
        special=special,
        size=max(len(tokens), settings.get("vocab_size") or 0),
        chat_template=default_template(settings.get("chat_template")),
        bos_token=content(settings.get("bos_token")) or bos,
        eos_token=content(settings.get("eos_token")) or eos,
        make_backend=lambda: build_backend(model),
    )


# -- GGUF -----------------------------------------------------------------------------------------------------------


def _from_gguf(path: Path) -> TokenizerFile:
    try:
        metadata = read_metadata(path)
    except GGUFError as error:
        raise TokenizerFileError(str(error), hint="the file may be damaged or only partly copied") from None
    spelling = spelling_of(metadata)
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if spelling is None:
        raise TokenizerFileError(f"GGUF tokenizer model {metadata.get('tokenizer.ggml.model')!r} is not supported yet")
    if spelling == "byte-level" and pre not in PRE_TOKENIZERS:
        raise TokenizerFileError(
            f"GGUF pre-tokenizer {pre!r} is not supported yet", hint="use the model's Hugging Face folder"
        )
    pieces, types = metadata["tokenizer.ggml.tokens"], token_types(metadata)
    tokens = [_gguf_bytes(piece, kind, spelling) for piece, kind in zip(pieces, types, strict=True)]
    special = {p: i for i, (p, kind) in enumerate(zip(pieces, types, strict=True)) if kind == TokenType.CONTROL}
    plain = cache(lambda: build_tokenizer(metadata, plain=True))
    named = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    ends = {index for key, index in named.items() if index is not None and key != "bos"}
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=ends_of(ends, special, None),
        encode=Speller(tokens, lambda text: list(plain().encode(text, add_special_tokens=False).ids)),
        make_backend=lambda: build_tokenizer(metadata, plain=False),
        special=special,
        size=max(len(tokens), metadata.get("llama.vocab_size") or 0),
        chat_template=metadata.get("tokenizer.chat_template"),
        bos_token=None if named["bos"] is None else pieces[named["bos"]],
        eos_token=None if named["eos"] is None else pieces[named["eos"]],
    )


def _gguf_bytes(piece: str, kind: int, spelling: Spelling) -> bytes | None:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
        return None
    if kind == TokenType.USER_DEFINED:
        return piece.encode()
    return token_bytes(piece, spelling)
