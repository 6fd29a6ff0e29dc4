"""What the two notations share: a definition is a body of items that ends with its line, unless `|` goes on."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from structgen.grammar.ebnf.body import Body
from structgen.grammar.ebnf.expression import Expression
from structgen.grammar.ebnf.scanner import Scanner

_NEWLINE = re.compile(r"\r?\n|\r")
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Notation(Scanner):
    """A parser of definitions.

    Attributes:
        blanks: what may be skipped within a line.
        space: what may be skipped between definitions, and within groups.
        going_on: what is skipped up to a `|` that goes on with the definition above.
    """

    blanks: ClassVar[re.Pattern[str]]
    space: ClassVar[re.Pattern[str]]
    going_on: ClassVar[re.Pattern[str]]

    def body(self) -> Expression:
        body = Body(self)
        while True:
            self.skip(self.space if body.is_nested else self.blanks)
            if self.at_end or (self.skip(_NEWLINE) and not self.goes_on()):
                return body.finish()
            if not self.at_end:
                self.item(body)

    def goes_on(self) -> bool:
        """Whether the definition goes on behind the end of its line."""
        found = self.going_on.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found is not None

    @abstractmethod
    def item(self, body: Body) -> None:
        """Read one item of a definition into its body."""

    def no_meaning(self, char: str, start: int) -> Exception:
        hint = 'literals stand in double quotes: "..."'
        return self.error(f"{char!r} has no meaning here", at=start, hint=hint)
