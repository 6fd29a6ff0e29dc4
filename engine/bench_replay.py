"""Replay: a matcher that follows a recorded value whatever is sampled, so that random weights write real records.

Masks are the grammar's own and reach the device whole: a token is sampled under them as ever, with all the work that
takes, and only then does the grammar take the recorded token instead of it.
"""

from __future__ import annotations

import json
from typing import Any

from structgen.grammar import CompiledGrammar, Matcher


class Recording:
    """A value in compact layout as a tokenizer spells it: which token begins at which byte. Shared by its replays."""

    def __init__(self, compiled: CompiledGrammar, value: Any) -> None:
        self.compiled = compiled
        self._text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        # At a byte, for all replays: the recorded token, the first forced one, and where the recorded one ends.
        self.known: dict[int, tuple[int | None, int | None, int]] = {}

    def token_at(self, position: int) -> int | None:
        """The token that a tokenizer would begin at a byte; None at the end."""
        rest = self._text[position:]
        return self.compiled.vocabulary.encode(rest)[0] if rest else None


class Replay(Matcher):
    """Takes forced tokens as they are, and for any other the one that was recorded; AssertionError where it cannot."""

    __slots__ = ("_positions", "_recording")

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.compiled)
        self._recording = recording
        self._positions = [0]  # bytes of the recorded text behind us, after each token

    def accept(self, token_id: int) -> bool:
        position, known = self._positions[-1], self._recording.known
        recorded, forced_id, after = known.get(position) or self._look_up(position)
        if recorded is not None and forced_id != token_id:
            token_id = recorded
        else:
            after = position + len(self._spelled(token_id))
        if not Matcher.accept(self, token_id):
            assert recorded is None, "the grammar refuses what was recorded"
            return False
        self._positions.append(after)
        return True

    def _look_up(self, position: int) -> tuple[int | None, int | None, int]:
        forced, recorded = self.forced_tokens()[:1], self._recording.token_at(position)
        after = position if recorded is None else position + len(self._spelled(recorded))
        found = self._recording.known[position] = recorded, forced[0] if forced else None, after
        return found

    def rollback(self, count: int) -> None:
        super().rollback(count)
        if count:
            del self._positions[-count:]
