"""The format `regex`: patterns of ECMA-262 in Unicode mode, as a syntax tree with rules that nest.

Groups nest to any depth. Less than the standard is accepted where it needs memory: no backreferences, at most one
named group, no octal and no surrogate escapes, and counts and ranges whose order can be seen digit by digit.
"""

from __future__ import annotations

from functools import cache

from structgen.grammar.charset import ANY, CharSet, charset, subtract
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Chars, Node, Rule, alt, concat, repeat

_SYNTAX = r"\^$\\.*+?()\[\]{}|"
_HEX = "[0-9A-Fa-f]"
_CATEGORIES = (
    "L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfon]?|Letter|Number|Punctuation"
    "|Alphabetic|Lowercase|Uppercase|White_Space|ASCII|Any"
)
_SCRIPTS = "Arabic|Cyrillic|Devanagari|Greek|Han|Hangul|Hebrew|Hiragana|Katakana|Latin|Thai"
_PROPERTY = rf"[pP]\{{(?:{_CATEGORIES}|(?:Script|sc|Script_Extensions|scx)=(?:{_SCRIPTS}))\}}"
_CODE_POINT = rf"(?:0{{0,3}}(?:{_HEX}{{1,4}}|[1-9A-Fa-f]{_HEX}{{4}}|10{_HEX}{{4}}))"
# Escapes of one character; in brackets, what looks like half of a pair of surrogates would join with its neighbour.
_SHORT = rf"[tnvfr]|c[A-Za-z]|x{_HEX}{{2}}|u\{{{_CODE_POINT}\}}|[{_SYNTAX}/]"
_UNIT = rf"u(?:[0-9A-CE-Fa-ce-f]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}})"
_CLASS = rf"[dDsSwW]|{_PROPERTY}"
# `\0` is a zero only where no digit follows: in front of what cannot start with one.
_ESCAPE = rf"\\(?:{_SHORT}|{_UNIT}|{_CLASS})"
_NAME = r"[A-Za-z_$][A-Za-z0-9_$]*"


def _counts() -> str:
    """`{n}`, `{n,}` and `{n,m}` with n at most m, where their digits show it."""
    ordered = [r"\d,[1-9]\d{1,3}", r"[1-9]\d,[1-9]\d{2,3}", r"[1-9]\d\d,[1-9]\d{3}"]
    ordered += [f"{n},[{n}-9]" for n in range(10)]
    ordered += [
        f"{n}{k},(?:{n}[{k}-9]" + (rf"|[{n + 1}-9]\d)" if n < 9 else ")") for n in range(1, 10) for k in range(10)
    ]
    ordered += [rf"{n}\d\d,[{n + 1}-9]\d\d" for n in range(1, 9)]
    return rf"\{{(?:(?:0|[1-9]\d{{0,3}}),?|{'|'.join(ordered)})\}}"


# Where alphabets start.
_ALPHABETS = (
    0xC0, 0xD8, 0xE0, 0xF8, 0x100, 0x391, 0x3B1, 0x400, 0x410, 0x430, 0x450, 0x5D0, 0x621, 0x900, 0xE00, 0x1E00, 0x2000,
    0x3040, 0x30A0, 0x3400, 0x4E00, 0xAC00, 0xE000, 0x10000,
)  # fmt: skip


def _ranges() -> Node:
    """`a-z` in brackets, its ends in order."""
    in_brackets = subtract(ANY, charset([(0x2D, 0x2D), (0x5B, 0x5D)]))
    dash = parse_regex("-")
    options: list[Node] = []
    # Up to each of these, low ends have a high end behind it. Alphabets often give the first letter as low end.
    cuts = [*range(0x21, 0x81), *sorted({start + i for start in _ALPHABETS for i in (0, 1)})]
    for low, cut in zip([0x20, *cuts], cuts, strict=False):
        ends = [_within(in_brackets, low, cut - 1), _within(in_brackets, cut, 0x10FFFF)]
        if all(ends):
            options.append(concat([Chars(ends[0]), dash, Chars(ends[1])]))
    return alt(options)


