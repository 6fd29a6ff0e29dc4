"""A tokenizer as a grammar sees it: ids and their exact bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from structgen.grammar import vocabulary_cache
from structgen.grammar.blank_tokens import BlankTokens, blank_tokens
from structgen.grammar.handles import Handle
from structgen.grammar.key_memory import KeyMemory
from structgen.grammar.mask_tables import MaskTables, mask_tables
from structgen.grammar.plain_text import PlainText, plain_text
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import TokenTrie, build_trie, child

Encode = Callable[[bytes], Sequence[int]]


class _Tables(NamedTuple):
    trie: TokenTrie
    plain_text: PlainText
    blank_tokens: BlankTokens


class Vocabulary:
    """Token ids and their bytes, with the tables that every grammar shares. Immutable.

    Args:
        tokens: the bytes of each id; None for special and unused ids, which no grammar ever allows.
        eos_token_ids: the ids that end an output.
        encode: the tokenizer's own encoding of bytes; longest match is used without it.
        size: the width of the logits, when wider than the tokenizer (padding is never allowed).
    Raises:
        ValueError: for ids outside of the vocabulary.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        eos_token_ids: Iterable[int],
        *,
        encode: Encode | None = None,
        size: int | None = None,
    ) -> None:
        self.size = len(tokens) if size is None else size
        if self.size < len(tokens):
            raise ValueError(f"size is {size}, but there are {len(tokens)} tokens")
        self.eos_token_ids = frozenset(int(i) for i in eos_token_ids)
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.size:
                raise ValueError(f"EOS token id {token_id} is outside of the vocabulary of {self.size}")
        # An EOS token ends the output and never spells text, even where it has bytes; empty tokens never advance.
        self.tokens: tuple[bytes | None, ...] = tuple(
            (bytes(token) or None) if token is not None and i not in self.eos_token_ids else None
            for i, token in enumerate(tokens)
        )
        self._encode = encode
        self.spare_memories: list[KeyMemory] = []  # of matchers that are gone: making one takes a while

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, size: int | None = None) -> Vocabulary:
        """From a tokenizer file of any kind that `load_tokenizer` reads, a folder with one, or a tokenizer object.

        Without a `size`, the width is what the files beside the tokenizer say, else the number of tokens.
        """
        from structgen.grammar.tokenizer_files import load_tokenizer

        loaded = load_tokenizer(tokenizer)
        return cls(
            loaded.tokens, loaded.eos_token_ids, encode=loaded.encode, size=loaded.size if size is None else size
        )

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, eos_token_ids={sorted(self.eos_token_ids)})"

    @property
    def mask_words(self) -> int:
        """int32 words of one mask row."""
        return (self.size + 31) // 32

    @cached_property
    def _tables(self) -> _Tables:
        """Built, or read from the disk cache."""
        if len(self.tokens) < vocabulary_cache.LEAST_TOKENS:
            return self._built()
        key = vocabulary_cache.key_of(*self.token_bytes, self.mask_words)
        tables = vocabulary_cache.load(key, _Tables)
        if tables is None:
            tables = self._built()
            vocabulary_cache.save(key, tables)
        return tables

    def _built(self) -> _Tables:
        trie = build_trie(self.tokens, range(len(self.tokens)))
        plain = plain_text(self.tokens, *self.token_bytes, self.mask_words)
        return _Tables(trie, plain, blank_tokens(self.tokens))

    @property
    def trie(self) -> TokenTrie:
        return self._tables.trie

    @cached_property
    def token_bytes(self) -> tuple[Array, Array]:
        """All tokens in one uint8 array, and int64[V + 1] offsets."""
        starts = np.zeros(len(self.tokens) + 1, np.int64)
        np.cumsum([len(token or b"") for token in self.tokens], out=starts[1:])
        return np.frombuffer(b"".join(token or b"" for token in self.tokens), dtype=np.uint8), starts

    @property
    def plain_text(self) -> PlainText:
        """What all grammars share about the inside of a JSON string."""
        return self._tables.plain_text

    @property
    def blank_tokens(self) -> BlankTokens:
        """The tokens that begin with blanks, grouped by what follows."""
        return self._tables.blank_tokens

    @cached_property
    def two_keys(self) -> frozenset[int]:
        """The tokens with four quotes or more, which may hold two keys."""
        return frozenset(i for i, token in enumerate(self.tokens) if token and token.count(b'"') >= 4)

    @cached_property
    def mask_tables(self) -> MaskTables:
        """The tables that masks are made from."""
        return mask_tables(self)

    @cached_property
    def mask_handle(self) -> Handle:
        """The place of `mask_tables`, for compiled code."""
        return Handle(self.mask_tables)

    def encode(self, text: bytes) -> list[int]:
        """Token ids whose bytes join to `text`: the tokenizer's own where it gave an `encode`.

        Raises:
            ValueError: the vocabulary cannot spell the text.
        """
        if self._encode is not None:
            ids = [int(i) for i in self._encode(text)]
            if b"".join(self.tokens[i] or b"" for i in ids) == text:
                return ids
        return self._longest_match(text)

    def continuations(self, text: bytes) -> list[int]:
        """The bytes that follow `text` in tokens that begin with it."""
        trie, node = self.trie, -1
        for byte in text:
            node = int(child(trie, node, byte))
            if node < 0:
                return []
        following, current = [], node + 1
        while current < trie.end[node]:
            following.append(int(trie.byte[current]))
            current = int(trie.end[current])
        return following

    def _longest_match(self, text: bytes) -> list[int]:
        trie, ids, position = self.trie, [], 0
        while position < len(text):
            node, best, end = -1, -1, position
            for index in range(position, len(text)):
                node = int(child(trie, node, text[index]))
                if node < 0:
                    break
                if trie.token[node] >= 0:
                    best, end = int(trie.token[node]), index + 1
            if best < 0:
                raise ValueError(f"the vocabulary cannot spell byte 0x{text[position]:02x}")
            ids.append(best)
            position = end
        return ids
