"""The rules of one grammar: definitions, checks, and inlining of what is regular."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches

from structgen.grammar.ebnf.components import components
from structgen.grammar.ebnf.expression import Expression, Leaf, Ref, Scan, references, replaced
from structgen.grammar.ebnf.scanner import fault

INLINED = 100  # nodes of a regular rule that is copied to every place that names it
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    body: Expression
    position: int


class RuleSet:
    """Rules by name, and where in the text they stand."""

    def __init__(self, text: str, start: str) -> None:
        self.text = text
        self.start = start
        self.rules: dict[str, Rule] = {}

    def add(self, rule: Rule) -> None:
        """Define a rule.

        Raises:
            GrammarSyntaxError: it is defined already.
        """
        first = self.rules.get(rule.name)
        if first is not None:
            line = self.text.count("\n", 0, first.position) + 1
            hint = f"join the alternatives with | in the rule in line {line}"
            raise fault(self.text, rule.position, f"the rule {rule.name} is defined twice", hint=hint)
        self.rules[rule.name] = rule

    @property
    def shown_start(self) -> str:
        """The start as the user named it."""
        return next(name for name, rule in self.rules.items() if rule.position == self.rules[self.start].position)

    def check(self) -> None:
        """Every name is defined, the start too.

        Raises:
            GrammarSyntaxError: with `position` where the name is used.
        """
        if self.start not in self.rules:
            names = ", ".join([name for name in self.rules if name[0] != "%"][:_NAMES_SHOWN]) or "none"
            hint = f"define {self.start}, or choose another rule with start=; rules here: {names}"
            raise fault(self.text, 0, f"there is no start rule {self.start}", hint=hint)
        for rule in self.rules.values():
            for reference in references(rule.body):
                if reference.name not in self.rules:
                    raise self._undefined(reference)

    def _undefined(self, reference: Ref) -> Exception:
        near = get_close_matches(reference.name, self.rules, n=1)
        hint = f"did you mean {near[0]}?" if near else "define it, or quote it as a literal"
        return fault(self.text, reference.position, f"the rule {reference.name} is not defined", hint=hint)

    def inlined(self) -> dict[str, Expression]:
        """The bodies of the rules that the start needs, with regular rules in place of their names.

        A regular rule stays a rule of its own where copies would cost too much.
        """
        graph = {name: list({one.name: None for one in references(rule.body)}) for name, rule in self.rules.items()}
        uses = Counter(one.name for rule in self.rules.values() for one in references(rule.body))
        copied: dict[str, Expression] = {}

        def replacement(reference: Ref) -> Expression:
            return copied.get(reference.name, reference)

        bodies: dict[str, Expression] = {}
        for component in components(graph):
            for name in component:
                body = bodies[name] = replaced(self.rules[name].body, replacement)
                if _size(body) <= INLINED or (isinstance(body, Leaf | Scan) and uses[name] == 1):
                    copied[name] = body
        return _reachable(bodies, self.start)


def _size(body: Expression) -> int:
    """Nodes of a regular body; more than any limit for others."""
    if isinstance(body, Scan):
        return len(body.dfa.rows) * len(body.dfa.classes)
    return body.size if isinstance(body, Leaf) else INLINED + 1


def _reachable(bodies: dict[str, Expression], start: str) -> dict[str, Expression]:
    kept: dict[str, Expression] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = bodies[name]
            todo += [one.name for one in references(bodies[name])]
    return kept