def _escaped_ranges() -> Node:
    """Ranges between escapes with digits that show their order."""
    digits = "0123456789ABCDEF"
    later = [(_digit(first), _any_of(digits[i + 1 :])) for i, first in enumerate(digits[:-1])]
    ranges = [rf"\\x{a}{_HEX}-\\x{b}{_HEX}" for a, b in later]
    ranges += [rf"\\x{_HEX}{{2}}-\\u(?:[1-9A-CE-Fa-ce-f]{_HEX}{{3}}|0[1-9A-Fa-f]{_HEX}{{2}}|[Dd][0-7]{_HEX}{{2}})"]
    ranges += [rf"\\u{a}{_HEX}{{3}}-\\u{b}{_HEX}{{3}}" for a, b in later if "D" not in a]
    ranges += [rf"\\u0{a}{_HEX}{{2}}-\\u0{b}{_HEX}{{2}}" for a, b in later]
    ranges += [rf"\\u00{a}{_HEX}-\\u00{b}{_HEX}" for a, b in later]
    return parse_regex("|".join(ranges))


def _digit(digit: str) -> str:
    return digit if digit.isdigit() else f"[{digit}{digit.lower()}]"


def _any_of(digits: str) -> str:
    return f"[{digits}{digits.lower()}]"


def _within(chars: CharSet, low: int, high: int) -> CharSet:
    return tuple((max(a, low), min(b, high)) for a, b in chars if a <= high and b >= low)


def _brackets(*ranges: Node) -> Node:
    """`[...]`. A dash stands only first, last, or in a range."""
    one = parse_regex(rf"[^\\\]\[-]|\[|\\(?:{_SHORT}|{_UNIT}|{_CLASS}|[b-])")
    return concat([parse_regex(r"\[\^?-?"), repeat(alt([one, *ranges]), 0, None), parse_regex(r"-?\]")])


_OPEN, _LOOK, _CLOSE, _PLACE = r"\((?:\?:)?", r"\(\?<?[=!]", r"\)", r"[|^$]|\\[bB]"
_PLAIN = rf"[^{_SYNTAX}]|\.|{_ESCAPE}"


def _quantifier(counts: str) -> Node:
    return parse_regex(rf"(?:[*+?]|{counts})\??")


@cache
def flat_pattern_tree() -> Node:
    """Patterns with one level of groups and the most usual ranges and counts, as a tree without rules."""
    usual_counts = r"\{(?:0|[1-9]\d{0,2},?|[01],[1-9]\d{0,2}|\d,[1-9]\d\d?)\}"
    counted, plain = repeat(_quantifier(usual_counts), 0, 1), parse_regex(_PLAIN)
    brackets, place = _brackets(parse_regex("[01]-9|A-[FZ]|a-[fz]| -~|!-~")), parse_regex(_PLACE)
    inner = repeat(alt([concat([alt([plain, brackets]), counted]), place]), 0, None)
    group = concat([parse_regex(_OPEN), inner, parse_regex(_CLOSE)])
    return repeat(alt([concat([alt([plain, brackets, group]), counted]), place]), 0, None)


@cache
def pattern_tree() -> Node:
    """The tree of all patterns that are accepted."""
    brackets, plain, named, term, quantifier = Rule(), Rule(), Rule(), Rule(), Rule()
    brackets.body, quantifier.body = _brackets(_ranges(), _escaped_ranges()), _quantifier(_counts())
    opened, looking, close = map(parse_regex, (_OPEN, _LOOK, _CLOSE))
    counted = repeat(quantifier, 0, 1)
    atom = alt([parse_regex(_PLAIN), brackets, concat([opened, plain, close])])
    term.body = alt([concat([atom, counted]), parse_regex(_PLACE), concat([looking, plain, close])])
    plain.body = repeat(term, 0, None)
    # At most one group has a name, so that no two have the same.
    holder = alt(
        [
            concat([parse_regex(rf"\(\?<{_NAME}>"), plain, close, counted]),
            concat([opened, named, close, counted]),
            concat([looking, named, close]),
        ]
    )
    named.body = concat([plain, holder, plain])
    return alt([plain, named])
