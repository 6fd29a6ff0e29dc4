"""What bytes a token stands for, and which tokens a tokenizer would use for given bytes.

Three spellings of tokens exist. Byte-level BPE writes each byte as one printable character (`Ġ` for a space).
SentencePiece kinds write a space as U+2581 and a byte without a character of its own as `<0xNN>`. Plain vocabularies
hold the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

Spelling = Literal["byte-level", "sentencepiece", "literal"]

SPACE_MARK = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerFileError(ValueError):
    """The tokenizer cannot be used; `hint` says what to give instead."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def _byte_level_table() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 stands for itself; the other 68 bytes follow in order from U+0100."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    table = {chr(byte): byte for byte in printable}
    shifted = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + index): byte for index, byte in enumerate(shifted)}


BYTE_OF_CHARACTER = _byte_level_table()


def token_bytes(token: str, spelling: Spelling) -> bytes | None:
    """The bytes of an ordinary token, or None when the spelling cannot produce it (so it is never generated)."""
    if spelling == "byte-level":
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in token])
        except KeyError:
            return None
    if spelling == "sentencepiece":
        if match := BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(SPACE_MARK, " ").encode()
    return token.encode()


class Speller:
    """Bytes -> token ids: as the tokenizer itself would where it can, and always exactly those bytes.

    `canonical` is the tokenizer's own encode of a text, without special tokens and without a space put in front; None
    when there is none. Its answer is used when it spells the text exactly (a normaliser may have changed it). The rest,
    such as the half of a UTF-8 character, is covered by the longest tokens that fit.
    """

    def __init__(self, tokens: Sequence[bytes | None], canonical: Callable[[str], list[int]] | None) -> None:
        self.tokens = tokens
        self.canonical = canonical
        # reversed: of several ids with the same bytes the lowest wins
        self.id_of = {token: index for index, token in reversed(list(enumerate(tokens))) if token}
        self.longest = max(map(len, self.id_of), default=0)

    def __call__(self, data: bytes) -> list[int]:
        """Ids whose bytes concatenate to `data`. Raises ValueError when the vocabulary cannot spell it."""
        try:
            text, rest = data.decode(), b""
        except UnicodeDecodeError as error:
            text, rest = data[: error.start].decode(), data[error.start :]
        ids = self._canonical_ids(text) if text else []
        return ids + self.longest_match(rest)

    def _canonical_ids(self, text: str) -> list[int]:
        data = text.encode()
        if self.canonical is not None:
            ids = self.canonical(text)
            if self.spells(ids, data):
                return ids
        return self.longest_match(data)

    def spells(self, ids: list[int], data: bytes) -> bool:
        pieces = [self.tokens[index] if index < len(self.tokens) else None for index in ids]
        return b"".join(piece for piece in pieces if piece) == data and all(piece is not None for piece in pieces)

    def longest_match(self, data: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(data):
            for end in range(min(len(data), at + self.longest), at, -1):
                if (index := self.id_of.get(data[at:end])) is not None:
                    ids.append(index)
                    at = end
                    break
            else:
                raise ValueError(f"no token of the vocabulary begins with byte 0x{data[at]:02X}")
        return ids
