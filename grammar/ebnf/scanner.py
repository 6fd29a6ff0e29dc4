"""A cursor over the text of a grammar, and errors that point into it."""

from __future__ import annotations

import re

from structgen.grammar.errors import GrammarSyntaxError

_SHOWN = 60  # characters of a line before and after the fault
_HEX = frozenset("0123456789abcdefABCDEF")
_SURROGATES = range(0xD800, 0xE000)


def fault(text: str, position: int, message: str, *, hint: str = "") -> GrammarSyntaxError:
    """An error with line and column (both from 1), the line, and a caret below the fault."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].rstrip("\r")
    column = position - start
    first = max(0, column - _SHOWN)
    # Tabs stay tabs in front of the caret, so that it stands right however wide they are shown.
    margin = "".join("\t" if char == "\t" else " " for char in line[first:column])
    place = f"line {text.count(chr(10), 0, position) + 1}, column {column + 1}"
    excerpt = line[first : column + _SHOWN]
    return GrammarSyntaxError(f"{message} ({place})\n    {excerpt}\n    {margin}^", hint=hint, position=position)


class Scanner:
    """Reads from `position` on; what it returns is behind the position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def error(self, message: str, *, hint: str = "", at: int | None = None) -> GrammarSyntaxError:
        return fault(self.text, self.position if at is None else at, message, hint=hint)

    def peek(self, length: int = 1) -> str:
        return self.text[self.position : self.position + length]

    def take(self) -> str:
        char = self.text[self.position]
        self.position += 1
        return char

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Read what a pattern matches here; whether it was anything."""
        return bool(self.match(pattern))

    def match(self, pattern: re.Pattern[str]) -> str:
        """Read and return what a pattern matches here; "" where it does not."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return ""
        self.position = found.end()
        return found.group()

    def accept(self, expected: str) -> bool:
        """Read a fixed text if it comes next."""
        if not self.text.startswith(expected, self.position):
            return False
        self.position += len(expected)
        return True

    def code_point(self, digits: int, start: int) -> str:
        """The character that `digits` hexadecimal digits name; `start` is where its escape begins."""
        written = self.peek(digits)
        if len(written) < digits or not set(written) <= _HEX:
            raise self.error(
                f"this escape needs {digits} hexadecimal digits", at=start, hint=r"\xHH, \uHHHH or \UHHHHHHHH"
            )
        value = int(written, 16)
        if value > 0x10FFFF:
            raise self.error("there is no such character", at=start, hint="the last one is U+10FFFF")
        if value in _SURROGATES:
            raise self.error("a lone surrogate matches no valid text", at=start, hint=r"use \U with eight digits")
        self.position += digits
        return chr(value)
