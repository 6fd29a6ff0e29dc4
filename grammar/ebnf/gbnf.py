"""GBNF, the notation of llama.cpp: `name ::= alternatives`.

Read as llama.cpp does, and a little more forgiving: names may hold underscores, and a line that begins with `|`
goes on with the rule above it. Token literals (`<[12]>`, `<think>`) are refused: a grammar is about text.
"""

from __future__ import annotations

import re

from structgen.grammar.charset import ANY, CharSet, charset, negate
from structgen.grammar.ebnf.body import Body
from structgen.grammar.ebnf.expression import Ref, characters, literal
from structgen.grammar.ebnf.notation import REPEATS, Notation
from structgen.grammar.ebnf.rule_set import Rule, RuleSet

_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
_SPACE = re.compile(r"(?:\s|#[^\r\n]*)+")
_CONTINUED = re.compile(r"(?:\s|#[^\r\n]*)*(?=\|)")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DEFINED = re.compile(r"[ \t]*::=")
_COUNTS = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]+)?\s*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str, start: str | None = None) -> RuleSet:
    """The rules of a grammar in GBNF; it begins with `start`, or with the rule `root`.

    Raises:
        GrammarSyntaxError: with `position` at the fault.
    """
    return _Parser(text).parse(start or "root")


class _Parser(Notation):
    blanks, space, going_on = _BLANKS, _SPACE, _CONTINUED

    def parse(self, start: str) -> RuleSet:
        rules = RuleSet(self.text, start)
        self.skip(_SPACE)
        while not self.at_end:
            rules.add(self.rule())
            self.skip(_SPACE)
        rules.check()
        return rules

    def rule(self) -> Rule:
        position = self.position
        name = self.match(_NAME)
        if not name:
            raise self.error("a rule begins with its name", hint="write: name ::= alternatives")
        self.skip(_BLANKS)
        if not self.accept("::="):
            raise self.error(f"::= is expected behind the name {name}", hint="write: name ::= alternatives")
        self.skip(_SPACE)
        return Rule(name, self.body(), position)

    def item(self, body: Body) -> None:
        start = self.position
        char = self.peek()
        if name := self.match(_NAME):
            self.refuse_new_rule(name, body, start)
            body.add(Ref(name, start))
        elif char == "{":
            body.repeat(*self.counts(), start)
        else:
            self.position += 1
            self.symbol(char, body, start)

    def symbol(self, char: str, body: Body, start: int) -> None:
        if char == '"':
            body.add(literal(self.literal(start)))
        elif char == "[":
            body.add(characters(self.bracket(start)))
        elif char == ".":
            body.add(characters(ANY))
        elif char == "(":
            body.open(char, start)
        elif char == ")":
            body.close(char, start)
        elif char == "|":
            body.alternative()
            self.skip(_SPACE)
        elif char in REPEATS:
            body.repeat(*REPEATS[char], start)
        elif char in ("<", "!"):
            hint = "write the text of the token as a literal"
            raise self.error("token literals are not supported", at=start, hint=hint)
        else:
            raise self.no_meaning(char, start)

    def refuse_new_rule(self, name: str, body: Body, start: int) -> None:
        if _DEFINED.match(self.text, self.position) is not None:
            body.finish()  # most likely a group was not closed
            hint = 'a rule ends with its line and the one above has not ended; the empty text is ""'
            raise self.error(f"the rule {name} begins inside another", at=start, hint=hint)

    def counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self.text, self.position)
        if found is None:
            raise self.error("this { is no count", hint="write {3}, {3,} or {3,5}")
        self.position = found.end()
        least, comma, most = found.groups()
        return int(least), (int(most) if most else None) if comma else int(least)

    def literal(self, start: int) -> str:
        chars: list[str] = []
        while not self.accept('"'):
            if self.at_end:
                raise self.error("this literal is never closed", at=start, hint='end it with "')
            chars.append(self.character())
        return "".join(chars)

    def bracket(self, start: int) -> CharSet:
        negated = self.accept("^")
        ranges: list[tuple[int, int]] = []
        while not self.accept("]"):
            self.refuse_end(start)
            place = self.position
            low = high = ord(self.character())
            if self.peek() == "-" and self.peek(2) != "-]":
                self.position += 1
                self.refuse_end(start)
                high = ord(self.character())
            if high < low:
                raise self.error(
                    "the ends of this range are in the wrong order", at=place, hint="the smaller one first"
                )
            ranges.append((low, high))
        if not ranges and not negated:
            raise self.error("this class has no characters", at=start, hint='the empty text is ""')
        return negate(charset(ranges)) if negated else charset(ranges)

    def refuse_end(self, start: int) -> None:
        if self.at_end:
            raise self.error("this [ is never closed", at=start, hint="end the class with ]")

    def character(self) -> str:
        """One character of a literal or class, perhaps an escape."""
        start = self.position
        char = self.take()
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self.error("a lone surrogate matches no valid text", at=start, hint="leave it out")
        if char != "\\":
            return char
        kind = self.peek()
        if kind in _HEX_ESCAPES:
            self.position += 1
            return self.code_point(_HEX_ESCAPES[kind], start)
        if kind not in _ESCAPES:
            hint = r"escapes are \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH"
            raise self.error(f"\\{kind} is no escape", at=start, hint=hint)
        self.position += 1
        return _ESCAPES[kind]
