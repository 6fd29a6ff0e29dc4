"""SentencePiece `.model` files: a protobuf message, read by a small reader of our own.

Of the message `ModelProto`: field 1 is a piece (1 text, 2 score, 3 type) and repeats; field 2 the training settings
(3 model type, 35 byte fallback, 40 to 42 the ids of unknown, beginning and end); field 3 the normaliser (2 a compiled
character map, 3 a space put in front, 4 extra spaces removed, 5 spaces written as U+2581).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
UNIGRAM, BPE = 1, 2
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePieceError(ValueError):
    """The file is not a SentencePiece model, or it is damaged."""


@dataclass
class SentencePieceModel:
    """What the file says; lists are by id. The defaults are those of the format."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    space_behind: bool = False  # the dummy space is put behind the text, not in front
    add_dummy_prefix: bool = True
    remove_extra_spaces: bool = True
    escape_spaces: bool = True
    character_map: bytes = b""

    def piece_of(self, index: int) -> str | None:
        """The text of a control piece; ids beyond the vocabulary (-1: there is none) have none."""
        return self.pieces[index] if 0 <= index < len(self.pieces) else None


def read_model(data: bytes) -> SentencePieceModel:
    """Raises SentencePieceError."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == 1:
                _add_piece(model, value)
            elif number == 2:
                _read_training(model, value)
            elif number == 3:
                _read_normaliser(model, value)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise SentencePieceError("not a SentencePiece model, or damaged") from error
    if not model.pieces:
        raise SentencePieceError("not a SentencePiece model, or damaged")
    return model


def _add_piece(model: SentencePieceModel, message: bytes) -> None:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(message):
        if number == 1:
            text = value.decode()
        elif number == 2:
            (score,) = struct.unpack("<f", value)
        elif number == 3:
            kind = int(value)
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


def _read_training(model: SentencePieceModel, message: bytes) -> None:
    for number, value in _fields(message):
        if number == 3:
            model.model_type = int(value)
        elif number == 24:
            model.space_behind = bool(value)
        elif number == 35:
            model.byte_fallback = bool(value)
        elif number == 40:
            model.unk_id = _signed(value)
        elif number == 41:
            model.bos_id = _signed(value)
        elif number == 42:
            model.eos_id = _signed(value)


def _read_normaliser(model: SentencePieceModel, message: bytes) -> None:
    for number, value in _fields(message):
        if number == 2:
            model.character_map = bytes(value)
        elif number == 3:
            model.add_dummy_prefix = bool(value)
        elif number == 4:
            model.remove_extra_spaces = bool(value)
        elif number == 5:
            model.escape_spaces = bool(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value): an int for a varint, bytes for everything else. Raises IndexError where it is cut."""
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            length, at = _varint(message, at)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise SentencePieceError("not a SentencePiece model, or damaged")
        if at + length > size:
            raise IndexError(at)
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, lowest first, and where it ends."""
    value = message[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = message[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError(at)
