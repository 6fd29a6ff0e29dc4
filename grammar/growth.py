"""More room for the tables of an automaton."""

from __future__ import annotations

import numpy as np

from structgen.grammar.entries import rehash_configs, rehash_stacks
from structgen.grammar.handles import Handle
from structgen.grammar.memory_pool import POOL
from structgen.grammar.tables import CONFIGS, ELEMENTS, ERROR, STACKS, WANTED, Array, Tables

LARGE = 2048  # configurations, of about 1 KB


def _longer(array: Array, size: int, used: int) -> Array:
    out = POOL.take((size, *array.shape[1:]), array.dtype.type)
    out[:used] = array[:used]
    return out


def grown(tables: Tables) -> Tables:
    """Tables with room again: whatever is more than half full grows fourfold and more. Clears the error.

    Memory that was never written costs nothing, and copying does: large tables get room for good at once.
    """
    tables.meta[ERROR] = 0
    changed: dict[str, Array] = {}
    stacks, configs, elements = (int(tables.meta[slot]) for slot in (STACKS, CONFIGS, ELEMENTS))
    if stacks * 2 >= len(tables.stack):
        changed["stack"] = _longer(tables.stack, len(tables.stack) * 4, stacks)
        changed["stack_hash"] = _free_slots(len(tables.stack) * 8)
    if configs * 2 >= len(tables.config):
        size = len(tables.config) * (4 if len(tables.config) < LARGE else 16)
        changed["config"] = _longer(tables.config, size, configs)
        changed["transitions"] = _longer(tables.transitions, size, configs)
        changed["loops"] = _longer(tables.loops, size, configs)
        changed["config_hash"] = _free_slots(size * 2)
    wanted = int(tables.meta[WANTED])
    if (elements + wanted) * 2 >= len(tables.elements):
        changed["elements"] = _longer(tables.elements, 4 * (len(tables.elements) + wanted), elements)
    tables = tables._replace(**changed)
    if "stack_hash" in changed:
        rehash_stacks(Handle(tables).address)
    if "config_hash" in changed:
        rehash_configs(Handle(tables).address)
    return tables


def _free_slots(size: int) -> Array:
    slots = POOL.take((size,), np.int32)
    slots.fill(-1)
    return slots
