"""Stop strings: what is shown is the text before the first of them, however it was cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from structgen.stop_strings import StopStrings


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    finder = StopStrings(stops)
    text = "".join(finder.push(piece) for piece in pieces)
    return (text if finder.hit else text + finder.flush()), finder.hit is not None


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=5), max_size=8))
def test_pieces_make_no_difference(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    hits = [whole.find(stop) for stop in stops if stop in whole]
    text, hit = shown(stops, pieces)
    assert hit == bool(hits)
    # The first stop string to become whole ends the text; another one may have begun before it.
    assert whole.startswith(text)
    assert text == whole if not hits else all(stop not in text for stop in stops)


def test_text_is_held_back_only_while_it_may_become_a_stop() -> None:
    finder = StopStrings(["\n\n"])
    assert finder.push("a") == "a"
    assert finder.push("b\n") == "b"
    assert finder.push("c") == "\nc"
    assert finder.push("\n") == ""
    assert finder.push("\nd") == ""
    assert finder.hit == "\n\n"
    assert finder.push("e") == ""
