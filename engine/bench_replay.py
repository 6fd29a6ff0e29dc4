"""Replay: a matcher that lets a model say one recorded value only, so that random weights write real records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from structgen.grammar import CompiledGrammar, Matcher
from structgen.grammar.tables import Array


class Recording:
    """A value in compact layout as a tokenizer spells it: which token begins at which byte. Shared by its replays."""

    def __init__(self, compiled: CompiledGrammar, value: Any) -> None:
        self.compiled = compiled
        self._text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        self._token_at: dict[int, int | None] = {}

    def token_at(self, position: int) -> int | None:
        """The token that a tokenizer would begin at a byte; None at the end."""
        if position not in self._token_at:
            rest = self._text[position:]
            self._token_at[position] = self.compiled.vocabulary.encode(rest)[0] if rest else None
        return self._token_at[position]


class Replay(Matcher):
    """Fills the grammar's own mask, with all the work that takes, and then leaves one token of it: the recorded one."""

    __slots__ = ("_position", "_recording", "strayed")

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.compiled)
        self._recording = recording
        self._position = 0
        self.strayed = False  # the grammar refused what was recorded: from there on the mask is the grammar's

    def fill_mask(self, row: Array, budget: int | None = None) -> None:
        super().fill_mask(row, budget)
        self._keep_recorded(row)

    def fill_known_mask(self, row: Array, budget: int | None = None) -> bool:
        if not super().fill_known_mask(row, budget):
            return False
        self._keep_recorded(row)
        return True

    def accept(self, token_id: int) -> bool:
        taken = super().accept(token_id)
        if taken:
            self._position += len(self._spelled(token_id))
        return taken

    def _keep_recorded(self, row: Array) -> None:
        token = None if self.strayed else self._recording.token_at(self._position)
        if token is None:
            return
        word, bit = divmod(token, 32)
        words = row.view(np.uint32)
        if not words[word] >> bit & 1:
            self.strayed = True
            return
        words[:] = 0
        words[word] = 1 << bit
