"""Sets of characters as one number, to decide about most tokens at once where a pattern stays in one place.

The bytes of ASCII fall into some 45 atoms, one bit each: what patterns tend to tell apart is an atom of its own. All
other characters are two more, those near the spaces and line ends of Unicode (which `.` and `\\S` leave out) and the
rest, and a token that is not whole characters has the atom BROKEN. A pattern such as
`[A-Za-z0-9]+` leads from one configuration back to it with most characters: then a token all of whose atoms do so is
allowed, and a subtree of the trie in which nothing leads elsewhere need not be walked.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.tables import Array
from structgen.grammar.token_trie import BYTE_READ, DEPTH, END, TOKEN

BROKEN, BEYOND_ASCII, NEAR_SPACES = 1 << 0, 1 << 1, 1 << 2
_RANGES = ("09", "af", "gz", "AF", "GZ", "\x00\x1f")
_SINGLE = (*range(0x20, 0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0x80))


def _atoms() -> Array:
    """int64[256]: the bit of the atom of each byte of ASCII."""
    out = np.full(256, BROKEN, np.int64)
    bit = 3
    for ends in _RANGES:
        out[ord(ends[0]) : ord(ends[1]) + 1] = 1 << bit
        bit += 1
    for byte in _SINGLE:
        out[byte] = 1 << bit
        bit += 1
    return out


ATOM = _atoms()
# Columns of the atoms of trie nodes: those from the root to a node, its own byte included, and those of all that comes
# behind it in the tokens of its subtree.
ABOVE, BEHIND = range(2)


@lean_inline
def atom_of_long(first: int, second: int) -> int:
    """The atom of a character beyond ASCII, by its first two bytes."""
    near = (
        first == 0xC2
        or (first == 0xE1 and second == 0x9A)
        or (first == 0xE2 and (second == 0x80 or second == 0x81))
        or (first == 0xE3 and second == 0x80)
        or (first == 0xEF and second == 0xBB)
    )
    return NEAR_SPACES if near else BEYOND_ASCII


@lean_inline
def second_bytes(first: int) -> tuple[int, int]:
    """The lowest and the highest second byte of a character."""
    low = 0xA0 if first == 0xE0 else (0x90 if first == 0xF0 else 0x80)
    high = 0x9F if first == 0xED else (0x8F if first == 0xF4 else 0xBF)
    return low, high


@lean
def atoms_of_nodes(nodes: Array, atom: Array, path: Array, out: Array) -> None:
    """Fill int64[N, 2] for a trie.

    Args:
        path: int64[height + 1, 4], scratch: for each depth the atoms of whole characters, how many bytes the last
            character lacks, and its first byte and atom, if they are known.
    """
    for node in range(len(nodes)):
        depth, byte = int(nodes[node, DEPTH]), int(nodes[node, BYTE_READ])
        whole, lacking, first, last = 0, 0, 0, 0
        if depth > 0:
            whole, lacking = int(path[depth - 1, 0]), int(path[depth - 1, 1])
            first, last = int(path[depth - 1, 2]), int(path[depth - 1, 3])
        if lacking > 0:
            low, high = second_bytes(first) if last == 0 else (0x80, 0xBF)
            last = atom_of_long(first, byte) if last == 0 else last
            lacking -= 1
            if not low <= byte <= high:
                whole, lacking = whole | BROKEN, 0
            elif lacking == 0:
                whole |= last
        elif byte < 0x80:
            whole |= int(atom[byte])
        elif byte < 0xC2 or byte > 0xF4:
            whole |= BROKEN
        else:
            lacking, first, last = (1 if byte < 0xE0 else (2 if byte < 0xF0 else 3)), byte, 0
        path[depth, 0], path[depth, 1], path[depth, 2], path[depth, 3] = whole, lacking, first, last
        out[node, ABOVE] = whole | (BROKEN if lacking > 0 else 0)
        # For now the atom of the character that ends here; the root's character is nobody's child.
        out[node, BEHIND] = 0
        if lacking == 0:
            out[node, BEHIND] = last if byte >= 0x80 else atom[byte]
        elif nodes[node, TOKEN] >= 0:
            out[node, BEHIND] = BROKEN
        if whole & BROKEN != 0:
            out[node, BEHIND] |= BROKEN
    # Children lie behind their parent: going backwards, what they and those below them have is complete in time.
    for node in range(len(nodes) - 1, -1, -1):
        out[node, BEHIND] |= _of_children(nodes, out, node)
    for node in range(len(nodes)):
        out[node, BEHIND] = _of_children(nodes, out, node)


@lean
def _of_children(nodes: Array, out: Array, node: int) -> int:
    behind, child = np.int64(0), node + 1
    while child < nodes[node, END]:
        behind |= out[child, BEHIND]
        child = nodes[child, END]
    return int(behind)


@lean
def atoms_of_tokens(nodes: Array, atoms: Array, same: Array, out: Array) -> None:
    """Fill int64[n] with the atoms of each token; -1 (all atoms) where an id has none."""
    out[:] = -1
    for node in range(len(nodes)):
        token = nodes[node, TOKEN]
        while token >= 0:
            out[token] = atoms[node, ABOVE]
            token = same[token]


@lean
def set_by_atoms(mask: Array, token_atoms: Array, allowed: int) -> None:
    """Set mask[:] to the tokens that have only allowed atoms."""
    away = ~np.int64(allowed)
    for word in range(len(mask)):
        bits = np.int32(0)
        for bit in range(32):
            if token_atoms[(word << 5) + bit] & away == 0:
                bits |= np.int32(1) << np.int32(bit)
        mask[word] = bits
