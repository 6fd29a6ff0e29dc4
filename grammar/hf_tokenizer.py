"""What a parsed Hugging Face `tokenizer.json` says about its tokens, and its plain twin for exact text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from structgen.grammar.token_bytes import SPACE_MARK, Spelling, TokenizerFileError


def pieces_of(document: dict[str, Any]) -> dict[int, str]:
    model = document.get("model") or {}
    vocabulary = model.get("vocab")
    if model.get("type") == "WordPiece" or vocabulary is None:
        raise TokenizerFileError(
            f"tokenizers of type {model.get('type')} do not keep the bytes of a text",
            hint="use a model with a BPE or Unigram tokenizer",
        )
    if isinstance(vocabulary, dict):
        return {index: piece for piece, index in vocabulary.items()}
    return {index: piece for index, (piece, _) in enumerate(vocabulary)}


def unknown_ids(document: dict[str, Any], pieces: dict[int, str]) -> set[int]:
    model = document["model"]
    unknown = model.get("unk_token")
    named = {index for index, piece in pieces.items() if unknown is not None and piece == unknown}
    return named if model.get("unk_id") is None else named | {model["unk_id"]}


def spelling_of(document: dict[str, Any]) -> Spelling:
    kinds = {part["type"] for name in ("pre_tokenizer", "decoder") for part in _parts(document.get(name))}
    if "ByteLevel" in kinds:
        return "byte-level"
    marks = any(SPACE_MARK in json.dumps(document.get(key), ensure_ascii=False) for key in ("normalizer", "decoder"))
    if marks or {"Metaspace", "ByteFallback"} & kinds or document["model"].get("byte_fallback"):
        return "sentencepiece"
    return "literal"


def _parts(component: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    """A component of the pipeline, with sequences opened."""
    if not component:
        return []
    children = next((component[key] for key in ("normalizers", "pretokenizers", "decoders") if key in component), None)
    return [component] if children is None else [part for child in children for part in _parts(child)]


def plain_document(document: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer for exact text: no special tokens, no space in front, no normaliser but the space mark.

    Added tokens then take no whitespace beside them along (`lstrip`, `rstrip`): it would be lost.
    """
    kept = [part for part in _parts(document.get("normalizer")) if part["type"] == "Replace"]
    words = [
        part
        | ({"prepend_scheme": "never"} if part["type"] == "Metaspace" else {})
        | ({"add_prefix_space": False} if part["type"] == "ByteLevel" else {})
        for part in _parts(document.get("pre_tokenizer"))
    ]
    exact = {"lstrip": False, "rstrip": False}
    return document | {
        "added_tokens": [entry | exact for entry in document.get("added_tokens") or [] if not entry.get("special")],
        "normalizer": {"type": "Sequence", "normalizers": kept} if kept else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words} if words else None,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
