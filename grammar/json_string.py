"""JSON strings: what may stand between the quotes.

Free text (`type: string`, with or without lengths) may use every escape of JSON. Text under a pattern, a format or
an enum is spelled canonically: characters as themselves, and an escape only where JSON demands one. A character is
one Unicode code point; lone surrogates are never produced.
"""

from __future__ import annotations

import re
from functools import lru_cache

from structgen.grammar.byte_trie import literal_alternatives
from structgen.grammar.charset import ANY, ByteRanges, CharSet, intersect, subtract, utf8_sequences
from structgen.grammar.program import Interior, ProgramBuilder

SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_MUST_ESCAPE: CharSet = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PLAIN: CharSet = subtract(ANY, _MUST_ESCAPE)

_HEX_DIGIT = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_HEX_NOT_D = ((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66))
_D = ((0x44, 0x44), (0x64, 0x64))
_BELOW_8 = ((0x30, 0x37),)
_8_TO_B = ((0x38, 0x39), (0x41, 0x42), (0x61, 0x62))
_C_TO_F = ((0x43, 0x46), (0x63, 0x66))

_INLINE_ESCAPES = 3
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')

Edges = list[tuple[int, int, int]]


def quoted(text: str) -> bytes:
    """The canonical spelling of a text, quotes included."""
    return b'"' + quoted_content(text) + b'"'


def quoted_content(text: str) -> bytes:
    if _ESCAPED.search(text) is None:
        return text.encode()
    out = bytearray()
    for char in text:
        code = ord(char)
        if code in SHORT_ESCAPES:
            out += b"\\" + SHORT_ESCAPES[code].encode()
        elif code < 0x20:
            out += b"\\u%04x" % code
        else:
            out += char.encode()
    return bytes(out)


class Canonical:
    """The canonical `Spelling` of string content."""

    interior = Interior.CANONICAL

    def __call__(self, builder: ProgramBuilder, chars: CharSet, then: int, /) -> Edges:
        return _canonical_edges(builder, chars, then)


canonical = Canonical()


def _canonical_edges(builder: ProgramBuilder, chars: CharSet, then: int) -> Edges:
    sequences, escapes = _canonical_parts(chars)
    edges = builder.sequences(sequences, then)
    if len(escapes) > _INLINE_ESCAPES:
        # The escapes of control characters are forty states: a rule of their own, called from each place.
        edges.append((0x5C, 0x5C, builder.call(_escape_rule(builder, escapes), then)))
    elif escapes:
        edges.append((0x5C, 0x5C, literal_alternatives(builder, [(escape, then) for escape in escapes])))
    return edges


def _escape_rule(builder: ProgramBuilder, escapes: tuple[bytes, ...]) -> int:
    rule = builder.rules.get(escapes)
    if rule is None:
        words = [(escape, builder.accept) for escape in escapes]
        rule = builder.rules[escapes] = literal_alternatives(builder, words)
    return rule


def key_interior(builder: ProgramBuilder) -> int:
    """A key in canonical spelling and its closing quote, deterministic and without calls: each byte has one way on."""
    interior = builder.reserve()
    sequences, escapes = _canonical_parts(ANY)
    edges = builder.sequences(sequences, interior)
    edges.append((0x5C, 0x5C, literal_alternatives(builder, [(escape, interior) for escape in escapes])))
    edges.append((0x22, 0x22, builder.key_end(builder.accept)))
    builder.set_ranges(interior, edges, Interior.KEY)
    return interior


@lru_cache(maxsize=4096)
def _canonical_parts(chars: CharSet) -> tuple[tuple[ByteRanges, ...], tuple[bytes, ...]]:
    """The plain characters of a set in UTF-8, and what stands behind the backslash for the others."""
    escaped = (code for low, high in intersect(chars, _MUST_ESCAPE) for code in range(low, high + 1))
    escapes = (SHORT_ESCAPES[code].encode() if code in SHORT_ESCAPES else b"u%04x" % code for code in escaped)
    return utf8_sequences(intersect(chars, PLAIN)), tuple(escapes)


def free_text(builder: ProgramBuilder, then: int) -> int:
    """Any string content, then the closing quote; returns the first state."""
    interior = builder.reserve()
    edges = [*_any_character(builder, interior), (0x22, 0x22, then)]
    builder.set_ranges(interior, edges, Interior.FREE)
    return interior


def counted_text(builder: ProgramBuilder, least: int, most: int | None, then: int) -> int:
    """String content of `least` to `most` characters, then the closing quote."""
    if most is None and least == 0:
        return free_text(builder, then)
    body, loop = builder.reserve(), builder.reserve()
    builder.set_ranges(body, _any_character(builder, builder.accept), Interior.COUNTED)
    builder.set_loop(loop, body, builder.literal(b'"', then), least, most)
    return loop


def _any_character(builder: ProgramBuilder, then: int) -> Edges:
    """One character in any spelling that JSON allows."""
    edges = [(one[0][0], one[0][1], builder.tail(one[1:], then)) for one in utf8_sequences(PLAIN)]
    edges.append((0x5C, 0x5C, _any_escape(builder, then)))
    return edges


def _any_escape(builder: ProgramBuilder, then: int) -> int:
    """What follows a backslash: a letter, \\uXXXX, or a pair of surrogates in that form."""
    two = _hex_digits(builder, 2, then)
    low = _one_of(builder, _D, _one_of(builder, _C_TO_F, two))
    after_high = _hex_digits(builder, 2, builder.literal(b"\\u", low))
    after_d, after_u, state = builder.reserve(), builder.reserve(), builder.reserve()
    builder.set_ranges(after_d, [*_edges(_BELOW_8, two), *_edges(_8_TO_B, after_high)])
    builder.set_ranges(after_u, [*_edges(_HEX_NOT_D, _hex_digits(builder, 3, then)), *_edges(_D, after_d)])
    letters = [(ord(letter), ord(letter), then) for letter in '"\\/bfnrt']
    builder.set_ranges(state, [*letters, (0x75, 0x75, after_u)])
    return state


def _edges(ranges: tuple[tuple[int, int], ...], then: int) -> Edges:
    return [(low, high, then) for low, high in ranges]


def _one_of(builder: ProgramBuilder, ranges: tuple[tuple[int, int], ...], then: int) -> int:
    state = builder.reserve()
    builder.set_ranges(state, _edges(ranges, then))
    return state


def _hex_digits(builder: ProgramBuilder, count: int, then: int) -> int:
    for _ in range(count):
        then = _one_of(builder, _HEX_DIGIT, then)
    return then
