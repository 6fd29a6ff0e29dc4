"""One sequence's cursor through an outlines-core index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.grammar.tables import Array

if TYPE_CHECKING:
    from structgen.grammar.outlines_backend import OutlinesGrammar


class OutlinesMatcher:
    """Follows one output through an index, as `Matcher` does."""

    __slots__ = ("_compiled", "_states", "_tokens", "is_terminated", "mask_was_narrowed")

    def __init__(self, compiled: OutlinesGrammar) -> None:
        self._compiled = compiled
        self._states = [compiled.start]
        self._tokens: list[int] = []
        self.is_terminated = False
        self.mask_was_narrowed = False

    @property
    def compiled(self) -> OutlinesGrammar:
        return self._compiled

    @property
    def state(self) -> int:
        """Where the matcher stands, for statistics."""
        return self._states[-1]

    @property
    def tokens(self) -> list[int]:
        """The accepted token ids, EOS included."""
        return list(self._tokens)

    def fill_mask(self, row: Array, budget: int | None = None) -> None:
        """Write the mask of the tokens that may come next; see `Matcher.fill_mask`."""
        self.mask_was_narrowed = False
        if self.is_terminated:
            row[:] = 0
            return
        row[:] = plain = self._compiled.mask(self._states[-1])
        if budget is not None:
            row[:] = self._compiled.mask_within(self._states[-1], budget)
            self.mask_was_narrowed = not np.array_equal(row, plain)

    def accept(self, token_id: int) -> bool:
        """Advance by a token. False: it is not allowed here, and nothing has changed."""
        if self.is_terminated:
            return False
        if token_id in self._compiled.vocabulary.eos_token_ids:
            if not self.is_complete:
                return False
            self.is_terminated = True
        else:
            following = self._compiled.following(self._states[-1], token_id)
            if following < 0:
                return False
            self._states.append(following)
        self._tokens.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens. Raises ValueError: fewer were accepted."""
        if not 0 <= count <= len(self._tokens):
            raise ValueError(f"cannot take back {count} of {len(self._tokens)} tokens")
        if count:
            del self._states[len(self._states) - (count - self.is_terminated) :]
            del self._tokens[-count:]
            self.is_terminated = False

    def copy(self) -> OutlinesMatcher:
        """An independent cursor at the same place."""
        other = OutlinesMatcher(self._compiled)
        other._states, other._tokens = self._states.copy(), self._tokens.copy()
        other.is_terminated = self.is_terminated
        return other

    def reset(self) -> None:
        """Back to the beginning."""
        self._states, self._tokens, self.is_terminated = [self._compiled.start], [], False

    def forced_tokens(self) -> list[int]:
        """Never any: the index knows nothing of bytes."""
        return []

    @property
    def is_complete(self) -> bool:
        """Whether what was accepted so far is a whole value, so that EOS is legal now."""
        return not self.is_terminated and self._compiled.is_final(self._states[-1])

    @property
    def min_tokens_to_complete(self) -> int:
        """The fewest tokens, EOS included, that completion takes from here; 0 when terminated."""
        return 0 if self.is_terminated else self._compiled.distance(self._states[-1])
