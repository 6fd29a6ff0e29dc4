"""Configurations that most characters lead back to, as inside `[A-Za-z0-9]+`. See `byte_atoms.py`."""

from __future__ import annotations

from structgen.grammar.byte_atoms import BEYOND_ASCII, BROKEN, NEAR_SPACES, atom_of_long, second_bytes
from structgen.grammar.configuration import transition
from structgen.grammar.numba_cache import lean
from structgen.grammar.tables import DEAD, UNKNOWN, Array, Tables

# Columns of `tables.loops`: the atoms that lead back, and those of which some character leads elsewhere (all others are
# refused). NOT_KNOWN in the first where they were not worked out.
STAY, LEAVE = range(2)
NOT_KNOWN = -1
NO_LOOP = -1
MIXED = UNKNOWN  # several configurations


@lean
def step(tables: Tables, config: int, byte: int) -> int:
    """The configuration after a byte; DEAD, GROW or LIMIT."""
    following = tables.transitions[config, byte]
    return transition(tables, config, byte) if following == UNKNOWN else following


@lean
def loop_behind(tables: Tables, config: int) -> int:
    """A configuration that some letter or digit leads to from `config`, and then back to; NO_LOOP, GROW or LIMIT."""
    for byte in (0x65, 0x41, 0x35):
        following = step(tables, config, byte)
        if following == DEAD:
            continue
        if following < UNKNOWN:
            return following
        again = step(tables, following, byte)
        if again < UNKNOWN:
            return again
        if again == following:
            return following
    return NO_LOOP


@lean
def know_loop(tables: Tables, atom: Array, loop: int) -> int:
    """Work out `tables.loops` for a configuration. Returns 0, or GROW / LIMIT."""
    if tables.loops[loop, STAY] != NOT_KNOWN:
        return 0
    status = _sort_atoms(tables, atom, loop)
    if status >= 0:
        tables.loops[loop, STAY], tables.loops[loop, LEAVE] = tables.seen[3], tables.seen[4]
    return status


@lean
def _sort_atoms(tables: Tables, atom: Array, loop: int) -> int:
    """Work out which atoms lead back to a configuration with all their characters, into `seen[3]`, and of which some
    character leads to another one, or some lead back and some are refused, into `seen[4]`.

    Returns 0, or GROW / LIMIT.
    """
    tables.seen[3:] = 0
    for byte in range(0x80):
        following = step(tables, loop, byte)
        if following < UNKNOWN:
            return following
        _note(tables, following, loop, atom[byte])
    for first in range(0xC2, 0xF5):
        if ~(tables.seen[5] | (tables.seen[3] & tables.seen[4])) & (BEYOND_ASCII | NEAR_SPACES) == 0:
            break  # both are known to be told apart
        status = _note_long(tables, first, step(tables, loop, first), loop)
        if status < UNKNOWN:
            return status
    back, dead, elsewhere = tables.seen[3], tables.seen[4], tables.seen[5] | BROKEN
    elsewhere |= back & dead
    tables.seen[3], tables.seen[4] = back & ~elsewhere, elsewhere
    return 0


@lean
def _note(tables: Tables, following: int, loop: int, atom: int) -> None:
    """Sort an atom by where one of its characters leads: seen[3] has those that lead back, then come those that
    are refused, then those that lead to somewhere else."""
    if following == loop:
        tables.seen[3] |= atom
    elif following == DEAD:
        tables.seen[4] |= atom
    else:
        tables.seen[5] |= atom


@lean
def _note_long(tables: Tables, first: int, config: int, loop: int) -> int:
    """Sort the characters beyond ASCII that begin with a byte, which leads to `config`."""
    if config < UNKNOWN:
        return config
    low, high = second_bytes(first)
    before, after = DEAD, DEAD
    for second in range(low, high + 1):
        following = step(tables, config, second) if config >= 0 else DEAD
        if following < UNKNOWN:
            return following
        if following != before:  # most lead to the same
            before, after = following, following
            if first >= 0xE0:
                after = _behind(tables, after)
            if first >= 0xF0:
                after = _behind(tables, after)
            if after < MIXED:
                return after
        _note(tables, after, loop, atom_of_long(first, second))
    return 0


@lean
def _behind(tables: Tables, config: int) -> int:
    """Where any continuation byte leads; MIXED when they are told apart; DEAD, GROW or LIMIT."""
    if config < 0:
        return config
    behind = step(tables, config, 0x80)
    for byte in range(0x81, 0xC0):
        following = step(tables, config, byte)
        if following < UNKNOWN:
            return following
        if following != behind:
            return MIXED
    return behind
