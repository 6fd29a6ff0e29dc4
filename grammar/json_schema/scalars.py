"""Rules for strings, numbers, booleans, null, and for keys. A rule is a state; it ends in RETURN."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial

from structgen.grammar.block import BLOCKS
from structgen.grammar.byte_trie import literal_alternatives, shared_length
from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.json_number import FREE_INTEGER, FREE_NUMBER, NumberRange
from structgen.grammar.json_schema.shapes import Shape, TextShape
from structgen.grammar.json_schema.text import single_tree, text_dfa, without_pointers
from structgen.grammar.json_string import canonical, counted_text, key_interior, quoted
from structgen.grammar.number_automaton import number_dfa, number_length
from structgen.grammar.program import ProgramBuilder
from structgen.grammar.regex_program import place_dfa, place_limited, place_tree, raw
from structgen.grammar.regex_syntax import parse_regex

_FREE_INTEGER_TREE = parse_regex(FREE_INTEGER)
_FREE_WHOLE_TREE = parse_regex(rf"(?:{FREE_INTEGER})(?:\.0{{1,307}})?")
_FREE_NUMBER_TREE = parse_regex(FREE_NUMBER)


class Scalars:
    """Scalar rules of one program, each made once."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder
        self._rules: dict[Hashable, int] = {}
        self._interior: int | None = None

    def alternatives(self, shape: Shape) -> list[int]:
        """The rules of a shape's scalar types."""
        found = []
        if shape.null:
            found.append(self.literal(b"null"))
        if shape.true:
            found.append(self.literal(b"true"))
        if shape.false:
            found.append(self.literal(b"false"))
        if shape.number is not None:
            found.append(self.number(shape.number))
        if shape.text is not None:
            found.append(self.text(shape.text))
        return found

    def literal(self, text: bytes) -> int:
        state = self._rules.get(text)
        if state is None:
            state = self._rules[text] = self._builder.literal(text, self._builder.accept)
        return state

    def words(self, words: Iterable[bytes]) -> int:
        """Exactly these spellings."""
        return literal_alternatives(self._builder, [(word, self._builder.accept) for word in words])

    def number(self, wanted: NumberRange) -> int:
        state = self._rules.get(wanted)
        if state is None:
            place = partial(_place_number, wanted=wanted)
            state = self._rules[wanted] = BLOCKS.place(self._builder, wanted, place)
        return state

    def text(self, wanted: TextShape) -> int:
        key = without_pointers(wanted)
        state = self._rules.get(key)
        if state is None:
            state = self._rules[key] = BLOCKS.place(self._builder, key, partial(_place_text, wanted=wanted))
        return state

    def other_key(self, taken: frozenset[str]) -> int:
        """Any key in canonical spelling but those taken."""
        state = self._rules.get(("key", taken))
        if state is None:
            state = self._builder.literal(b'"', self._key_trie(taken) if taken else self._key_interior())
            self._rules["key", taken] = state
        return state

    def key_of(self, names: CharDFA) -> int:
        """Any key whose name is in a language, in canonical spelling."""
        end = self._builder.literal(b'"', self._builder.key_end(self._builder.accept))
        return self._builder.literal(b'"', place_dfa(self._builder, names, end, canonical))

    def _key_interior(self) -> int:
        if self._interior is None:
            self._interior = BLOCKS.place(self._builder, "key", key_interior)
        return self._interior

    def _key_trie(self, taken: frozenset[str]) -> int:
        """A trie of the taken keys whose states read everything else as the free interior would.

        The interior is deterministic; each trie state takes as its default the state that the interior is in after
        the same bytes, so that leaving the trie in the middle of a character stays valid UTF-8.
        """
        builder, interior = self._builder, self._key_interior()
        first = builder.size
        branches: list[list[int]] = [[]]  # (byte, next state) pairs, flat, of each node
        defaults = [interior]
        path, previous = [0], b""
        for word in sorted(quoted(name)[1:] for name in taken):
            shared = shared_length(previous, word, 0)
            del path[shared + 1 :]
            node, default = path[-1], defaults[path[-1]]
            for byte in word[shared:-1]:
                branches[node] += (byte, first + len(branches))
                node = len(branches)
                if default != interior or not 0x20 <= byte < 0x7F or byte in (0x22, 0x5C):
                    default = builder.follow(default, byte)
                path.append(node)
                branches.append([])
                defaults.append(default)
            # A closing quote inside of the trie completes a taken key, and only those are in it.
            branches[node] += (0x22, builder.fail)
            previous = word
        return builder.excepts(branches, defaults)


def _place_number(builder: ProgramBuilder, wanted: NumberRange) -> int:
    if not wanted.is_free:
        dfa = number_dfa(wanted)
        if dfa.is_empty:
            return builder.fail
        if dfa.longest() is None:
            return place_limited(builder, dfa, (0, number_length(wanted)), builder.accept, raw)
        return place_dfa(builder, dfa, builder.accept, raw)
    tree = _FREE_NUMBER_TREE
    if wanted.integer:
        tree = _FREE_WHOLE_TREE if wanted.whole_fraction else _FREE_INTEGER_TREE
    start = builder.reserve()
    place_tree(builder, tree, start, builder.accept, raw)
    return start


def _place_text(builder: ProgramBuilder, wanted: TextShape) -> int:
    return builder.literal(b'"', _place_content(builder, wanted))


def _place_content(builder: ProgramBuilder, wanted: TextShape) -> int:
    """After the opening quote."""
    if wanted.is_counted:
        return counted_text(builder, wanted.least, wanted.most, builder.accept)
    closing = builder.literal(b'"', builder.accept)
    tree = single_tree(wanted)
    if tree is not None:
        start = builder.reserve()
        place_tree(builder, tree, start, closing, canonical)
        return start
    dfa, least, most = text_dfa(wanted)
    if dfa.is_empty:
        return builder.fail
    if least == 0 and most is None:
        return place_dfa(builder, dfa, closing, canonical)
    return place_limited(builder, dfa, (least, most), closing, canonical)
