"""The body of a rule while it is read: open groups, alternatives, sequences. Both notations build bodies with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from structgen.grammar.ebnf.expression import Expression, choice, repetition, sequence
from structgen.grammar.ebnf.scanner import Scanner
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.regex_tree import MAX_COUNT

CLOSING = {"(": ")", "[": "]"}


@dataclass(slots=True)
class _Group:
    """An open group: finished alternatives, and the sequence being read."""

    bracket: str
    start: int
    options: list[Expression] = field(default_factory=list)
    items: list[Expression] = field(default_factory=list)

    def expression(self) -> Expression:
        return choice([*self.options, sequence(self.items)])


class Body:
    """Collects what is read. Groups are on a list: they may nest deeper than Python's stack."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._groups = [_Group("", scanner.position)]

    @property
    def is_nested(self) -> bool:
        return len(self._groups) > 1

    @property
    def is_empty(self) -> bool:
        """Whether the sequence being read has no items yet."""
        return not self._groups[-1].items

    def add(self, item: Expression) -> None:
        self._groups[-1].items.append(item)

    def alternative(self) -> None:
        group = self._groups[-1]
        group.options.append(sequence(group.items))
        group.items = []

    def repeat(self, least: int, most: int | None, start: int) -> None:
        """Repeat the last item.

        Raises:
            GrammarSyntaxError: there is none, or the counts are in the wrong order. GrammarLimitError: huge counts.
        """
        if self.is_empty:
            raise self._scanner.error("there is nothing to repeat", at=start, hint="put it behind what it repeats")
        if most is not None and most < least:
            raise self._scanner.error("the counts are in the wrong order", at=start, hint="the smaller one first")
        if max(least, most or 0) > MAX_COUNT:
            raise GrammarLimitError(f"a count beyond {MAX_COUNT:,}", position=start, hint="use a smaller count")
        items = self._groups[-1].items
        try:
            items[-1] = repetition(items[-1], least, most)
        except GrammarLimitError as error:
            raise GrammarLimitError(error.message, position=start, hint=error.hint) from None

    def open(self, bracket: str, start: int) -> None:
        self._groups.append(_Group(bracket, start))

    def close(self, bracket: str, start: int) -> None:
        """End the innermost group; one in square brackets is optional."""
        group = self._groups[-1]
        if CLOSING.get(group.bracket) != bracket:
            if not self.is_nested:
                raise self._scanner.error(f"this {bracket} closes nothing", at=start, hint="quote it as a literal")
            raise self._unclosed(group)
        self._groups.pop()
        found = group.expression()
        self.add(repetition(found, 0, 1) if group.bracket == "[" else found)

    def finish(self) -> Expression:
        """The whole body.

        Raises:
            GrammarSyntaxError: a group is still open.
        """
        if self.is_nested:
            raise self._unclosed(self._groups[-1])
        return self._groups[0].expression()

    def _unclosed(self, group: _Group) -> Exception:
        hint = f"close it with {CLOSING[group.bracket]}, or quote it as a literal"
        return self._scanner.error(f"this {group.bracket} is never closed", at=group.start, hint=hint)
