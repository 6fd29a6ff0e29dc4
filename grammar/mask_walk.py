"""Walks through the token trie, along the transitions of a configuration, that set and clear bits of a mask.

The look-up of a transition is written out in the two hot loops, where `step` would say the same: measured, a call
there costs up to half of the time of a new mask.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.byte_atoms import ABOVE, BEHIND, set_by_atoms
from structgen.grammar.configuration import transition
from structgen.grammar.loops import LEAVE, NO_LOOP, STAY, know_loop, loop_behind, step
from structgen.grammar.mask_tables import MaskTables, TokenGroups
from structgen.grammar.numba_cache import lean
from structgen.grammar.ops import BYTE, EXCEPT, RANGES
from structgen.grammar.plain_bytes import QUOTE, is_blank, is_plain_byte
from structgen.grammar.tables import DEAD, ENDS_KEY, INFINITE, LENGTH, NEEDED, START, UNKNOWN, Array, Tables
from structgen.grammar.token_trie import BYTE_READ, DEPTH, END, TOKEN

LETTER = 0x61  # any plain character stands for all
NOT_ALIKE = 1  # it does not


@lean
def copy_mask(target: Array, source: Array) -> None:
    for word in range(len(target)):
        target[word] = source[word]


@lean
def _set_token(mask: Array, same: Array, token: int) -> None:
    """Allow a token and all that have the same bytes; `same` is empty where no two have."""
    mask[token >> 5] |= np.int32(1) << np.int32(token & 31)
    while len(same) > 0 and same[token] >= 0:
        token = same[token]
        mask[token >> 5] |= np.int32(1) << np.int32(token & 31)


@lean
def _clear_token(mask: Array, same: Array, token: int) -> None:
    while token >= 0:
        mask[token >> 5] &= ~(np.int32(1) << np.int32(token & 31))
        token = same[token] if len(same) > 0 else -1


@lean
def _clear_subtree(mask: Array, shared: MaskTables, nodes: Array, root: int) -> None:
    for node in range(root, nodes[root, END]):
        _clear_token(mask, shared.same, nodes[node, TOKEN])


@lean
def walk(tables: Tables, shared: MaskTables, nodes: Array, config: int, limit: int, mask: Array) -> int:
    """Visit every token of a trie that the transitions allow."""
    return _walk_part(tables, shared, nodes, (0, len(nodes)), config, NO_LOOP, 0, limit, mask)


@lean
def walk_all(tables: Tables, shared: MaskTables, config: int, limit: int, mask: Array, with_blanks: bool) -> int:
    """Visit every token of the vocabulary; those that begin with a blank only where asked for. `mask` is overwritten.

    The subtrees of first bytes are far apart in memory, so dead ones are not even looked at. Where most characters lead
    to one configuration and back to it, the mask of that one is taken, and first bytes that lead elsewhere from here
    are walked.
    """
    loop = loop_behind(tables, config)
    if loop >= 0:
        status = know_loop(tables, shared.atom, loop)
        if status < 0:
            return status
        stay = tables.loops[loop, STAY]
        if stay & (stay - 1) == 0 or tables.config[loop, NEEDED] > limit:
            loop = NO_LOOP
    if loop < NO_LOOP:
        return loop
    if loop == NO_LOOP:
        mask[:] = 0
    else:
        status = _walk_loop(tables, shared, loop, limit)
        if status < 0:
            return status
        copy_mask(mask, tables.loop_mask)
        for slot in range(3):
            tables.seen[slot] = max(tables.seen[slot], tables.loop_seen[2 + slot])
    for byte in range(256):
        if shared.root[byte] >= 0:
            status = _walk_root(tables, shared, byte, config, loop, limit, mask, with_blanks)
            if status < 0:
                return status
    return 0


@lean
def _walk_loop(tables: Tables, shared: MaskTables, loop: int, limit: int) -> int:
    """Make `tables.loop_mask` the mask of a loop, unless it is that already: atoms decide about most tokens."""
    seen, known, mask = tables.seen, tables.loop_seen, tables.loop_mask
    if known[0] == loop and known[1] == limit:
        return 0
    known[0] = -1  # until it is complete
    seen[0], seen[1], seen[2] = tables.config[loop, NEEDED], 0, tables.config[loop, ENDS_KEY]
    set_by_atoms(mask, shared.token_atoms, tables.loops[loop, STAY])
    for byte in range(256):
        root = shared.root[byte]
        following = step(tables, loop, byte) if root >= 0 else DEAD
        if following < UNKNOWN:
            return following
        if following != DEAD:
            status = _walk_subtree(tables, shared, root, loop, loop, tables.loops[loop, STAY], limit, mask)
            if status < 0:
                return status
    known[0], known[1], known[2], known[3], known[4] = loop, limit, seen[0], seen[1], seen[2]
    seen[0], seen[1], seen[2] = 0, 0, 0
    return 0


@lean
def _walk_root(
    tables: Tables,
    shared: MaskTables,
    byte: int,
    config: int,
    loop: int,
    limit: int,
    mask: Array,
    with_blanks: bool,
) -> int:
    """Visit the tokens that begin with a byte; the mask is that of `loop`, if there is one, up to here."""
    root = shared.root[byte]
    following = step(tables, config, byte) if with_blanks or not is_blank(byte) else DEAD
    if following < UNKNOWN:
        return following
    if loop >= 0:
        beside = step(tables, loop, byte)
        if beside < UNKNOWN:
            return beside
        if following == beside:
            return 0
        _clear_subtree(mask, shared, shared.nodes, root)
    if following == DEAD:
        return 0
    return _walk_subtree(tables, shared, root, config, loop, 0, limit, mask)


@lean
def _walk_subtree(
    tables: Tables, shared: MaskTables, root: int, config: int, loop: int, by_atoms: int, limit: int, mask: Array
) -> int:
    """Visit a subtree of the trie of all tokens, but for what `by_atoms` has decided about behind `loop`."""
    part = (root, shared.nodes[root, END])
    return _walk_part(tables, shared, shared.nodes, part, config, loop, by_atoms, limit, mask)


@lean
def _walk_part(
    tables: Tables,
    shared: MaskTables,
    nodes: Array,
    part: tuple[int, int],
    config: int,
    loop: int,
    by_atoms: int,
    limit: int,
    mask: Array,
) -> int:
    """Visit the nodes of a part of a trie; with a `loop` that is the trie of all tokens, whose nodes have atoms."""
    # A field of a reference is read from memory each time, unless a variable holds it.
    atoms, same = shared.atoms, shared.same
    path, transitions, configs = tables.path, tables.transitions, tables.config
    highest, refused, ends = tables.seen[0], tables.seen[1], tables.seen[2]
    stay, undecided = np.int64(0), np.int64(0)
    if loop >= 0:
        stay = tables.loops[loop, STAY]
        undecided = tables.loops[loop, LEAVE] | (stay & ~by_atoms)
    path[0] = config
    node, stop = part
    while node < stop:
        depth, byte = nodes[node, DEPTH], nodes[node, BYTE_READ]
        following = transitions[path[depth], byte]
        if following < 0:
            if following == UNKNOWN:
                following = transition(tables, path[depth], byte)
                if following < UNKNOWN:
                    return following
            if following == DEAD:
                node = nodes[node, END]
                continue
        if following == loop:
            if atoms[node, BEHIND] & undecided == 0 and atoms[node, ABOVE] & ~by_atoms == 0:
                node = nodes[node, END]
                continue
            if atoms[node, BEHIND] & ~stay == 0:  # all tokens below end in the loop, which is within the limit
                for inner in range(node, nodes[node, END]):
                    if nodes[inner, TOKEN] >= 0:
                        _set_token(mask, same, nodes[inner, TOKEN])
                node = nodes[node, END]
                continue
        path[depth + 1] = following
        ends |= configs[following, ENDS_KEY]
        token = nodes[node, TOKEN]
        if token >= 0:
            needed = configs[following, NEEDED]
            if needed <= limit:
                highest = max(highest, needed)
                _set_token(mask, same, token)
            elif needed < INFINITE:
                refused = max(refused, needed)
        node += 1
    tables.seen[0], tables.seen[1], tables.seen[2] = highest, refused, ends
    return 0


@lean
def difference_walk(tables: Tables, shared: MaskTables, config: int, base: int, limit: int, mask: Array) -> int:
    """Turn the mask of `base` into that of `config`: only tokens on which the two go different ways are visited."""
    path = tables.path
    half = len(path) // 2
    path[0], path[half] = config, base
    nodes = shared.others
    node = 0
    while node < len(nodes):
        depth, byte = nodes[node, DEPTH], nodes[node, BYTE_READ]
        here, there = path[depth], path[half + depth]
        following = tables.transitions[here, byte]
        if following == UNKNOWN:
            following = transition(tables, here, byte)
            if following < UNKNOWN:
                return following
        beside = DEAD
        if there >= 0:
            beside = tables.transitions[there, byte]
            if beside == UNKNOWN:
                beside = transition(tables, there, byte)
                if beside < UNKNOWN:
                    return beside
        if following == beside:
            node = nodes[node, END]
            continue
        if following == DEAD:
            _clear_subtree(mask, shared, nodes, node)
            node = nodes[node, END]
            continue
        path[depth + 1], path[half + depth + 1] = following, beside
        tables.seen[2] |= tables.config[following, ENDS_KEY]
        if nodes[node, TOKEN] >= 0:
            if _is_within(tables, following, limit):
                _set_token(mask, shared.same, nodes[node, TOKEN])
            else:
                _clear_token(mask, shared.same, nodes[node, TOKEN])
        node += 1
    return 0


@lean
def _is_within(tables: Tables, config: int, limit: int) -> bool:
    needed = tables.config[config, NEEDED]
    if needed <= limit:
        tables.seen[0] = max(tables.seen[0], needed)
        return True
    if needed < INFINITE:
        tables.seen[1] = max(tables.seen[1], needed)
    return False


@lean
def allow_exits(tables: Tables, shared: MaskTables, config: int, room: int, limit: int, mask: Array) -> int:
    """Allow the tokens that end the string behind at most `room` plain characters, group by group.

    What is behind the quote may depend on how many characters came before it, up to where more change nothing: a
    text of at least n characters, or one that ends in a loop.

    Returns:
        NOT_ALIKE where it depends on which characters came before it (a pattern that is searched for): then each token
        has to be walked. Else 0, or GROW / LIMIT.
    """
    length, outside, longest = 0, -1, len(shared.masks) - 1
    while length <= min(room, longest):
        if length > 0 and not only_interior_takes_text(tables, config):
            return NOT_ALIKE
        following = step(tables, config, QUOTE)
        if following < UNKNOWN:
            return following
        after = step(tables, config, LETTER)
        if after < UNKNOWN:
            return after
        # With a count, configurations differ for ever; the quote once open stays open.
        settled = after == config or (following >= 0 and following == outside)
        if following >= 0:
            last = room if settled else length
            status = walk_groups(tables, shared.exits, following, (length, last), limit, mask)
            if status < 0:
                return status
        if settled or after == DEAD:
            break
        outside, config = following, after
        length += 1
    return 0


@lean
def walk_groups(
    tables: Tables, groups: TokenGroups, config: int, lengths: tuple[int, int], limit: int, mask: Array
) -> int:
    """Allow the tokens that have `lengths` characters before an ending which can be read from `config` on."""
    tables.seen[2] |= tables.config[config, ENDS_KEY]
    if _is_within(tables, config, limit):
        _set_group(mask, groups, 0, lengths)
    path, nodes, transitions = tables.path, groups.nodes, tables.transitions
    path[0] = config
    node = 0
    while node < len(nodes):
        depth, byte = nodes[node, DEPTH], nodes[node, BYTE_READ]
        following = transitions[path[depth], byte]
        if following < 0:
            if following == UNKNOWN:
                following = transition(tables, path[depth], byte)
                if following < UNKNOWN:
                    return following
            if following == DEAD:
                node = nodes[node, END]
                continue
        path[depth + 1] = following
        tables.seen[2] |= tables.config[following, ENDS_KEY]
        if nodes[node, TOKEN] >= 0 and _is_within(tables, following, limit):
            _set_group(mask, groups, nodes[node, TOKEN], lengths)
        node += 1
    return 0


@lean
def _set_group(mask: Array, groups: TokenGroups, group: int, lengths: tuple[int, int]) -> None:
    for index in range(groups.start[group], groups.start[group + 1]):
        token = groups.tokens[index]
        if lengths[0] <= groups.length[token] <= lengths[1]:
            mask[token >> 5] |= np.int32(1) << np.int32(token & 31)


@lean
def only_interior_takes_text(tables: Tables, config: int) -> bool:
    """Whether plain text is read by the pairs inside a string alone, so that their room decides about it."""
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b, kind = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2], tables.code[state, 3]
        if op == BYTE:
            if is_plain_byte(a):
                return False
        elif op == EXCEPT:
            return False
        elif op == RANGES and kind <= 0:
            for edge in range(a, a + 3 * b, 3):
                for byte in range(tables.edges[edge], tables.edges[edge + 1] + 1):
                    if is_plain_byte(byte):
                        return False
    return True
