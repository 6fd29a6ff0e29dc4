"""Many literals at once: a trie of byte strings as program states."""

from __future__ import annotations

from collections.abc import Sequence

from structgen.grammar.program import ProgramBuilder


def literal_alternatives(builder: ProgramBuilder, words: Sequence[tuple[bytes, int]]) -> int:
    """The first state of a deterministic trie for `(word, state after it)` pairs with different words."""
    ordered = sorted(words)
    start = builder.reserve()
    # Each task sets one state for a run of words that share `depth` bytes.
    tasks = [(start, 0, len(ordered), 0)]
    while tasks:
        state, first, last, depth = tasks.pop()
        if last - first == 1:
            word, then = ordered[first]
            builder.set_literal(state, word[depth:], then)
            continue
        shared = shared_length(ordered[first][0], ordered[last - 1][0], depth)
        if shared > depth:
            branch = builder.reserve()
            builder.set_literal(state, ordered[first][0][depth:shared], branch)
            state, depth = branch, shared
        if len(ordered[first][0]) == depth:
            rest = builder.reserve()
            builder.set_split(state, [ordered[first][1], rest])
            tasks.append((rest, first + 1, last, depth))
            continue
        edges = []
        while first < last:
            byte, begin = ordered[first][0][depth], first
            while first < last and ordered[first][0][depth] == byte:
                first += 1
            word, then = ordered[begin]
            if first - begin == 1 and len(word) == depth + 1:
                edges.append((byte, byte, then))
                continue
            target = builder.reserve()
            edges.append((byte, byte, target))
            tasks.append((target, begin, first, depth + 1))
        builder.set_ranges(state, edges)
    return start


def shared_length(one: bytes, other: bytes, start: int) -> int:
    """How many bytes two words have in common, at least `start`."""
    length, end = start, min(len(one), len(other))
    while length < end and one[length] == other[length]:
        length += 1
    return length
