"""URIs, IRIs and URI templates (RFC 3986, 3987, 6570), built from their ABNF."""

from __future__ import annotations

import re

from structgen.validation.net_formats import is_ipv6

_PCT = r"%[0-9A-Fa-f]{2}"
_SUB = r"!$&'()*+,;="
_UNRESERVED = r"A-Za-z0-9\-._~"
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane * 0x10000 + (0x1000 if plane == 14 else 0))}-{chr(plane * 0x10000 + 0xFFFD)}" for plane in range(1, 15)
)
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"


def _reference(extra: str, private: str) -> re.Pattern[str]:
    """(scheme)? authority? path query? fragment?, where `extra` joins the unreserved characters."""

    def run(more: str) -> str:
        return rf"(?:[{_UNRESERVED}{extra}{_SUB}{more}]|{_PCT})"

    pchar = run(":@")
    rest = rf"(?:/{pchar}*)*"
    host = rf"(?:\[(?P<literal>[^\[\]/?#@]*)\]|{run('')}*)"
    authority = rf"//(?:{run(':')}*@)?{host}(?::[0-9]*)?{rest}"
    absolute = rf"/(?:{pchar}+{rest})?"
    query, fragment = rf"(?:\?(?:{run(':@/?' + private)})*)?", rf"(?:#(?:{run(':@/?')})*)?"
    # Without a scheme the first segment may hold no colon, else it would read as one.
    path = rf"(?:{authority}|{absolute}|(?(scheme){pchar}|{run('@')})(?(scheme){pchar}|{run('@')})*{rest}|)"
    return re.compile(rf"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):)?{path}{query}{fragment}")


_URI = _reference("", "")
_IRI = _reference(_UCS, _PRIVATE)
_FUTURE = re.compile(rf"[vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_SUB}:]+")

_VARCHAR = rf"(?:[A-Za-z0-9_]|{_PCT})"
_VARSPEC = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?::[1-9][0-9]{{0,3}}|\*)?"
_LITERAL = rf"(?:[^\x00-\x20\"%<>\\^`{{|}}\x7f]|{_PCT})"
_TEMPLATE = re.compile(rf"(?:{_LITERAL}|\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\}})*")


def _matches(pattern: re.Pattern[str], text: str, *, scheme: bool) -> bool:
    match = pattern.fullmatch(text)
    if match is None or (scheme and match["scheme"] is None):
        return False
    literal = match["literal"]
    return literal is None or is_ipv6(literal) or _FUTURE.fullmatch(literal) is not None


def is_uri(text: str) -> bool:
    return _matches(_URI, text, scheme=True)


def is_uri_reference(text: str) -> bool:
    return _matches(_URI, text, scheme=False)


def is_iri(text: str) -> bool:
    return _matches(_IRI, text, scheme=True)


def is_iri_reference(text: str) -> bool:
    return _matches(_IRI, text, scheme=False)


def is_uri_template(text: str) -> bool:
    return _TEMPLATE.fullmatch(text) is not None
