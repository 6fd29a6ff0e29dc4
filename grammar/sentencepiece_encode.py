"""Text -> SentencePiece ids, as SentencePiece itself finds them, without anything put in front of the text.

BPE: of all neighbours whose join is a piece, the pair with the best score is joined first, of equals the leftmost.
Unigram: the way through the text with the best sum of scores. In both, user-defined pieces are cut out first (unigram:
win by their score), and a character without a piece becomes its bytes where the model has those.

Where no piece crosses from a word to the next, words are encoded one by one and remembered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from functools import lru_cache

from structgen.grammar.sentencepiece_model import BPE, PieceType, SentencePieceModel
from structgen.grammar.token_bytes import BYTE_TOKEN, SPACE_MARK

UNKNOWN_PENALTY = 10.0  # how much worse than the worst piece an unknown character is
USER_BONUS = 0.1  # for each further character of a user-defined piece: better than any piece, and the longer the better
REMEMBERED_WORDS = 1 << 16
_WORD = re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+")
_CROSSING = re.compile(f"[^{SPACE_MARK}]{SPACE_MARK}")
_USABLE = (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED)


class SentencePieceEncoder:
    """Encodes exactly the text it is given; the id of the unknown piece stands for what the model cannot spell."""

    def __init__(self, model: SentencePieceModel) -> None:
        self._model = model
        self._id_of = {
            piece: index
            for index, (piece, kind) in reversed(list(enumerate(zip(model.pieces, model.types, strict=True))))
            if kind in _USABLE
        }
        self._byte_ids = _byte_ids(model)
        self._longest = max(map(len, self._id_of), default=1)
        user = sorted(self._ids_of_kind(PieceType.USER_DEFINED), key=len, reverse=True)
        self._user = re.compile("|".join(map(re.escape, user))) if user else None
        by_word = not any(_CROSSING.search(piece) for piece in self._id_of)
        whole: Callable[[str], list[int]] = self._bpe if model.model_type == BPE else self._unigram
        self._word = lru_cache(maxsize=REMEMBERED_WORDS if by_word else 64)(lambda text: tuple(whole(text)))
        self._by_word = by_word
        normal = [score for score, kind in zip(model.scores, model.types, strict=True) if kind == PieceType.NORMAL]
        self._worst = min(normal, default=0.0)

    def __call__(self, text: str) -> list[int]:
        if not self._model.escape_spaces:
            return list(self._word(text))
        # A U+2581 in the text itself would read as a space: only its bytes can spell it.
        ids: list[int] = []
        for number, part in enumerate(text.split(SPACE_MARK)):
            if number:
                ids += self._spelled(SPACE_MARK)
            marked = part.replace(" ", SPACE_MARK)
            for word in _WORD.findall(marked) if self._by_word else [marked]:
                ids += self._word(word)
        return ids

    def _ids_of_kind(self, kind: PieceType) -> list[str]:
        return [piece for piece, index in self._id_of.items() if self._model.types[index] == kind and piece]

    def _spelled(self, character: str) -> list[int]:
        """A character without a piece."""
        ids = [self._byte_ids.get(byte, -1) for byte in character.encode()]
        return ids if -1 not in ids else [self._model.unk_id]

    def _output(self, symbols: list[str]) -> list[int]:
        ids: list[int] = []
        for symbol in symbols:
            index = self._id_of.get(symbol)
            ids += self._spelled(symbol) if index is None else [index]
        return ids

    # -- BPE

    def _bpe(self, text: str) -> list[int]:
        symbols, frozen = self._symbols(text)
        made_of = self._merge(symbols, frozen)
        return self._output([part for symbol in symbols if symbol for part in self._split_unused(symbol, made_of)])

    def _symbols(self, text: str) -> tuple[list[str], list[bool]]:
        """Characters, and user-defined pieces (which never merge further: frozen)."""
        if self._user is None:
            return list(text), [False] * len(text)
        symbols: list[str] = []
        frozen: list[bool] = []
        at = 0
        for match in self._user.finditer(text):
            symbols += [*text[at : match.start()], match[0]]
            frozen += [False] * (match.start() - at) + [True]
            at = match.end()
        symbols += text[at:]
        return symbols, frozen + [False] * (len(text) - at)

    def _merge(self, symbols: list[str], frozen: list[bool]) -> dict[str, tuple[str, str]]:
        """Join `symbols` in place, leaving "" where a symbol went into its left neighbour.

        Returns how each unused piece on the way was made: such a piece is a step only, and is taken apart again.
        """
        count, id_of, scores, types = len(symbols), self._id_of, self._model.scores, self._model.types
        before, after = list(range(-1, count - 1)), [*range(1, count), -1]
        made_of: dict[str, tuple[str, str]] = {}
        heap: list[tuple[float, int, int, str]] = []

        def consider(left: int, right: int) -> None:
            if left < 0 or right < 0 or frozen[left] or frozen[right]:
                return
            joined = symbols[left] + symbols[right]
            index = id_of.get(joined)
            if index is None:
                return
            heapq.heappush(heap, (-scores[index], left, right, joined))
            if types[index] == PieceType.UNUSED:
                made_of[joined] = (symbols[left], symbols[right])

        for place in range(count - 1):
            consider(place, place + 1)
        while heap:
            _, left, right, joined = heapq.heappop(heap)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue
            symbols[left], symbols[right] = joined, ""
            following = after[left] = after[right]
            if following >= 0:
                before[following] = left
            consider(before[left], left)
            consider(left, following)
        return made_of

    def _split_unused(self, symbol: str, made_of: dict[str, tuple[str, str]]) -> list[str]:
        done: list[str] = []
        todo = [symbol]
        while todo:
            one = todo.pop()
            index = self._id_of.get(one)
            if index is not None and self._model.types[index] == PieceType.UNUSED and one in made_of:
                todo += reversed(made_of[one])
            else:
                done.append(one)
        return done

    # -- unigram

    def _unigram(self, text: str) -> list[int]:
        size, unknown = len(text), self._worst - UNKNOWN_PENALTY
        best: list[float] = [0.0] + [float("-inf")] * size
        came_from = [0] * (size + 1)
        for start in range(size):
            so_far, single = best[start], False
            for end in range(start + 1, min(size, start + self._longest) + 1):
                score = self._unigram_score(text[start:end])
                if score is None:
                    continue
                single = single or end == start + 1
                if so_far + score > best[end]:
                    best[end], came_from[end] = so_far + score, start
            if not single and so_far + unknown > best[start + 1]:
                best[start + 1], came_from[start + 1] = so_far + unknown, start
        parts: list[str] = []
        while size:
            parts.append(text[came_from[size] : size])
            size = came_from[size]
        return self._output(parts[::-1])

    def _unigram_score(self, piece: str) -> float | None:
        index = self._id_of.get(piece)
        if index is None or self._model.types[index] == PieceType.UNUSED:
            return None
        if self._model.types[index] == PieceType.USER_DEFINED:
            return USER_BONUS * (len(piece) - 1)
        return self._model.scores[index]


def _byte_ids(model: SentencePieceModel) -> dict[int, int]:
    ids: dict[int, int] = {}
    for index, kind in enumerate(model.types):
        if kind == PieceType.BYTE and (match := BYTE_TOKEN.fullmatch(model.pieces[index])):
            ids.setdefault(int(match[1], 16), index)
    return ids
