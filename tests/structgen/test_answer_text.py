"""Text and logprobs of an answer go together, however tokens, characters and stop strings fall."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from structgen.answer_text import AnswerText

PIECES = st.lists(st.sampled_from(["a", "b", "é", "漢", "ab", "ba"]), max_size=8)


class ByteDecoder:
    """Token ids are bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


@given(PIECES, st.lists(st.sampled_from(["ab", "bé", "bb", "漢a"]), max_size=2), st.integers(1, 4), st.integers(0, 2))
def test_entries_are_those_of_the_tokens_that_begin_in_the_text(
    pieces: list[str], stops: list[str], step: int, cut: int
) -> None:
    """`step` tokens at a time; `cut` bytes are missing at the end."""
    tokens = "".join(pieces).encode()
    tokens = tokens[: max(0, len(tokens) - cut)]
    answer, shown = AnswerText(ByteDecoder(), stops), ""
    entries: list[tuple[int, int]] = []
    for start in range(0, len(tokens), step):
        new = tokens[start : start + step]
        piece = answer.push(list(new), [(start + offset, byte) for offset, byte in enumerate(new)])
        shown, entries = shown + piece.text, entries + piece.logprobs
        assert shown == answer.text
        whole = bytes(byte for _, byte in entries).decode("utf-8", "ignore")
        assert whole == shown, "an entry comes with its text, never before and never after"
        if answer.stop is not None:
            break
    rest = answer.flush()
    shown, entries = shown + rest.text, entries + rest.logprobs
    assert shown == answer.text
    assert [position for position, _ in entries] == list(range(len(entries)))
    assert bytes(byte for _, byte in entries).decode("utf-8", "replace") == shown
    if answer.stop is None:
        assert len(entries) == len(tokens)
        assert not any(stop in shown for stop in stops)
    else:
        assert tokens.decode("utf-8", "replace").startswith(shown + answer.stop)


def test_without_entries_none_are_kept() -> None:
    answer = AnswerText(ByteDecoder(), ["b"])
    assert answer.push([97, 0xC3]) == ("a", [])
    assert answer.push([0xA9, 98, 97]) == ("é", [])
    assert (answer.text, answer.stop, answer.flush()) == ("aé", "b", ("", []))
