"""What one output's text says about its keys, kept up to date token by token, and the tokens that it forbids.

A key that was not declared may be any text, but must not come twice in its object. A token is forbidden where it
would end such a key again. Nearly always there is none: finding that out must cost about as much as copying a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.grammar.entries import append_bytes, append_token, forbid, would_repeat
from structgen.grammar.handles import Handle
from structgen.grammar.repeated_keys import new_key_text
from structgen.grammar.seen_keys import LENGTH
from structgen.grammar.tables import Array

if TYPE_CHECKING:
    from structgen.grammar.vocabulary import Vocabulary


MAX_SPARE, MAX_SPARE_BYTES = 64, 1 << 16


class KeyMemory:
    """The keys of the open objects of one output, up to some token of it.

    It follows the output lazily: `update` reads the tokens that came since the last call.
    """

    __slots__ = ("_arrays", "_handle", "_known", "_prefix", "_shared", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, prefix: bytes = b"") -> None:
        """`prefix` is what was read before the first token."""
        self._vocabulary = vocabulary
        self._shared = vocabulary.mask_handle.address
        self._prefix = prefix
        self._make_room(len(prefix) + 4 * vocabulary.trie.height + 512)

    @classmethod
    def take(cls, vocabulary: Vocabulary, prefix: bytes) -> KeyMemory:
        """A spare one, or a new one."""
        try:
            memory = vocabulary.spare_memories.pop()
        except IndexError:
            return cls(vocabulary, prefix)
        memory._prefix = prefix
        if len(prefix) < len(memory._arrays.text):
            memory._restart()
        else:
            memory._make_room(2 * len(prefix))
        return memory

    def give_back(self) -> None:
        """Nobody uses it any more."""
        if len(self._vocabulary.spare_memories) < MAX_SPARE and len(self._arrays.text) <= MAX_SPARE_BYTES:
            self._vocabulary.spare_memories.append(self)

    def _make_room(self, size: int) -> None:
        """Begin again with room for `size` bytes."""
        self._arrays = new_key_text(size)
        self._handle = Handle(self._arrays)
        self._restart()

    def _restart(self) -> None:
        self._known = 0
        self._arrays.state.fill(0)
        if self._prefix:
            append_bytes(self._handle.address, np.frombuffer(self._prefix, np.uint8))

    def truncate(self, count: int) -> None:
        """Only the first `count` tokens still hold."""
        if self._known > count:
            self._restart()

    def update(self, tokens: list[int]) -> None:
        """Follow the output, all of whose tokens are given."""
        count = len(tokens) - self._known
        if count <= 0:
            return
        # Room for these and for one token that is only tried.
        wanted = int(self._arrays.state[LENGTH]) + (count + 1) * self._vocabulary.trie.height + 2
        if wanted > len(self._arrays.text):
            self._make_room(2 * wanted)
        for token in tokens[self._known :]:
            append_token(self._handle.address, self._shared, token)
        self._known = len(tokens)

    def would_repeat(self, token: int) -> bool:
        """Whether a token would end a key again that its object has already."""
        return bool(would_repeat(self._handle.address, self._shared, token))

    def forbid(self, row: Array, *, also_spelled: bool = False) -> bool:
        """Clear the bits of all tokens that would end a key again. Returns whether any was set.

        With `also_spelled`, those too that spell such a key without ending it.
        """
        return bool(forbid(self._handle.address, self._shared, row, also_spelled))
