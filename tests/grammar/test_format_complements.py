"""What is said to be outside of a format is not of that format, and next to nothing is left between the two."""

from __future__ import annotations

import random

import pytest

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.determinise import char_dfa
from structgen.grammar.format_complements import NEGATABLE_FORMATS, outside_format
from structgen.grammar.formats import FORMATS, NARROWED_FORMATS, flat_format_tree
from structgen.validation.formats import FORMATS as CHECKERS

SAMPLES = 400
ASCII = [chr(code) for code in range(0x20, 0x7F)]


def walk(dfa: CharDFA, chance: random.Random, longest: int = 60) -> str:
    """A text along the automaton, which is left at a random accepting state or given up."""
    state, text = 0, ""
    while len(text) < longest:
        if state in dfa.accepting and chance.random() < 0.1:
            break
        ways = [(index, target) for index, target in enumerate(dfa.rows[state]) if target >= 0]
        if not ways:
            break
        index, state = chance.choice(ways)
        low, high = chance.choice(dfa.classes[index])
        text += chr(chance.randint(low, min(high, low + 30)))
    return text


def nearly(text: str, chance: random.Random) -> str:
    """The text with a character changed, put in or left out."""
    place = chance.randrange(len(text) + 1)
    return text[:place] + chance.choice(["", *ASCII, "é"]) + text[place + chance.randrange(2) :]


@pytest.mark.parametrize("name", sorted(NEGATABLE_FORMATS))
def test_outside_is_outside(name: str) -> None:
    chance = random.Random(name)
    inside, outside, valid = char_dfa(flat_format_tree(name)), outside_format(name), CHECKERS[name]
    between = 0
    for _ in range(SAMPLES):
        text = walk(inside, chance)
        for one in (text, nearly(text, chance), nearly(nearly(text, chance), chance)):
            assert not (inside.matches(one) and outside.matches(one)), one
            assert not (outside.matches(one) and valid(one)), one
            between += not inside.matches(one) and not outside.matches(one)
    assert name in NARROWED_FORMATS or between == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("time", "22:59:60-01:00"),
        ("date-time", "1998-12-31T15:59:60.123-08:00"),
        ("hostname", ".".join(["a" * 60] * 4)),
        ("hostname", "xn--4gbwdl.xn--wgbh1c"),
        ("email", "a.b.c.d.e.f.g.h@example.org"),
        ("email", '"joe bloggs"@example.org'),
    ],
)
def test_what_a_narrowed_format_leaves_out_is_not_outside(name: str, text: str) -> None:
    assert CHECKERS[name](text)
    assert not outside_format(name).matches(text)


def test_formats_that_cannot_be_negated_are_known() -> None:
    assert {"idn-email", "idn-hostname", "regex", "uri-template"} == FORMATS - NEGATABLE_FORMATS
