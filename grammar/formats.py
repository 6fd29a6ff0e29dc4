"""The standard string formats as syntax trees.

Each accepts only what its RFC allows; where the RFC's language is not regular or its limits would need thousands of
states (the total length of a host name), a little less is accepted, never more. Such narrowings are named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from structgen.grammar import format_names, format_uris
from structgen.grammar.format_patterns import flat_pattern_tree, pattern_tree
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

_REGEXES: dict[str, str | Callable[[], str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": format_names.EMAIL,
    "idn-email": format_names.idn_email,
    "hostname": format_names.HOSTNAME,
    "idn-hostname": format_names.idn_hostname,
    "ipv4": format_names.IPV4,
    "ipv6": format_names.IPV6,
    "uri": format_uris.URI,
    "uri-reference": format_uris.URI_REFERENCE,
    "iri": format_uris.IRI,
    "iri-reference": format_uris.IRI_REFERENCE,
    "uri-template": format_uris.URI_TEMPLATE,
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
    "relative-json-pointer": r"(?:0|[1-9]\d*)(?:#|(?:/(?:[^~/]|~[01])*)*)",
}

FORMATS = frozenset({*_REGEXES, "regex"})

# Formats that accept less than their RFC: what they do not accept is not what is no such text.
NARROWED_FORMATS = frozenset(
    {"time", "date-time", "email", "idn-email", "hostname", "idn-hostname", "regex", "uri-template"}
)


@lru_cache(maxsize=64)
def format_tree(name: str) -> Node:
    """The syntax tree of a format in `FORMATS`, for the whole text; that of `regex` has rules."""
    if name == "regex":
        return pattern_tree()
    source = _REGEXES[name]
    return without_end_assertions(parse_regex(source if isinstance(source, str) else source()), search=False)


def flat_format_tree(name: str) -> Node:
    """The same without rules, for automata: patterns with one level of groups."""
    return flat_pattern_tree() if name == "regex" else format_tree(name)
