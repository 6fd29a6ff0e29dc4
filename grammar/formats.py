"""The standard string formats as regexes.

Each accepts only what its RFC allows; where the RFC's language is not regular or its limits would need thousands of
states (the total length of a host name), the regex accepts a little less, never more. Such narrowings are named.
"""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.regex_program import without_end_assertions
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Node

# RFC 3339. Leap seconds only where they can be told from the text alone: 23:59:60 at offset zero.
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rf"(?:\d{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?{_OFFSET}|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00))"

# RFC 3339, appendix A.
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\d+W)"


# RFC 1123. At most 253 characters: three labels of any length, or ten of at most 24. Labels that begin with `xn--` are
# left out: which of them spell a word in Punycode is not regular.
def _label(most: int) -> str:
    """A label of at most that many characters."""
    alnum, inner = "[A-Za-z0-9]", "[A-Za-z0-9-]"
    not_x, not_n = "[A-WYZa-wyz0-9]", "[A-MO-Za-mo-z0-9]"
    return (
        rf"(?:{not_x}(?:{inner}{{0,{most - 2}}}{alnum})?"
        rf"|[Xx](?:{not_n}|[A-MO-Za-mo-z0-9-]{inner}{{0,{most - 3}}}{alnum})?"
        rf"|[Xx][Nn](?:{alnum}(?:{inner}{{0,{most - 4}}}{alnum})?|-{alnum}(?:{inner}{{0,{most - 5}}}{alnum})?)?)"
    )


_LABEL, _SHORT_LABEL = _label(63), _label(24)
_HOSTNAME = rf"(?:{_LABEL}(?:\.{_LABEL}){{0,2}}|{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{0,9}})"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"


def _ipv6() -> str:
    group, tail = "[0-9A-Fa-f]{1,4}", rf"(?:[0-9A-Fa-f]{{1,4}}:[0-9A-Fa-f]{{1,4}}|{_IPV4})"
    forms = [rf"(?:{group}:){{6}}{tail}"]
    for after in range(5, -1, -1):  # groups between `::` and the last 32 bits
        before = f"(?:(?:{group}:){{0,{4 - after}}}{group})?" if after < 5 else ""
        forms.append(rf"{before}::(?:{group}:){{{after}}}{tail}")
    forms.append(rf"(?:(?:{group}:){{0,5}}{group})?::{group}")
    forms.append(rf"(?:(?:{group}:){{0,6}}{group})?::")
    return "(?:" + "|".join(forms) + ")"


_IPV6 = _ipv6()

# RFC 5321: local part of at most 64 characters, quoted local parts, address literals.
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = (
    rf"(?:{_ATEXT}{{1,64}}|{_ATEXT}{{1,20}}(?:\.{_ATEXT}{{1,20}}){{1,2}}|{_ATEXT}{{1,9}}(?:\.{_ATEXT}{{1,9}}){{1,5}})"
)
_QUOTED_LOCAL = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,30}"'
_EMAIL = rf"(?:{_LOCAL}|{_QUOTED_LOCAL})@(?:{_HOSTNAME}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

# RFC 3986, and RFC 3987 with its wider set of characters.
_HEX = r"%[0-9A-Fa-f]{2}"


def _uri_parts(unreserved: str, private: str) -> tuple[str, str]:
    """The absolute form and the relative one."""
    sub = "!$&'()*+,;="
    pchar = rf"(?:[{unreserved}{sub}:@]|{_HEX})"
    userinfo = rf"(?:[{unreserved}{sub}:]|{_HEX})*"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~{sub}:-]+)\]|(?:[{unreserved}{sub}]|{_HEX})*)"
    authority = rf"(?:{userinfo}@)?{host}(?::\d*)?"
    path = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{path})?"
    rootless = rf"{pchar}+{path}"
    noscheme = rf"(?:[{unreserved}{sub}@]|{_HEX})+{path}"
    query = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{path}|{absolute}|{rootless})?{query}"
    relative = rf"(?://{authority}{path}|{absolute}|{noscheme})?{query}"
    return full, relative


_URI, _URI_RELATIVE = _uri_parts(r"A-Za-z0-9._~\-", "")
_UCS = (
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_UCS = _UCS.replace(r"\u{E0000}-\u{EFFFD}", r"\u{E1000}-\u{EFFFD}")
_IRI, _IRI_RELATIVE = _uri_parts(r"A-Za-z0-9._~\-" + _UCS, r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}")

_REGEXES: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_URI_RELATIVE})",
    "iri": _IRI,
    "iri-reference": rf"(?:{_IRI}|{_IRI_RELATIVE})",
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
    "relative-json-pointer": r"(?:0|[1-9]\d*)(?:#|(?:/(?:[^~/]|~[01])*)*)",
}

# Standard, and not enforced yet: refused, never ignored.
UNENFORCED_FORMATS = frozenset({"idn-email", "idn-hostname", "uri-template", "regex"})
FORMATS = frozenset(_REGEXES)


@lru_cache(maxsize=64)
def format_tree(name: str) -> Node:
    """The syntax tree of a format in `FORMATS`, for the whole text."""
    return without_end_assertions(parse_regex(_REGEXES[name]), search=False)
