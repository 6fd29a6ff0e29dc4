"""Grammars as programs of the pushdown automaton."""

from __future__ import annotations

import re
from typing import Literal

from structgen.grammar.byte_trie import literal_alternatives
from structgen.grammar.ebnf.gbnf import parse_gbnf
from structgen.grammar.ebnf.lark_subset import parse_lark
from structgen.grammar.ebnf.left_corner import LeftCorners
from structgen.grammar.ebnf.machine import Machine
from structgen.grammar.ebnf.network import Call, Label, networks
from structgen.grammar.ebnf.rule_set import RuleSet
from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError
from structgen.grammar.program import Program, ProgramBuilder
from structgen.grammar.regex_program import place_tree, raw
from structgen.grammar.tables import IN_BYTES, INFINITE

Syntax = Literal["auto", "gbnf", "lark"]

MAX_STATES = 1_000_000
_GBNF_RULE = re.compile(r"^\s*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)


def ebnf_program(text: str, syntax: Syntax = "auto", start: str | None = None) -> Program:
    """All texts that a grammar derives from its start rule.

    Raises:
        ValueError: no such syntax. GrammarSyntaxError, UnsatisfiableError, GrammarLimitError: with `position`.
    """
    rules = _parsed(text, syntax, start)
    position = rules.rules[rules.start].position
    try:
        program = _Placement(rules).program
    except GrammarLimitError as error:
        place = position if error.position is None else error.position
        raise GrammarLimitError(error.message, hint=error.hint, position=place) from None
    if program.byte_distance[program.start, IN_BYTES] >= INFINITE:
        raise UnsatisfiableError(
            f"nothing matches: no way through the rule {start or rules.shown_start} ever ends",
            hint="give every recursive rule an alternative without recursion",
            position=position,
        )
    return program


def _parsed(text: str, syntax: Syntax, start: str | None) -> RuleSet:
    if syntax not in ("auto", "gbnf", "lark"):
        raise ValueError(f"syntax is auto, gbnf or lark, not {syntax!r}")
    if syntax == "gbnf" or (syntax == "auto" and _GBNF_RULE.search(text)):
        return parse_gbnf(text, start)
    return parse_lark(text, start)


class _Placement:
    """Places the machines of all rules that are called. Rules are placed without their empty text."""

    def __init__(self, rules: RuleSet) -> None:
        self.builder = ProgramBuilder()
        self.entries: dict[str, int] = {}  # first states of rules
        self.todo: list[str] = []
        found, empty = networks(rules.inlined())
        corners = LeftCorners(found)
        start = self.entry(rules.start)
        if rules.start in empty:
            start = self.builder.split([start, self.builder.accept])
        while self.todo:
            name = self.todo.pop()
            self.machine(corners.machine(name), self.entries[name])
            if self.builder.size > MAX_STATES:
                hint = "shorten repeated parts, or leave out rules"
                raise GrammarLimitError(f"the grammar needs more than {MAX_STATES:,} states", hint=hint)
        self.program = self.builder.finish(start)

    def entry(self, name: str) -> int:
        """The first state of a rule, which is placed sooner or later."""
        if name not in self.entries:
            self.entries[name] = self.builder.reserve()
            self.todo.append(name)
        return self.entries[name]

    def machine(self, machine: Machine, entry: int) -> None:
        """Set the states of a machine, as far as they are reached."""
        places = {0: entry}
        todo = [0]

        def place_of(state: int) -> int:
            if state in machine.accepting and not machine.edges[state]:
                return self.builder.accept  # nothing follows: a call right before keeps the stack flat
            if state not in places:
                places[state] = self.builder.reserve()
                todo.append(state)
            return places[state]

        while todo:
            state = todo.pop()
            edges = [(label, place_of(target)) for label, target in machine.edges[state]]
            ways = self.literals([(label, then) for label, then in edges if isinstance(label, bytes)])
            ways += [then for label, then in edges if label is None]
            others = [(label, then) for label, then in edges if label is not None and not isinstance(label, bytes)]
            accepts = state in machine.accepting
            if len(others) == 1 and not ways and not accepts:
                self.step(places[state], *others[0])
                continue
            for label, then in others:
                ways.append(self.builder.reserve())
                self.step(ways[-1], label, then)
            self.builder.set_split(places[state], [*ways, *([self.builder.accept] if accepts else [])])

    def literals(self, edges: list[tuple[bytes, int]]) -> list[int]:
        """States that read literals; common beginnings are read once."""
        targets: dict[bytes, list[int]] = {}
        for text, then in edges:
            targets.setdefault(text, []).append(then)
        words = [(text, self.builder.split(thens)) for text, thens in targets.items()]
        return [literal_alternatives(self.builder, words)] if words else []

    def step(self, state: int, label: Label, then: int) -> None:
        """Set a state that reads or calls, and goes on at `then`."""
        if isinstance(label, bytes):
            self.builder.set_literal(state, label, then)
        elif not isinstance(label, Call):
            place_tree(self.builder, label.node, state, then, raw)
        elif label.most == 1:
            self.builder.set_call(state, self.entry(label.name), then)
        else:
            self.builder.set_loop(state, self.entry(label.name), then, label.least, label.most)
