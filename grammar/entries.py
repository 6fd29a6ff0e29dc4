"""What Python calls of the compiled automaton: with addresses of handles (`handles.py`), which are quick to pass."""

from __future__ import annotations

from typing import Any

from structgen.grammar import configuration, repeated_keys, tables, token_mask
from structgen.grammar.configuration import ENDED_KEY
from structgen.grammar.handles import key_text_at, mask_tables_at, tables_at
from structgen.grammar.numba_cache import lean
from structgen.grammar.tables import DEAD, INFINITE, NEEDED, Array


@lean
def fill(automaton: Any, vocabulary: Any, config: int, limit: int, mask: Array) -> int:
    """See `token_mask.fill`."""
    return token_mask.fill(tables_at(automaton), mask_tables_at(vocabulary), config, limit, mask)


@lean
def advance_token(automaton: Any, vocabulary: Any, config: int, token: int) -> int:
    """`configuration.advance` by the bytes of a token; DEAD too where tokens cannot complete what follows."""
    reached, known = tables_at(automaton), mask_tables_at(vocabulary)
    following = configuration.advance(reached, config, known.blob, known.starts[token], known.starts[token + 1])
    if following >= 0 and reached.config[following, NEEDED] >= INFINITE:
        return DEAD
    return following


@lean
def follow_token(automaton: Any, vocabulary: Any, config: int, token: int) -> int:
    """`configuration.follow` by the bytes of a token; DEAD too where tokens cannot complete what follows."""
    reached, known = tables_at(automaton), mask_tables_at(vocabulary)
    following = configuration.follow(reached, config, known.blob, known.starts[token], known.starts[token + 1])
    if following >= 0 and reached.config[following % ENDED_KEY, NEEDED] >= INFINITE:
        return DEAD
    return following


@lean
def advance(automaton: Any, config: int, text: Array, start: int, stop: int) -> int:
    """See `configuration.advance`."""
    return configuration.advance(tables_at(automaton), config, text, start, stop)


@lean
def start_config(automaton: Any, state: int) -> int:
    """See `configuration.start_config`."""
    return configuration.start_config(tables_at(automaton), state)


@lean
def with_pairs(automaton: Any, pairs: Array) -> int:
    """The configuration with exactly these pairs (int64[n])."""
    reached = tables_at(automaton)
    for index in range(len(pairs)):
        reached.work[1, index] = pairs[index]
    return configuration.intern(reached, len(pairs))


@lean
def single_byte(automaton: Any, config: int) -> int:
    """See `configuration.single_byte`."""
    return configuration.single_byte(tables_at(automaton), config)


@lean
def rehash_stacks(automaton: Any) -> None:
    """Enter all stacks in an empty hash table."""
    tables.rehash_stacks(tables_at(automaton))


@lean
def rehash_configs(automaton: Any) -> None:
    """Enter all configurations in an empty hash table."""
    tables.rehash_configs(tables_at(automaton))


@lean
def append_bytes(memory: Any, text: Array) -> None:
    """`repeated_keys.append` with all of a text."""
    repeated_keys.append(key_text_at(memory), text, 0, len(text))


@lean
def append_token(memory: Any, vocabulary: Any, token: int) -> None:
    """`repeated_keys.append` with the bytes of a token."""
    known = mask_tables_at(vocabulary)
    repeated_keys.append(key_text_at(memory), known.blob, known.starts[token], known.starts[token + 1])


@lean
def would_repeat(memory: Any, vocabulary: Any, token: int) -> bool:
    """See `repeated_keys.would_repeat`."""
    return repeated_keys.would_repeat(key_text_at(memory), mask_tables_at(vocabulary), token)


@lean
def forbid(memory: Any, vocabulary: Any, row: Array, also_spelled: bool) -> bool:
    """See `repeated_keys.forbid`."""
    return repeated_keys.forbid(key_text_at(memory), mask_tables_at(vocabulary), row, also_spelled)
