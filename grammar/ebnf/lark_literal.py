"""Literals, ranges and regexes of Lark's notation."""

from __future__ import annotations

import re

from structgen.grammar.charset import charset
from structgen.grammar.ebnf.expression import Expression, characters, literal, sequence
from structgen.grammar.ebnf.letter_case import in_any_case
from structgen.grammar.ebnf.regex_terminal import regex_terminal
from structgen.grammar.ebnf.scanner import Scanner

_REGEX = re.compile(r"/(?!/)((?:\\.|[^/\\\n])*)/([a-z]*)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


def read_literal(scanner: Scanner) -> Expression:
    """A literal, `"a".."z"`, or a literal in any case; a quote comes next.

    Raises:
        GrammarSyntaxError: with `position` at the fault.
    """
    start = scanner.position
    text = _quoted(scanner)
    if scanner.accept("i"):
        return sequence([characters(in_any_case(((ord(char), ord(char)),))) for char in text])
    if not scanner.accept(".."):
        return literal(text)
    if scanner.peek() != '"':
        raise scanner.error("a range ends in a literal", hint='write "a".."z"')
    last = _quoted(scanner)
    if len(text) != 1 or len(last) != 1:
        raise scanner.error("the ends of a range are single characters", at=start, hint='write "a".."z"')
    if last < text:
        raise scanner.error("the ends of this range are in the wrong order", at=start, hint="the smaller one first")
    return characters(charset([(ord(text), ord(last))]))


def _quoted(scanner: Scanner) -> str:
    start = scanner.position
    scanner.position += 1
    chars: list[str] = []
    while not scanner.accept('"'):
        if scanner.at_end or scanner.peek() in "\r\n":
            raise scanner.error("this literal is never closed", at=start, hint=r'end it with "; a line break is \n')
        chars.append(_character(scanner))
    return "".join(chars)


def _character(scanner: Scanner) -> str:
    start = scanner.position
    char = scanner.take()
    if 0xD800 <= ord(char) <= 0xDFFF:
        raise scanner.error("a lone surrogate matches no valid text", at=start, hint="leave it out")
    if char != "\\":
        return char
    kind = scanner.peek()
    if kind in _HEX_ESCAPES:
        scanner.position += 1
        return scanner.code_point(_HEX_ESCAPES[kind], start)
    if kind not in _ESCAPES:
        hint = r"escapes are \n \r \t \f \\ \" \xHH \uHHHH \UHHHHHHHH"
        raise scanner.error(f"\\{kind} is no escape", at=start, hint=hint)
    scanner.position += 1
    return _ESCAPES[kind]


def read_regex(scanner: Scanner) -> Expression:
    """`/pattern/` or `/pattern/i`; a slash comes next.

    Raises:
        GrammarSyntaxError: with `position` at the fault.
    """
    start = scanner.position
    found = _REGEX.match(scanner.text, start)
    if found is None:
        raise scanner.error("this regex is never closed", hint=r"end it with /; inside of it write \/")
    scanner.position = found.end()
    pattern, flags = found.groups()
    if set(flags) - {"i"}:
        hint = "only i is; say the rest in the pattern, for example (?:.|\\n) for s"
        raise scanner.error(f"the flags {flags} are not supported", at=found.start(2), hint=hint)
    return regex_terminal(pattern, ignore_case=bool(flags), text=scanner.text, position=start + 1)
