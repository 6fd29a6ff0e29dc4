"""Masks: which tokens a configuration allows.

A mask is int32[ceil(V/32)], bit `t % 32` of word `t // 32` set when token `t` is allowed. A token is allowed when
its bytes lead to a configuration that tokens of the vocabulary can complete.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.configuration import BYTE, EXCEPT, RANGES, transition
from structgen.grammar.numba_cache import jit
from structgen.grammar.program import Interior
from structgen.grammar.tables import DEAD, INFINITE, UNKNOWN, Array, Tables
from structgen.grammar.token_trie import TokenTrie

FREE, COUNTED = int(Interior.FREE), int(Interior.COUNTED)
ANY_ROOM = 1 << 30


@jit
def set_token(mask: Array, trie: TokenTrie, token: int) -> None:
    """Allow a token and all that have the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.int32(1) << np.int32(token & 31)
        token = trie.same[token]


@jit
def walk(tables: Tables, trie: TokenTrie, config: int, limit: int, path: Array, mask: Array, seen: Array) -> int:
    """Set the bits of all tokens of `trie` that lead from `config` to where at most `limit` tokens are needed.

    Args:
        path: int32[height + 1], scratch.
        seen: int64[2], updated: the highest cost (min_tokens_to_complete) after an allowed token, and the highest
            after one that only the limit forbids.
    Returns:
        0, or GROW / LIMIT.
    """
    path[0] = config
    node, nodes = 0, len(trie.byte)
    while node < nodes:
        depth = trie.depth[node]
        here = path[depth]
        following = tables.transitions[here, trie.byte[node]]
        if following == UNKNOWN:
            following = transition(tables, here, trie.byte[node])
            if following < UNKNOWN:
                return following
        if following == DEAD:
            node = trie.end[node]
            continue
        path[depth + 1] = following
        token = trie.token[node]
        if token >= 0:
            cost = tables.config_cost[following]
            if cost <= limit:
                set_token(mask, trie, token)
                seen[0] = max(seen[0], cost)
            elif cost < INFINITE:
                seen[1] = max(seen[1], cost)
        node += 1
    return 0


@jit
def interior_room(tables: Tables, config: int, limit: int, seen: Array) -> int:
    """How many plain characters the configuration takes for certain, with at most `limit` tokens needed after them.

    -1: it is not inside a string, or the limit decides token by token. ANY_ROOM: any number. Updates `seen` as
    `walk` does.
    """
    room = -1
    for index in range(tables.config_start[config], tables.config_start[config + 1]):
        key = tables.elements[index]
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        op, kind, detour = tables.code[state, 0], tables.code[state, 3], 0
        if op == EXCEPT:
            # Text that ends in a forbidden key needs one more character, so up to two more tokens.
            kind, detour = tables.code[kind, 3], 2
        elif op != RANGES:
            continue
        if kind == 0:
            continue
        cost = np.int64(tables.token_distance[state]) + tables.stack_cost[stack] + 1 + detour
        if cost > limit:
            return -1
        seen[0] = max(seen[0], cost)
        if kind == FREE:
            room = ANY_ROOM
        else:
            most = tables.code[tables.stack_return[stack], 3]
            room = max(room, ANY_ROOM if most < 0 else most - tables.stack_count[stack])
    return room


@jit
def only_interior_takes_text(tables: Tables, config: int) -> bool:
    """Whether plain text is read by the pairs inside a string alone, so that their room decides about it."""
    for index in range(tables.config_start[config], tables.config_start[config + 1]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b, kind = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2], tables.code[state, 3]
        if op == BYTE:
            if is_plain_byte(a):
                return False
        elif op == EXCEPT:
            return False
        elif op == RANGES and kind == 0:
            for edge in range(a, a + 3 * b, 3):
                for byte in range(tables.edges[edge], tables.edges[edge + 1] + 1):
                    if is_plain_byte(byte):
                        return False
    return True


@jit
def is_plain_byte(byte: int) -> bool:
    """A byte of text that a JSON string holds as it is."""
    return byte >= 0x20 and byte != 0x22 and byte != 0x5C


@jit
def plain_length(text: Array) -> int:
    """The number of characters when `text` (uint8) is plain string content in whole UTF-8 characters; else -1."""
    count, index = 0, 0
    while index < len(text):
        byte = text[index]
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
            if index + step >= len(text) or not low <= text[index + step] <= high:
                return -1
            low, high = 0x80, 0xBF
        index += tail + 1
        count += 1
    return count
