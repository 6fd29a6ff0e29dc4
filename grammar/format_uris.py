"""URIs, IRIs and URI templates as regexes (RFC 3986, 3987, 6570)."""

from __future__ import annotations

from structgen.grammar.format_names import IPV6

_HEX = r"%[0-9A-Fa-f]{2}"


def _references(unreserved: str, private: str) -> tuple[str, str]:
    """The absolute form and the relative one."""
    sub = "!$&'()*+,;="
    pchar = rf"(?:[{unreserved}{sub}:@]|{_HEX})"
    userinfo = rf"(?:[{unreserved}{sub}:]|{_HEX})*"
    host = rf"(?:\[(?:{IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~{sub}:-]+)\]|(?:[{unreserved}{sub}]|{_HEX})*)"
    authority = rf"(?:{userinfo}@)?{host}(?::\d*)?"
    path = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{path})?"
    rootless = rf"{pchar}+{path}"
    noscheme = rf"(?:[{unreserved}{sub}@]|{_HEX})+{path}"
    query = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{path}|{absolute}|{rootless})?{query}"
    relative = rf"(?://{authority}{path}|{absolute}|{noscheme})?{query}"
    return full, relative


_UCS = r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}" + "".join(
    rf"\u{{{plane:X}{'1000' if plane == 14 else '0000'}}}-\u{{{plane:X}FFFD}}" for plane in range(1, 15)
)
_PRIVATE = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"

URI, _URI_RELATIVE = _references(r"A-Za-z0-9._~\-", "")
IRI, _IRI_RELATIVE = _references(r"A-Za-z0-9._~\-" + _UCS, _PRIVATE)
URI_REFERENCE = f"(?:{URI}|{_URI_RELATIVE})"
IRI_REFERENCE = f"(?:{IRI}|{_IRI_RELATIVE})"

# The apostrophe is a literal too, by an erratum of the RFC.
_LITERAL = rf"(?:[!#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_HEX})"
_VARCHAR = rf"(?:[A-Za-z0-9_]|{_HEX})"
_VARIABLE = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?::[1-9]\d{{0,3}}|\*)?"
URI_TEMPLATE = rf"(?:{_LITERAL}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
