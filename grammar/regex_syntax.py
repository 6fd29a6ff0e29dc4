"""The regex parser: ECMA-262 syntax as JSON Schema uses it, and Python's named groups.

It is read as with the `u` flag (characters, not UTF-16 units; `\\p{...}`), but forgives what patterns in the wild
contain and what means the same without it: escaped punctuation such as `\\-`, and braces that are no quantifier.
Captures are groups only; lazy and greedy quantifiers match the same texts. Lookahead is read (see `lookahead.py` for
where it can be); backreferences, lookbehind and inline flags are refused with their position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from structgen.grammar.charset import (
    ANY,
    ASCII_DIGIT,
    EMPTY,
    LINE_END,
    SPACE,
    WORD,
    CharSet,
    charset,
    negate,
    subtract,
    union,
)
from structgen.grammar.errors import GrammarLimitError, GrammarSyntaxError
from structgen.grammar.regex_tree import MAX_COUNT, Assertion, Chars, Look, Node, alt, concat, repeat
from structgen.grammar.unicode_property import unicode_property

_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_CLASSES = {"d": ASCII_DIGIT, "w": WORD, "s": SPACE}
_HEX = frozenset("0123456789abcdefABCDEF")


@dataclass(slots=True)
class _Group:
    """An open group: finished alternatives, and the sequence being read."""

    start: int
    options: list[Node] = field(default_factory=list)
    sequence: list[Node] = field(default_factory=list)
    look: str = ""  # "=" or "!" for a lookahead

    def node(self) -> Node:
        return alt([*self.options, concat(self.sequence)])


def parse_regex(pattern: str) -> Node:
    """The syntax tree of a pattern.

    Raises:
        GrammarSyntaxError: with `position` at the fault.
    """
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0

    def error(self, message: str, *, hint: str = "", at: int | None = None) -> GrammarSyntaxError:
        position = self.position if at is None else at
        excerpt = self.pattern[max(0, position - 30) : position + 30]
        caret = " " * (position - max(0, position - 30)) + "^"
        return GrammarSyntaxError(f"{message}\n    {excerpt}\n    {caret}", hint=hint, position=position)

    def peek(self, length: int = 1) -> str:
        return self.pattern[self.position : self.position + length]

    def take(self) -> str:
        char = self.pattern[self.position]
        self.position += 1
        return char

    def parse(self) -> Node:
        # Open groups are on a list of our own: nesting may be deeper than Python's stack.
        self.groups = groups = [_Group(0)]
        while self.position < len(self.pattern):
            char = self.peek()
            if char == "(":
                groups.append(_Group(self.position))
                self.open_group()
            elif char == ")":
                if len(groups) == 1:
                    raise self.error("this ) closes nothing", hint=r"write \) for the character")
                self.position += 1
                group = groups.pop()
                closed = group.node()
                if group.look:
                    groups[-1].sequence.append(Look(closed, group.look == "!", group.start))
                    if self.quantifier() is not None:
                        raise self.error("a lookahead cannot be repeated")
                    continue
                groups[-1].sequence.append(self.quantified(closed, is_group=True))
            elif char == "|":
                self.position += 1
                group = groups[-1]
                group.options.append(concat(group.sequence))
                group.sequence = []
            else:
                groups[-1].sequence.append(self.quantified(self.atom()))
        if len(groups) > 1:
            raise self.error("this ( is never closed", at=groups[-1].start, hint=r"write \( for the character")
        return groups[0].node()

    def open_group(self) -> None:
        start = self.position
        self.position += 1
        if self.peek() != "?":
            return
        self.position += 1
        if self.peek() == ":":
            self.position += 1
            return
        if self.peek(2) in ("<=", "<!"):
            raise self.error("lookbehind is not supported", at=start, hint="say the same by what comes before")
        if self.peek() in ("=", "!"):
            self.groups[-1].look = self.take()
            return
        if self.peek(2) == "P=":
            raise self.error("backreferences are not supported", at=start, hint="spell out the repeated text")
        if self.peek(2) == "P<":
            self.position += 1
        if self.peek() == "<":
            end = self.pattern.find(">", self.position)
            if end < 0 or not self.pattern[self.position + 1 : end].isidentifier():
                raise self.error("a group name is an identifier in < >")
            self.position = end + 1
            return
        raise self.error("this kind of group is not supported", at=start, hint="use ( ) or (?: )")

    def quantified(self, node: Node, *, is_group: bool = False) -> Node:
        start = self.position
        counts = self.quantifier()
        if counts is None:
            return node
        if isinstance(node, Assertion) and not is_group:
            raise self.error("an assertion cannot be repeated", at=start)
        if self.peek() == "?":
            self.position += 1
        elif self.peek() == "+":
            raise self.error("possessive quantifiers are not supported", hint="leave out the second +")
        second = self.position
        if self.quantifier() is not None:
            raise self.error("a quantifier follows a quantifier", at=second, hint="put the first into (?: )")
        return repeat(node, *counts)

    def quantifier(self) -> tuple[int, int | None] | None:
        char = self.peek()
        if char in ("*", "+", "?") and char:
            self.position += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        end = self.pattern.find("}", self.position)
        least, comma, most = self.pattern[self.position + 1 : end].partition(",")
        if end < 0 or not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # a literal brace
        start, self.position = self.position, end + 1
        low = int(least)
        high = low if not comma else (int(most) if most else None)
        if max(low, high or 0) > MAX_COUNT:
            raise GrammarLimitError(f"a count beyond {MAX_COUNT:,}", position=start, hint="use a smaller count")
        if high is not None and high < low:
            raise self.error("the counts are in the wrong order", at=start)
        return low, high

    def atom(self) -> Node:
        start = self.position
        char = self.take()
        if char == "^":
            return Assertion("start", start)
        if char == "$":
            return Assertion("end", start)
        if char == ".":
            return Chars(negate(LINE_END))
        if char == "[":
            return Chars(self.bracket(start))
        if char == "\\":
            return self.escape(start)
        if char in "*+?":
            raise self.error("there is nothing to repeat", at=start, hint=f"write \\{char} for the character")
        return Chars(self.literal(char, start))

    def literal(self, char: str, start: int) -> CharSet:
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self.error("a lone surrogate matches no valid text", at=start)
        return ((ord(char), ord(char)),)

    def escape(self, start: int) -> Node:
        char = self.peek()
        if char in ("b", "B") and char:
            self.position += 1
            return Assertion("word" if char == "b" else "not word", start)
        if char == "k" or (char.isascii() and char.isdigit() and char != "0"):
            raise self.error("backreferences are not supported", at=start, hint="spell out the repeated text")
        found = self.class_escape(start)
        return Chars(found)

    def class_escape(self, start: int) -> CharSet:
        """What follows a backslash, inside and outside of brackets."""
        if self.position >= len(self.pattern):
            raise self.error("a backslash at the end", at=start, hint=r"write \\ for the character")
        char = self.take()
        if char.lower() in _CLASSES and char.isascii():
            chosen = _CLASSES[char.lower()]
            return chosen if char.islower() else negate(chosen)
        if char in _CONTROL:
            return ((_CONTROL[char], _CONTROL[char]),)
        if char in "pP":
            return self.property(start, negated=char == "P")
        if char in "xuc0":
            return self.code_escape(char, start)
        if char.isascii() and char.isalnum():
            raise self.error(f"\\{char} is no escape of ECMA-262", at=start, hint="use ^ and $ for \\A and \\Z")
        return self.literal(char, start)

    def code_escape(self, char: str, start: int) -> CharSet:
        if char == "0":
            if self.peek().isdigit():
                raise self.error("octal escapes are not supported", at=start, hint=r"use \xHH")
            return ((0, 0),)
        if char == "c":
            letter = self.peek()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error(r"\c is followed by a letter", at=start)
            self.position += 1
            return ((ord(letter) % 32, ord(letter) % 32),)
        value = self.hex_digits(2, start) if char == "x" else self.unicode_escape(start)
        if 0xD800 <= value <= 0xDFFF:
            raise self.error("a lone surrogate matches no valid text", at=start)
        return ((value, value),)

    def unicode_escape(self, start: int) -> int:
        if self.peek() == "{":
            end = self.pattern.find("}", self.position)
            digits = self.pattern[self.position + 1 : end]
            if end < 0 or not digits or not set(digits) <= _HEX or int(digits, 16) > 0x10FFFF:
                raise self.error(r"\u{...} holds a code point in hexadecimal", at=start)
            self.position = end + 1
            return int(digits, 16)
        value = self.hex_digits(4, start)
        if 0xD800 <= value < 0xDC00 and self.peek(2) == "\\u":
            self.position += 2
            low = self.hex_digits(4, start)
            if not 0xDC00 <= low < 0xE000:
                raise self.error("a lone surrogate matches no valid text", at=start)
            return 0x10000 + ((value - 0xD800) << 10) + low - 0xDC00
        return value

    def hex_digits(self, count: int, start: int) -> int:
        digits = self.peek(count)
        if len(digits) < count or not set(digits) <= _HEX:
            raise self.error(f"{count} hexadecimal digits are missing", at=start)
        self.position += count
        return int(digits, 16)

    def property(self, start: int, *, negated: bool) -> CharSet:
        end = self.pattern.find("}", self.position)
        if self.peek() != "{" or end < 0:
            raise self.error(r"\p is followed by a property in { }", at=start)
        name = self.pattern[self.position + 1 : end]
        chars = unicode_property(name)
        if chars is None:
            raise self.error(f"unknown Unicode property {name!r}", at=start, hint="for example L, Lu, Script=Greek")
        self.position = end + 1
        return negate(chars) if negated else chars

    def bracket(self, start: int) -> CharSet:
        negated = self.peek() == "^"
        if negated:
            self.position += 1
        parts: list[CharSet] = []
        while True:
            if self.position >= len(self.pattern):
                raise self.error("this [ is never closed", at=start, hint=r"write \[ for the character")
            if self.peek() == "]":
                self.position += 1
                break
            parts.append(self.bracket_item())
        found = union(*parts) if parts else EMPTY
        return subtract(ANY, found) if negated else found

    def bracket_item(self) -> CharSet:
        start = self.position
        low = self.bracket_atom()
        if self.peek() != "-" or self.peek(2) in ("-", "-]"):
            return low
        self.position += 1
        high = self.bracket_atom()
        if not (_is_single(low) and _is_single(high)):
            return union(low, high, ((0x2D, 0x2D),))  # `[\w-.]`: the dash is a character
        if high[0][0] < low[0][0]:
            raise self.error("the ends of this range are in the wrong order", at=start)
        return charset([(low[0][0], high[0][0])])

    def bracket_atom(self) -> CharSet:
        start = self.position
        char = self.take()
        if char != "\\":
            return self.literal(char, start)
        if self.peek() == "b":
            self.position += 1
            return ((8, 8),)
        if self.peek() == "B" or (self.peek().isascii() and self.peek().isdigit() and self.peek() != "0"):
            raise self.error("no such escape inside of brackets", at=start)
        return self.class_escape(start)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_single(chars: CharSet) -> bool:
    return len(chars) == 1 and chars[0][0] == chars[0][1]
