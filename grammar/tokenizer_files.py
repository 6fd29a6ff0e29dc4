"""Tokenizers as they come: a Hugging Face folder or `tokenizer.json`, a GGUF file, a tokenizer object.

What is wanted of each is the same: the exact bytes of every id, the ids that end an answer, and an encode that gives
the ids the model was trained on. `tokenizers` is imported when a file is opened, not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structgen.grammar import hf_tokenizer, tiktoken_files
from structgen.grammar.gguf_metadata import GGUFError, read_metadata
from structgen.grammar.gguf_tokenizer import PRE_TOKENIZERS, TokenType, build_tokenizer, spelling_of, token_types
from structgen.grammar.token_bytes import Speller, Spelling, TokenizerFileError, token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Special tokens that end an answer in the families we know, whether or not the files name them as such.
CHATML_ENDS = ("<|im_end|>", "<|endoftext|>", "<|end|>", "<|EOT|>")
LLAMA_ENDS = ("</s>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<eos>", "<end_of_turn>")
END_TOKENS = frozenset({*CHATML_ENDS, *LLAMA_ENDS})


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """One tokenizer, read.

    Attributes:
        tokens: bytes per id; None for special, control and unused ids, which are never generated inside a value.
        eos_token_ids: every id that ends an answer.
        encode: bytes -> ids that spell them exactly; ValueError when the vocabulary cannot.
        backend: the tokenizer with its special tokens, for prompts.
        special: text of each special token -> id.
        size: width of the model's logits where a configuration says so, else the number of tokens.
    """

    tokens: list[bytes | None]
    eos_token_ids: frozenset[int]
    encode: Callable[[bytes], list[int]]
    backend: Tokenizer | None
    special: dict[str, int]
    size: int
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None


def load_tokenizer(path_or_tokenizer: Any) -> TokenizerFile:
    """Read a `tokenizer.json`, a folder with one, a `.gguf` file, or a tokenizers/transformers tokenizer object.

    Raises TokenizerFileError for a kind that is not supported, OSError for a file that cannot be read.
    """
    if isinstance(path_or_tokenizer, str | Path):
        return _load_path(Path(path_or_tokenizer).expanduser())
    if callable(getattr(path_or_tokenizer, "to_str", None)):
        return _from_document(json.loads(path_or_tokenizer.to_str()), {})
    backend = getattr(path_or_tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return _from_document(json.loads(backend.to_str()), _settings_of_object(path_or_tokenizer))
    kind = type(path_or_tokenizer).__name__
    raise TokenizerFileError(
        f"a {kind} is not a tokenizer that can be read",
        hint="give a path, a tokenizers.Tokenizer, or a fast transformers tokenizer",
    )


def _load_path(path: Path) -> TokenizerFile:
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.is_dir():
        document = path / "tokenizer.json"
        if document.exists():
            return _from_document(_read_json(document), _settings_of_folder(path))
        kinds = sorted(entry.name for entry in path.glob("*.model")) + sorted(e.name for e in path.glob("*.tiktoken"))
        found = f" ({kinds[0]} is there, but SentencePiece and tiktoken files are not read yet)" if kinds else ""
        raise TokenizerFileError(f"no tokenizer.json in {path}{found}", hint="save the tokenizer as tokenizer.json")
    if path.suffix in (".model", ".tiktoken"):
        if tiktoken_files.is_tiktoken(path):
            return _from_ranks(tiktoken_files.read_tiktoken(path))
        raise TokenizerFileError(
            f"{path.name}: SentencePiece files are not read yet", hint="give the model's tokenizer.json"
        )
    content = _read_json(path)
    if tiktoken_files.is_tekken(content):
        return _from_ranks(tiktoken_files.read_tekken(content))
    return _from_document(content, _settings_of_folder(path.parent))


def _from_ranks(
    loaded: tuple[list[bytes | None], dict[str, int], Callable[[bytes], list[int]]],
) -> TokenizerFile:
    """A tokenizer of byte-pair ranks; it has no `backend`, since nothing but bytes is encoded with it."""
    tokens, special, encode = loaded
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=_ends(set(), special, None),
        encode=Speller(tokens, lambda text: encode(text.encode())),
        backend=None,
        special=special,
        size=len(tokens),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise TokenizerFileError(f"{path} does not hold a JSON object")
    return document


# -- Hugging Face ---------------------------------------------------------------------------------------------------


def _settings_of_folder(folder: Path) -> dict[str, Any]:
    """What the files beside a tokenizer.json say: chat template, special tokens, ends, logit width."""
    settings: dict[str, Any] = {"eos_token_ids": []}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            document = _read_json(folder / name)
            ends = document.get("eos_token_id")
            settings["eos_token_ids"] += ends if isinstance(ends, list) else [] if ends is None else [ends]
            settings |= {key: document[key] for key in ("vocab_size",) if name == "config.json" and key in document}
            if name == "tokenizer_config.json":
                settings |= {key: document.get(key) for key in ("chat_template", "bos_token", "eos_token")}
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = template.read_text("utf-8")
    return settings


def _settings_of_object(tokenizer: Any) -> dict[str, Any]:
    ends = getattr(tokenizer, "eos_token_id", None)
    names = ("chat_template", "bos_token", "eos_token")
    return {name: getattr(tokenizer, name, None) for name in names} | {
        "eos_token_ids": ends if isinstance(ends, list) else [] if ends is None else [ends]
    }


def _from_document(document: dict[str, Any], settings: dict[str, Any]) -> TokenizerFile:
    """A tokenizer.json, parsed, and what lies beside it."""
    from tokenizers import Tokenizer

    spelling, added = hf_tokenizer.spelling_of(document), document.get("added_tokens") or []
    pieces = hf_tokenizer.pieces_of(document) | {entry["id"]: entry["content"] for entry in added}
    special = {entry["content"]: entry["id"] for entry in added if entry.get("special")}
    literal = {entry["id"] for entry in added}
    tokens: list[bytes | None] = [None] * (max(pieces, default=-1) + 1)
    unusable = {*special.values(), *hf_tokenizer.unknown_ids(document, pieces)}
    for index, piece in pieces.items():
        if index not in unusable:
            tokens[index] = piece.encode() if index in literal else token_bytes(piece, spelling)
    backend = Tokenizer.from_str(json.dumps(document))
    backend.no_truncation()
    backend.no_padding()
    plain = Tokenizer.from_str(json.dumps(hf_tokenizer.plain_document(document)))
    bos, eos = _content(settings.get("bos_token")), _content(settings.get("eos_token"))
    ends = {index for index in settings.get("eos_token_ids", []) if isinstance(index, int)}
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=_ends(ends, special, eos),
        encode=Speller(tokens, lambda text: list(plain.encode(text, add_special_tokens=False).ids)),
        backend=backend,
        special=special,
        size=max(len(tokens), settings.get("vocab_size") or 0),
        chat_template=_default_template(settings.get("chat_template")),
        bos_token=bos,
        eos_token=eos,
    )


def _content(token: Any) -> str | None:
    """Special tokens are written as a string or as an object with `content`."""
    return token.get("content") if isinstance(token, dict) else None if token is None else str(token)


def _default_template(template: Any) -> str | None:
    """A chat template, or the one named `default` of several."""
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _ends(ids: set[int], special: dict[str, int], eos: str | None) -> frozenset[int]:
    return frozenset(ids | {index for text, index in special.items() if text in END_TOKENS or text == eos})


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
    plain = build_tokenizer(metadata, plain=True)
    named = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    ends = {index for key, index in named.items() if index is not None and key != "bos"}
    return TokenizerFile(
        tokens=tokens,
        eos_token_ids=_ends(ends, special, None),
        encode=Speller(tokens, lambda text: list(plain.encode(text, add_special_tokens=False).ids)),
        backend=build_tokenizer(metadata, plain=False),
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
