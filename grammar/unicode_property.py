"""Unicode properties as character sets, from the tables of the ECMA-262 engine that validation uses.

One source for both, so that what a grammar generates and what the validator accepts are the same version of Unicode.
"""

from __future__ import annotations

from functools import cache, lru_cache

from structgen.grammar.charset import CharSet, charset


@cache
def _all_characters() -> tuple[str, bytes]:
    """Every character in one text, and its UTF-8."""
    text = "".join(chr(code) for low, high in ((0, 0xD800), (0xE000, 0x110000)) for code in range(low, high))
    return text, text.encode()


@lru_cache(maxsize=256)
def unicode_property(name: str) -> CharSet | None:
    """The characters of `\\p{name}`; None when there is no such property. About 10 ms the first time."""
    import regress  # only patterns with such properties need it

    if not name.replace("_", "").replace("=", "").isalnum():
        return None
    try:
        expression = regress.Regex(rf"\p{{{name}}}+", "u")
    except regress.RegressError:
        return None
    text, spelled = _all_characters()
    ranges = []
    for match in expression.find_iter(text) or ():
        found = match.range()  # in bytes of UTF-8
        run = spelled[found.start : found.stop].decode()
        ranges.append((ord(run[0]), ord(run[-1])))
    return charset(ranges)
