"""Host names, internet addresses and mail addresses as regexes (RFC 1123, 4291, 5321, 5890 to 5893, 6531).

The lengths of whole names and A-labels (`xn--`) are not regular in a reasonable number of states: less is accepted.
"""

from __future__ import annotations

import unicodedata
from functools import cache

# At most 253 characters: three labels of any length, or ten of at most 24. Labels with hyphens in their third and
# fourth place are reserved, `xn--` for encoded names, which an automaton cannot decode. Names of other alphabets
# have none of these.
_L, _H = "[A-Za-z0-9]", "[A-Za-z0-9-]"


def _unreserved(longest: int) -> str:
    return f"{_L}(?:{_L}|{_H}{_L}(?:{_H}{{0,{longest - 4}}}{_L})?|{_H}-{_L}(?:{_H}{{0,{longest - 5}}}{_L})?)?"


def _label(longest: int) -> str:
    reserved = f"(?:[A-WYZa-wyz0-9]{_H}|[Xx][A-MO-Za-mo-z0-9-])--{_H}{{0,{longest - 5}}}{_L}"
    return f"(?:{_unreserved(longest)}|{reserved})"


_LABEL, _SHORT_LABEL = _label(63), _label(24)
HOSTNAME = rf"(?:{_LABEL}(?:\.{_LABEL}){{0,2}}|{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{0,9}})"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"


def _ipv6() -> str:
    group, tail = "[0-9A-Fa-f]{1,4}", rf"(?:[0-9A-Fa-f]{{1,4}}:[0-9A-Fa-f]{{1,4}}|{IPV4})"
    forms = [rf"(?:{group}:){{6}}{tail}"]
    for after in range(5, -1, -1):  # groups between `::` and the last 32 bits
        before = f"(?:(?:{group}:){{0,{4 - after}}}{group})?" if after < 5 else ""
        forms.append(rf"{before}::(?:{group}:){{{after}}}{tail}")
    forms.append(rf"(?:(?:{group}:){{0,5}}{group})?::{group}")
    forms.append(rf"(?:(?:{group}:){{0,6}}{group})?::")
    return "(?:" + "|".join(forms) + ")"


IPV6 = _ipv6()

# The local part of an address has at most 64 octets.
_ATEXT = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_LOCAL = "|".join(
    [rf"[{_ATEXT}]{{1,64}}"]
    + [rf"[{_ATEXT}]{{1,{each}}}(?:\.[{_ATEXT}]{{1,{each}}}){{1,{dots}}}" for each, dots in ((20, 2), (9, 5))]
)
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,30}"'
_ADDRESS = rf"\[(?:{IPV4}|IPv6:{IPV6})\]"
EMAIL = rf"(?:{_LOCAL}|{_QUOTED})@(?:{HOSTNAME}|{_ADDRESS})"

# Beyond ASCII a character has up to four octets.
_UTEXT = _ATEXT[:-1] + r"\u{80}-\u{10FFFF}-"
_LOCAL_U = (
    rf"(?:[{_UTEXT.replace('10FFFF', '7FF')}]{{1,32}}|[{_UTEXT.replace('10FFFF', 'FFFF')}]{{1,21}}|[{_UTEXT}]{{1,16}}"
    rf"|[{_UTEXT}]{{1,5}}(?:\.[{_UTEXT}]{{1,5}}){{1,2}})"
)
_QUOTED_U = r'"(?:[ !#-\[\]-~\u{80}-\u{10FFFF}]|\\[ -~]){0,15}"'

# Characters of names beyond ASCII: those letters and marks of these ranges that RFC 5892 allows everywhere in a label.
_LATIN = ((0xDF, 0x17F),)
_LEFT_TO_RIGHT = (
    (0xDF, 0x24F), (0x3AC, 0x3CE), (0x430, 0x45F), (0x561, 0x586), (0x10D0, 0x10FA),
    (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
)  # fmt: skip
_WITH_MARKS = ((0x901, 0x94D), (0xE01, 0xE4E))  # Devanagari, Thai
_RIGHT_TO_LEFT = ((0x5D0, 0x5EA), (0x620, 0x63F), (0x641, 0x64A), (0x671, 0x6D3))
_UNIFORM = 0x3000  # from here on, ranges are allowed as a whole
_COMPOSING = "\u093c"  # joins with a letter in front of it, so that the two are not in normal form


def _is_stable(char: str) -> bool:
    """Whether normalisation and case folding leave a character as it is (RFC 5892, section 2.2)."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold()) == char


def _allowed(ranges: tuple[tuple[int, int], ...], *categories: str) -> str:
    """The allowed characters of some ranges and general categories, as the inside of a character class."""
    parts = []
    for low, high in ranges:
        if low >= _UNIFORM:
            parts.append(f"{chr(low)}-{chr(high)}" if "Lo" in categories else "")
        else:
            chars = (char for char in map(chr, range(low, high + 1)) if unicodedata.category(char) in categories)
            parts += [char for char in chars if _is_stable(char) and char not in _COMPOSING]
    return "".join(parts)


@cache
def idn_hostname() -> str:
    """Three labels beyond ASCII or within, and a short one; left-to-right and right-to-left letters never together.

    A label must have at most 63 characters once it is encoded (Punycode, RFC 3492). Twelve characters of any script
    have, twenty of Latin ones, and six cells of one letter and its marks.
    """
    letters, latin, rtl = (_allowed(one, "Ll", "Lo") for one in (_LEFT_TO_RIGHT, _LATIN, _RIGHT_TO_LEFT))
    first, marks = _allowed(_WITH_MARKS, "Lo"), _allowed(_WITH_MARKS, "Mn", "Mc")  # marks do not come first
    # Where marks meet that do not start a cell, normal form asks for an order: one below and one above.
    below = "".join(mark for mark in marks if 0 < unicodedata.combining(mark) < 107)
    above = "".join(mark for mark in marks if unicodedata.combining(mark) == 107)
    cell = rf"[a-z0-9{first}{''.join(mark for mark in marks if not unicodedata.combining(mark))}][{below}]?[{above}]?"
    marked = rf"[a-z0-9{first}][{below}]?[{above}]?(?:{cell}){{0,5}}"
    wide = (
        rf"[a-z0-9{letters}](?:[a-z0-9{letters}]{{0,11}}|[a-z0-9{letters}]{{1,2}}(?:-[a-z0-9{letters}]{{1,4}}){{1,2}})"
    )
    latin_label = rf"[a-z0-9{latin}]{{1,20}}"
    dot = "[.\u3002\uff0e\uff61]"
    label = rf"(?:{_unreserved(63)}|{wide}|{latin_label}|{marked})"
    # A name with right-to-left letters must not have a label that starts with a digit.
    rtl_label, plain = f"[{rtl}]{{1,12}}", "[a-z]{1,20}"
    return (
        rf"(?:{label}(?:{dot}{label}){{0,2}}(?:{dot}{_unreserved(24)})?"
        rf"|(?:{rtl_label}|{plain})(?:{dot}(?:{rtl_label}|{plain})){{0,2}})"
    )


@cache
def idn_email() -> str:
    return rf"(?:{_LOCAL}|{_LOCAL_U}|{_QUOTED}|{_QUOTED_U})@(?:{HOSTNAME}|{_ADDRESS}|{idn_hostname()})"
