"""What is certainly not of a format.

Where a format's regex accepts a little less than its RFC, what it leaves out must not pass as "not of this format":
`_BEYOND` holds regexes of all that may be valid although the format's own regex does not say so.
"""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.char_dfa import CharDFA
from structgen.grammar.determinise import char_dfa
from structgen.grammar.dfa_algebra import difference
from structgen.grammar.formats import format_tree
from structgen.grammar.regex_program import ANY_TEXT, without_end_assertions
from structgen.grammar.regex_syntax import parse_regex

_EXACT = frozenset(
    {"date", "duration", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid"}
    | {"json-pointer", "relative-json-pointer"}
)
# Leap seconds at other offsets; host names with more, longer or encoded labels; every way to write an address.
_LEAP = r"\d\d:\d\d:60(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BEYOND = {
    "time": _LEAP,
    "date-time": rf"\d{{4}}-\d\d-\d\d[Tt]{_LEAP}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "email": r"[ -~]{1,64}@[ -~]+",
}
NEGATABLE_FORMATS = _EXACT | _BEYOND.keys()


@lru_cache(maxsize=64)
def outside_format(name: str) -> CharDFA:
    """Texts that are certainly not of a format in `NEGATABLE_FORMATS`."""
    outside = difference(char_dfa(ANY_TEXT), char_dfa(format_tree(name)))
    if name in _EXACT:
        return outside
    beyond = without_end_assertions(parse_regex(_BEYOND[name]), search=False)
    return difference(outside, char_dfa(beyond))
