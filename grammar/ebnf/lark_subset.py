"""A subset of Lark's notation: `rule: alternatives`, `TERMINAL: alternatives`.

Understood: literals ("x", "x"i, "a".."z"), regexes (/x/, /x/i), groups, `[x]`, `? * +`, `~ n`, `~ n..m`,
`%import common.NAME`, `%ignore`. Read and without effect, since only the language matters here: `?` and `!` before
names, `-> alias`, priorities. Refused: templates, other directives and flags.

The language is one over characters: no lexer decides that the longest terminal wins, so a text belongs to it when it
can be cut into terminals in any way. What `%ignore` names may stand behind every terminal of a rule, and first.
"""

from __future__ import annotations

import re

from structgen.grammar.ebnf.body import Body
from structgen.grammar.ebnf.expression import EMPTY_LEAF, Expression, Ref, choice, repetition, sequence
from structgen.grammar.ebnf.lark_common import COMMON
from structgen.grammar.ebnf.lark_literal import read_literal, read_regex
from structgen.grammar.ebnf.notation import REPEATS, Notation
from structgen.grammar.ebnf.regex_terminal import regex_terminal
from structgen.grammar.ebnf.rule_set import Rule, RuleSet

_COMMENT = r"//[^\r\n]*|#[^\r\n]*"
_BLANKS = re.compile(rf"(?:[ \t\f]|\\[ \t]*\r?\n|{_COMMENT})+")
_SPACE = re.compile(rf"(?:\s|\\[ \t]*\r?\n|{_COMMENT})+")
_CONTINUED = re.compile(rf"(?:\s|{_COMMENT})*(?=\|)")
_MODIFIERS = re.compile(r"[?!]{0,2}(?=[A-Za-z_])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIORITY = re.compile(r"[ \t]*\.[ \t]*[+-]?[0-9]+")
_COUNTS = re.compile(r"~[ \t]*([0-9]+)(?:[ \t]*\.\.[ \t]*([0-9]+))?")
_DIRECTIVE = re.compile(r"%[A-Za-z_]*")

_IGNORED = "%ignore"  # the rule of what may stand between terminals
_WHOLE = "%start"


def parse_lark(text: str, start: str | None = None) -> RuleSet:
    """The rules of a grammar in Lark's notation; it begins with `start`, or with the rule `start`.

    Raises:
        GrammarSyntaxError: with `position` at the fault.
    """
    return _Parser(text).parse(start or "start")


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Parser(Notation):
    blanks, space, going_on = _BLANKS, _SPACE, _CONTINUED

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.ignored: list[Expression] = []
        self.in_rule = False

    def parse(self, start: str) -> RuleSet:
        self.rules = RuleSet(self.text, start)
        self.skip(_SPACE)
        while not self.at_end:
            if self.peek() == "%":
                self.directive()
            else:
                self.definition()
            self.skip(_SPACE)
        ignored = repetition(choice(self.ignored), 0, None) if self.ignored else EMPTY_LEAF
        self.rules.add(Rule(_IGNORED, ignored, 0))
        self.rules.check()
        position = self.rules.rules[start].position
        self.in_rule = True
        whole = sequence([Ref(_IGNORED, position), self.token(Ref(start, position), is_rule=not _is_terminal(start))])
        self.rules.add(Rule(_WHOLE, whole, position))
        self.rules.start = _WHOLE
        return self.rules

    def definition(self) -> None:
        self.skip(_MODIFIERS)
        position = self.position
        name = self.match(_NAME)
        if not name:
            raise self.error("a definition begins with its name", hint="write: name: alternatives")
        self.refuse_template()
        self.skip(_PRIORITY)
        self.skip(_BLANKS)
        if not self.accept(":"):
            raise self.error(f"a colon is expected behind the name {name}", hint="write: name: alternatives")
        self.in_rule = not _is_terminal(name)
        self.rules.add(Rule(name, self.body(), position))

    def refuse_template(self) -> None:
        if self.peek() == "{":
            raise self.error("templates are not supported", hint="write a rule for every use")

    def item(self, body: Body) -> None:
        start = self.position
        char = self.peek()
        if name := self.match(_NAME):
            self.refuse_template()
            if not self.in_rule and not _is_terminal(name):
                raise self.error(f"a terminal cannot name the rule {name}", at=start, hint="rules name terminals")
            body.add(self.token(Ref(name, start), is_rule=not _is_terminal(name)))
        elif char == '"':
            body.add(self.token(read_literal(self)))
        elif char == "/":
            body.add(self.token(read_regex(self)))
        elif char == "~":
            body.repeat(*self.counts(), start)
        elif self.accept("->"):
            self.skip(_BLANKS)
            if not self.match(_NAME):
                raise self.error("an alias is a name", hint="write -> name, or leave it out")
        else:
            self.position += 1
            self.symbol(char, body, start)

    def symbol(self, char: str, body: Body, start: int) -> None:
        if char in REPEATS:
            body.repeat(*REPEATS[char], start)
        elif char in ("(", "["):
            body.open(char, start)
        elif char in (")", "]"):
            body.close(char, start)
        elif char == "|":
            body.alternative()
        elif char == ":":
            hint = "a definition begins in a line of its own; literals stand in double quotes"
            raise self.error("this colon is inside a definition", at=start, hint=hint)
        else:
            raise self.no_meaning(char, start)

    def token(self, item: Expression, *, is_rule: bool = False) -> Expression:
        """A terminal in a rule, with what may be ignored behind it."""
        if is_rule or not self.in_rule:
            return item
        return sequence([item, Ref(_IGNORED, self.position)])

    def counts(self) -> tuple[int, int]:
        found = _COUNTS.match(self.text, self.position)
        if found is None:
            raise self.error("a count is expected behind ~", hint="write ~ 3 or ~ 3..5")
        self.position = found.end()
        least, most = found.groups()
        return int(least), int(most or least)

    def directive(self) -> None:
        start = self.position
        name = self.match(_DIRECTIVE)
        if name == "%ignore":
            self.in_rule = False
            self.ignored.append(self.body())
        elif name == "%import":
            self.skip(_BLANKS)
            self.imports()
        else:
            hint = "%ignore and %import common.NAME are; define all else here"
            raise self.error(f"{name} is not supported", at=start, hint=hint)

    def imports(self) -> None:
        """`common.NAME`, `common.NAME -> ALIAS` or `common (NAME, ...)`."""
        if not self.accept("common"):
            raise self.error("only the library common can be imported", hint="define what you need in this grammar")
        if self.accept("."):
            position = self.position
            name = alias = self.match(_NAME)
            self.skip(_BLANKS)
            if self.accept("->"):
                self.skip(_BLANKS)
                position, alias = self.position, self.match(_NAME)
            self.import_one(name, alias, position)
            return
        self.skip(_BLANKS)
        if not self.accept("("):
            raise self.error("a name is expected", hint="write %import common.NAME or %import common (A, B)")
        while not self.accept(")"):
            self.skip(_SPACE)
            position = self.position
            name = self.match(_NAME)
            self.import_one(name, name, position)
            self.skip(_SPACE)
            self.accept(",")
            self.skip(_SPACE)

    def import_one(self, name: str, alias: str, position: int) -> None:
        if name not in COMMON or not alias:
            hint = "it has " + ", ".join(COMMON)
            raise self.error(f"the library common has no {name or 'empty name'}", at=position, hint=hint)
        self.rules.add(Rule(alias, regex_terminal(COMMON[name]), position))
