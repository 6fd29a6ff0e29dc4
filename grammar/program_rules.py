"""The rules of a program: what is called, how large it is, and where in a schema it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from structgen.grammar.json_schema.compile import _SchemaCompiler
from structgen.grammar.json_schema.document import SchemaDocument
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.program import Op, Program, TextField
from structgen.grammar.tables import IN_BYTES, INFINITE

MAX_STATES = 200_000  # of programs up to this size the rules are measured


@dataclass(frozen=True)
class Rule:
    """A part of the program that is called: its first state, its own states, the calls to it, its shortest text."""

    state: int
    states: int | None  # None: the program is too large to count them
    calls: int
    shortest_bytes: int | None  # None: nothing matches
    pointer: str | None = None  # where in a schema it comes from, when that is known


def pointers_of_schema(schema: Any, options: JsonOptions) -> Callable[[Program], Mapping[int, str]]:
    """Which rule comes from where in a schema, for the program that this schema has."""

    def pointers(program: Program) -> Mapping[int, str]:
        compiler = _SchemaCompiler(SchemaDocument(schema, options))
        again = compiler.compile()  # states are numbered in the same order every time; if not, nothing is known
        return compiler._pointers if np.array_equal(again.code, program.code) else {}

    return pointers


def ops_of(program: Program) -> dict[str, int]:
    """How many states of each kind, the most first."""
    return {Op(op).name: count for op, count in Counter(program.code[:, 0].tolist()).most_common()}


def rules_of(program: Program, pointers: Mapping[int, str]) -> list[Rule]:
    """The root, and all that is called."""
    calls = Counter(program.code[program.code[:, 0] == Op.CALL, 1].tolist())
    shortest = program.byte_distance[:, IN_BYTES]
    rules = [program.start, *sorted(state for state in calls if state != program.start)]
    return [
        Rule(
            state=state,
            states=_own_states(program, state) if program.size <= MAX_STATES else None,
            calls=calls[state],
            shortest_bytes=int(shortest[state]) if shortest[state] < INFINITE else None,
            pointer=pointers.get(state),
        )
        for state in rules
    ]


def _own_states(program: Program, start: int) -> int:
    """The states from `start` on, without those of what it calls."""
    seen, todo = {start}, [start]
    while todo:
        for target in targets_of(program, todo.pop()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return len(seen)


def targets_of(program: Program, state: int) -> list[int]:
    """Where a state leads within its rule, as program.py lays states out."""
    op, a, b, c = program.code[state].tolist()
    edges = program.edges
    if op in (Op.BYTE, Op.CALL, Op.KEY_END, Op.RESERVE, Op.CLOSE):
        return [b]
    if op == Op.RANGES:
        return list(edges[a + 2 : a + 3 * b : 3].tolist())
    if op == Op.SPLIT:
        return list(edges[a : a + b].tolist())
    if op == Op.LOOP:
        return list(edges[a : a + 2].tolist())
    if op == Op.OBJECT:
        return [*edges[a : a + 2].tolist(), *edges[a + 3 : a + 2 + 2 * b : 2].tolist()]
    if op == Op.CHOOSE:
        return list(edges[a + 1 : a + 2 * b : 2].tolist())
    if op == Op.EXCEPT:
        return [c, *edges[a + 1 : a + 2 * b : 2].tolist()]
    if op == Op.TEXT:
        pairs = a + TextField.FIRST + int(edges[a + TextField.LENGTHS])
        count = 2 * int(edges[a + TextField.TARGETS])
        return [int(edges[a + TextField.EXIT]), *edges[pairs : pairs + count].tolist()]
    return []
