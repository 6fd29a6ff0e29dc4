"""Regular expressions as JSON Schema means them: ECMA-262, searched anywhere in the string."""

from __future__ import annotations

from functools import lru_cache

from regress import Regex, RegressError


class PatternError(ValueError):
    """The pattern is not an ECMA-262 regular expression."""


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Regex:
    """Compile in unicode mode; a pattern that only a looser syntax allows in that one.

    Looser: ECMA-262 without unicode mode (`\\-`, `[\\w-.]`), and Python's spelling of named groups (`(?P<name>...)`).

    Raises:
        PatternError: no syntax knows it.
    """
    try:
        return Regex(pattern, "u")
    except (RegressError, UnicodeEncodeError) as error:
        reason = str(error)
    for looser, flags in ((pattern, ""), (pattern.replace("(?P<", "(?<"), "u")):
        try:
            return Regex(looser, flags)
        except (RegressError, UnicodeEncodeError):
            continue
    raise PatternError(reason)


def is_strict_pattern(pattern: str) -> bool:
    """Whether a string is a regular expression in unicode mode: what `format: regex` asks."""
    try:
        Regex(pattern, "u")
    except (RegressError, UnicodeEncodeError):
        return False
    return True


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found somewhere in the text."""
    return compile_pattern(pattern).find(text) is not None
