"""What every grammar shares about the inside of a JSON string, computed once per vocabulary.

Nearly all tokens of a real vocabulary are plain text: whole characters that a JSON string holds as they are. Inside
a string they are allowed because of the string alone. Tokens that end the string behind plain text are allowed or
not because of what follows the quote: they are grouped by it. Only the rest must be walked byte by byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structgen.grammar.charset import ANY
from structgen.grammar.entries import advance, start_config
from structgen.grammar.growth import grown
from structgen.grammar.handles import Handle
from structgen.grammar.json_string import canonical as canonical_spelling
from structgen.grammar.json_string import free_text
from structgen.grammar.numba_cache import jit
from structgen.grammar.plain_bytes import QUOTE, is_plain_byte
from structgen.grammar.program import ProgramBuilder
from structgen.grammar.tables import FINAL, GROW, Array, new_tables, with_scratch
from structgen.grammar.token_trie import TokenTrie, build_trie

FAILS, STAYS, LEAVES = range(3)


class PlainText(NamedTuple):
    """L is the longest plain token in characters.

    Attributes:
        masks: int32[L + 1, mask_words]; row k has the plain tokens of at most k characters.
        others: all other tokens.
        exits: plain text, a quote, and more: the trie of what is behind the quote, without the empty text. Its
            "tokens" are group numbers; group 0 is the empty text.
        group_start: int32[G + 1], offsets into `group_tokens`.
        group_tokens: int32[n], token ids.
        length: int32[V], characters before the quote.
        rest: the tokens that are neither plain text nor exits.
        free_mask, canonical_mask: int32[mask_words], all tokens that stay inside a string: plain text, and those of
            the rest that hold whole or begun escapes and characters, where escapes are free or canonical.
        free_leaving, canonical_leaving: those of the rest that may leave the string behind an escape.
    """

    masks: Array
    others: TokenTrie
    exits: TokenTrie
    group_start: Array
    group_tokens: Array
    length: Array
    rest: TokenTrie
    free_mask: Array
    free_leaving: TokenTrie
    canonical_mask: Array
    canonical_leaving: TokenTrie


def plain_text(tokens: Sequence[bytes | None], blob: Array, starts: Array, mask_words: int) -> PlainText:
    """Sort the tokens, `tokens[i]` being `blob[starts[i]:starts[i + 1]]`."""
    lengths = np.empty(len(tokens), np.int32)
    quotes = np.empty(len(tokens), np.int32)
    _measure(blob, starts, lengths, quotes)
    plain = (lengths > 0) & (quotes < 0)
    longest = int(lengths[plain].max(initial=0))
    bits = np.zeros((longest + 1, mask_words * 32), np.bool_)
    for length in range(1, longest + 1):
        bits[length, : len(lengths)] = plain & (lengths <= length)
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)

    groups: dict[bytes, list[int]] = {b"": []}
    exits = (quotes >= 0) & (lengths >= 0)
    for i in np.flatnonzero(exits).tolist():
        groups.setdefault((tokens[i] or b"")[quotes[i] + 1 :], []).append(i)
    group_start = np.zeros(len(groups) + 1, np.int32)
    np.cumsum([len(members) for members in groups.values()], out=group_start[1:])
    group_tokens = np.array([i for members in groups.values() for i in members], dtype=np.int32)
    suffixes = build_trie(list(groups), range(len(groups)))

    some = np.array([bool(token) for token in tokens], dtype=np.bool_)
    others = build_trie(tokens, np.flatnonzero(some & ~plain).tolist())
    rest_ids = np.flatnonzero(some & ~plain & ~exits)
    rest = build_trie(tokens, rest_ids.tolist())
    sorted_: list[Array | TokenTrie] = []
    for canonical in (False, True):
        kinds = _behaviour(blob, starts, rest_ids, canonical=canonical)
        mask_bits = bits[longest].copy()
        mask_bits[rest_ids[kinds == STAYS]] = True
        sorted_.append(np.packbits(mask_bits, bitorder="little").view(np.int32))
        sorted_.append(build_trie(tokens, rest_ids[kinds == LEAVES].tolist()))
    masks = np.ascontiguousarray(masks)
    return PlainText(masks, others, suffixes, group_start, group_tokens, lengths, rest, *sorted_)  # type: ignore[arg-type]


def _behaviour(blob: Array, starts: Array, ids: Array, *, canonical: bool) -> Array:
    """For each token, whether it FAILS inside a string, STAYS in it, or LEAVES it: asked of the automaton itself."""
    builder = ProgramBuilder()
    outside = builder.reserve()
    beyond = builder.split([outside, builder.accept])
    builder.set_ranges(outside, [(0, 255, beyond)])
    inside = builder.reserve()
    if canonical:
        builder.set_ranges(inside, [*canonical_spelling(builder, ANY, inside), (QUOTE, QUOTE, beyond)])
    else:
        inside = free_text(builder, beyond)
    program = builder.finish(inside)
    tables = with_scratch(new_tables(program, program.byte_distance))
    handle = Handle(tables)
    config = start_config(handle.address, program.start)
    kinds = np.empty(len(ids), np.int8)
    for index, token in enumerate(ids.tolist()):
        following = advance(handle.address, config, blob, starts[token], starts[token + 1])
        while following == GROW:
            tables = grown(tables)
            handle = Handle(tables)
            following = advance(handle.address, config, blob, starts[token], starts[token + 1])
        kinds[index] = FAILS if following < 0 else (LEAVES if tables.config[following, FINAL] else STAYS)
    return kinds


@jit
def _measure(blob: Array, starts: Array, lengths: Array, quotes: Array) -> None:
    """For each token: where its first quote is (-1: none), and how many characters of plain text come before it
    (-1: what comes before it, or the whole token, is not plain text in whole characters)."""
    for token in range(len(lengths)):
        start, stop = starts[token], starts[token + 1]
        quotes[token] = -1
        for index in range(start, stop):
            if blob[index] == QUOTE:
                quotes[token] = index - start
                stop = index
                break
        lengths[token] = _characters(blob, start, stop)


@jit
def _characters(blob: Array, start: int, stop: int) -> int:
    count, index = 0, start
    while index < stop:
        byte = int(blob[index])
        if not is_plain_byte(byte) or 0x80 <= byte < 0xC2 or byte > 0xF4:
            return -1
        low, high = 0x80, 0xBF
        if byte == 0xE0:
            low = 0xA0
        elif byte == 0xED:
            high = 0x9F
        elif byte == 0xF0:
            low = 0x90
        elif byte == 0xF4:
            high = 0x8F
        tail = 0 if byte < 0x80 else (1 if byte < 0xE0 else (2 if byte < 0xF0 else 3))
        for step in range(1, tail + 1):
            if index + step >= stop or not low <= blob[index + step] <= high:
                return -1
            low, high = 0x80, 0xBF
        index += tail + 1
        count += 1
    return count
