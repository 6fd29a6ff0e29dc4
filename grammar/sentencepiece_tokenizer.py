"""What a SentencePiece model says about its tokens: their bytes, the special ones, and a tokenizer for prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from structgen.grammar.gguf_tokenizer import build_tokenizer
from structgen.grammar.sentencepiece_model import BPE, MODEL_TYPES, UNIGRAM, PieceType, SentencePieceModel
from structgen.grammar.token_bytes import SPACE_MARK, TokenizerFileError, token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def check_kind(model: SentencePieceModel) -> None:
    """Raises TokenizerFileError for the kinds that do not keep a text."""
    if model.model_type not in (BPE, UNIGRAM):
        kind = MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise TokenizerFileError(
            f"SentencePiece models of type {kind} are not supported", hint="use a model with a BPE or unigram tokenizer"
        )


def bytes_of_pieces(model: SentencePieceModel) -> list[bytes | None]:
    return [_bytes_of(model, piece, kind) for piece, kind in zip(model.pieces, model.types, strict=True)]


def _bytes_of(model: SentencePieceModel, piece: str, kind: int) -> bytes | None:
    if kind == PieceType.BYTE:
        return token_bytes(piece, "sentencepiece")
    if kind not in (PieceType.NORMAL, PieceType.USER_DEFINED):
        return None
    return (piece.replace(SPACE_MARK, " ") if model.escape_spaces else piece).encode()


def special_tokens(model: SentencePieceModel) -> dict[str, int]:
    """Text -> id of the control tokens."""
    named = zip(model.pieces, model.types, strict=True)
    return {piece: index for index, (piece, kind) in enumerate(named) if kind == PieceType.CONTROL}


def with_added_tokens(model: SentencePieceModel, added: Mapping[int, tuple[str, bool]]) -> SentencePieceModel:
    """The model with the tokens that files beside it add: id -> (text, whether it is special)."""
    model = dataclasses.replace(
        model, pieces=[*model.pieces], scores=[*model.scores], types=[*model.types]
    )  # the lists are changed below
    for index, (text, special) in sorted(added.items()):
        missing = index + 1 - len(model.pieces)
        model.pieces += [""] * missing
        model.scores += [0.0] * missing
        model.types += [PieceType.UNUSED] * missing
        if missing <= 0 and model.types[index] not in (PieceType.NORMAL, PieceType.UNUSED, PieceType.USER_DEFINED):
            continue  # <unk>, <s> and </s> are listed again there
        model.pieces[index] = text if special or not model.escape_spaces else text.replace(" ", SPACE_MARK)
        model.types[index] = PieceType.CONTROL if special else PieceType.USER_DEFINED
    return model


def build_backend(model: SentencePieceModel) -> Tokenizer:
    """The tokenizer for prompts: special tokens, the beginning of a text, the space in front, the character map."""
    from tokenizers import normalizers

    if model.model_type == BPE:
        tokenizer = build_tokenizer(_as_metadata(model), plain=False)
    else:
        tokenizer = _unigram(model)
    parts: list[Any] = [normalizers.Precompiled(model.character_map)] if model.character_map else []
    if model.remove_extra_spaces:
        parts += [normalizers.Strip(), normalizers.Replace(_runs_of_spaces(), " ")]
    if parts:
        tokenizer.normalizer = normalizers.Sequence([*parts, tokenizer.normalizer])
    return tokenizer


def _runs_of_spaces() -> Any:
    from tokenizers import Regex

    return Regex(" {2,}")


def _as_metadata(model: SentencePieceModel) -> dict[str, Any]:
    """As a GGUF file would say it."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": model.pieces,
        "tokenizer.ggml.token_type": model.types,
        "tokenizer.ggml.scores": model.scores,
        "tokenizer.ggml.unknown_token_id": max(model.unk_id, 0),
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix and not model.space_behind,
    } | ({"tokenizer.ggml.bos_token_id": model.bos_id} if model.piece_of(model.bos_id) is not None else {})


def _unigram(model: SentencePieceModel) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    worst = min(model.scores, default=0.0)
    scores = [worst if kind == PieceType.UNUSED else s for s, kind in zip(model.scores, model.types, strict=True)]
    unknown = model.unk_id if model.piece_of(model.unk_id) is not None else None
    tokenizer = Tokenizer(
        models.Unigram(list(zip(model.pieces, scores, strict=True)), unk_id=unknown, byte_fallback=model.byte_fallback)
    )
    marks: list[Any] = [normalizers.Replace(" ", SPACE_MARK)]
    if model.add_dummy_prefix and not model.space_behind:
        marks.insert(0, normalizers.Prepend(SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    pairs = list(zip(model.pieces, model.types, strict=True))
    tokenizer.add_tokens([AddedToken(p, normalized=False) for p, kind in pairs if kind == PieceType.USER_DEFINED])
    control = [AddedToken(p, normalized=False, special=True) for p, kind in pairs if kind == PieceType.CONTROL]
    tokenizer.add_special_tokens(control)
    return tokenizer
