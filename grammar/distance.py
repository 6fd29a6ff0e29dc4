"""How far every state is from completion: in bytes, and in tokens of a vocabulary.

Both are least fixpoints of the same equations (Knuth's generalisation of shortest paths to grammars), relaxed in
sweeps. INFINITE means: never. In bytes that is emptiness of the language; in tokens it also says that
the vocabulary cannot spell what is needed.

The token distance counts one token a byte, and along literals the fewest tokens that spell them. It is an upper
bound with the property that budget-aware closing stands on: from a state with bound B, some token leads to a
state with a bound of at most B - 1.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.frames import detour_cost, saturate, text_cost
from structgen.grammar.numba_cache import lean
from structgen.grammar.ops import (
    BYTE,
    CALL,
    CHOOSE,
    CLOSE,
    DETOUR,
    EXCEPT,
    FILLERS,
    FIRST,
    FIRST_FILLER,
    KEY_END,
    LEAST_MEMBERS,
    LENGTHS,
    LOOP,
    OBJECT,
    RANGES,
    RESERVE,
    RETURN,
    SPLIT,
    TARGETS,
    TEXT,
    WIDTH,
)
from structgen.grammar.program import Program
from structgen.grammar.tables import BLOCKED, IN_BYTES, IN_TOKENS, INFINITE, Array
from structgen.grammar.token_trie import TokenTrie, child

_ONE_EACH = np.ones(256, np.int32)


def byte_distances(program: Program) -> Array:
    """int32[S, 2]: column IN_BYTES has the fewest bytes from each state to the RETURN of its frame."""
    distance = np.full((program.size, 2), INFINITE, np.int32)
    order, circular = program.order
    while _sweep(program.code, program.edges, order, _ONE_EACH, distance, IN_BYTES):
        if not _sweep(program.code, program.edges, circular, _ONE_EACH, distance, IN_BYTES):
            break
    return distance


def token_distances(program: Program, trie: TokenTrie, in_bytes: Array) -> Array:
    """int32[S, 2]: the given column IN_BYTES, and an upper bound of the fewest tokens in column IN_TOKENS."""
    if program.distinct is not None:
        # Ways around what came before are sought byte by byte: bounds that count alike are lower after each step.
        spelled = _token_distances(program, trie._replace(root=np.full_like(trie.root, -1)), in_bytes)
        if spelled[program.start, IN_TOKENS] < INFINITE:
            return spelled
    return _token_distances(program, trie, in_bytes)


def _token_distances(program: Program, trie: TokenTrie, in_bytes: Array) -> Array:
    code, edges, (order, circular) = program.code, program.edges, program.order
    distance = in_bytes.copy()
    _settle(code, edges, order, circular, trie, distance)
    # Lengths of words assume that all characters can be spelled. Where the vocabulary cannot, the whole automaton
    # of that text is given up: rare, and better than a dead end.
    if _block_unspellable_texts(code, edges, order, distance):
        distance[distance[:, IN_TOKENS] != BLOCKED, IN_TOKENS] = INFINITE
        _settle(code, edges, order, circular, trie, distance)
    return distance


@lean
def _settle(code: Array, edges: Array, order: Array, circular: Array, trie: TokenTrie, distance: Array) -> None:
    """Sweeps until nothing changes: behind a sweep of all, only circular states can still be improved."""
    while _token_sweep(code, edges, order, trie, distance):
        if not _token_sweep(code, edges, circular, trie, distance):
            break


@lean
def _block_unspellable_texts(code: Array, edges: Array, order: Array, distance: Array) -> bool:
    """Set the token distance of TEXT states that may meet a character without tokens to BLOCKED."""
    found, changed = False, True
    while changed:
        changed = False
        for state in order:
            if code[state, 0] != TEXT or distance[state, IN_TOKENS] == BLOCKED:
                continue
            at = code[state, 1]
            first = at + FIRST + edges[at + LENGTHS]
            for pair in range(first, first + 2 * edges[at + TARGETS], 2):
                body, target = edges[pair], edges[pair + 1]
                if distance[body, IN_TOKENS] > edges[at + WIDTH] or distance[target, IN_TOKENS] == BLOCKED:
                    distance[state, IN_TOKENS] = BLOCKED
                    found = changed = True
                    break
    return found


@lean
def _cheapest_edge(
    code: Array, edges: Array, costs: Array, distance: Array, unit: int, state: int, without: int, count: int
) -> int:
    """The least distance over the edges of a BYTE or RANGES state, but for the bytes of `count` pairs at `without`."""
    best = np.int64(INFINITE)
    a = code[state, 1]
    if code[state, 0] == BYTE:
        for pair in range(without, without + 2 * count, 2):
            if edges[pair] == a:
                return best
        return np.int64(costs[a]) + distance[code[state, 2], unit]
    for edge in range(a, a + 3 * code[state, 2], 3):
        following = np.int64(distance[edges[edge + 2], unit]) + 1
        if following >= best:
            continue
        for byte in range(edges[edge], edges[edge + 1] + 1):
            excepted = False
            for pair in range(without, without + 2 * count, 2):
                excepted = excepted or edges[pair] == byte
            if costs[byte] == 1 and not excepted:
                best = following
                break
    return best


@lean
def _fillers_cost(edges: Array, distance: Array, unit: int, limits: int, required: int, after: int) -> int:
    """What the members beside the required ones add that an object must have: the cheapest, as `frames.fill_cost`."""
    missing, cost = edges[limits + LEAST_MEMBERS] - required, np.int64(0)
    last, last_index = np.int64(-1), -1
    while missing > 0:
        best, best_index = np.int64(INFINITE), -1
        for index in range(edges[limits + FILLERS]):
            own = np.int64(detour_cost(distance, unit, edges[limits + FIRST_FILLER + 2 * index + 1], after))
            if own < best and (own > last or (own == last and index > last_index)):
                best, best_index = own, index
        if best_index < 0:
            return INFINITE
        times = missing if edges[limits + FIRST_FILLER + 2 * best_index] < 0 else 1
        cost += times * best
        missing -= times
        last, last_index = best, best_index
    return saturate(cost)


@lean
def _evaluate(code: Array, edges: Array, costs: Array, distance: Array, unit: int, state: int) -> int:
    op, a, b = code[state, 0], code[state, 1], code[state, 2]
    best = np.int64(INFINITE)
    if op == RETURN:
        best = np.int64(0)
    elif op == BYTE:
        best = np.int64(costs[a]) + distance[b, unit]
    elif op == RANGES:
        best = _cheapest_edge(code, edges, costs, distance, unit, state, 0, 0)
    elif op == EXCEPT:
        best = _cheapest_edge(code, edges, costs, distance, unit, code[state, 3], a, b)
        for pair in range(a, a + 2 * b, 2):
            best = min(best, np.int64(costs[edges[pair]]) + distance[edges[pair + 1], unit])
    elif op == SPLIT:
        for index in range(a, a + b):
            best = min(best, np.int64(distance[edges[index], unit]))
    elif op == CALL:
        best = np.int64(distance[a, unit]) + distance[b, unit]
    elif op == LOOP:
        best = np.int64(distance[edges[a + 1], unit])
        if b > 0:
            best += np.int64(b) * distance[edges[a], unit]
    elif op == OBJECT:
        # With required members the object ends behind a member, not right behind its bracket.
        best = np.int64(
            max(distance[edges[a], unit], distance[edges[a + 1], unit])
            if b > 0 or code[state, 3] > 0
            else distance[edges[a], unit]
        )
        for index in range(b):
            best += np.int64(detour_cost(distance, unit, edges[a + 3 + 2 * index], edges[a + 1]))
        if code[state, 3] > 0:
            best += np.int64(_fillers_cost(edges, distance, unit, code[state, 3], b, edges[a + 1]))
    elif op == TEXT:
        best = np.int64(text_cost(code, edges, distance, unit, state, 0))
    elif op == CHOOSE:
        for index in range(b):
            best = min(best, np.int64(distance[edges[a + 2 * index + 1], unit]))
    elif op == CLOSE:
        best = np.int64(distance[b, unit])
    elif op == RESERVE:
        best = np.int64(distance[b, unit]) + (a if unit == IN_TOKENS else 0)
    elif op == KEY_END:
        best = np.int64(distance[b, unit]) + (DETOUR if unit == IN_TOKENS and code[state, 3] == 0 else 0)
    return saturate(best)


@lean
def _sweep(code: Array, edges: Array, order: Array, costs: Array, distance: Array, unit: int) -> bool:
    changed = False
    for state in order:
        value = _evaluate(code, edges, costs, distance, unit, state)
        if value < distance[state, unit]:
            distance[state, unit] = value
            changed = True
    return changed


@lean
def _token_sweep(code: Array, edges: Array, order: Array, trie: TokenTrie, distance: Array) -> bool:
    """As `_sweep`, and with tokens of several bytes along chains of BYTE states."""
    changed = False
    for first in order:
        if distance[first, IN_TOKENS] == BLOCKED:
            continue
        best = _evaluate(code, edges, trie.byte_cost, distance, IN_TOKENS, first)
        state, node = first, -1
        while code[state, 0] == BYTE:
            node = child(trie, node, code[state, 1])
            if node < 0:
                break
            state = code[state, 2]
            if trie.token[node] >= 0:
                best = min(best, distance[state, IN_TOKENS] + 1)
        if best < distance[first, IN_TOKENS]:
            distance[first, IN_TOKENS] = best
            changed = True
    return changed
