"""Host names, internet addresses and mail addresses (RFC 1123, 5890-5893, 5321, 6531, 4291)."""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv6Address

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_IPV6_CHARACTERS = re.compile(r"[0-9A-Fa-f:.]+")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e])*"'
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*|{_QUOTED}")
# RFC 6531 adds every character beyond ASCII to both spellings.
_IDN_ATOM = _ATOM.replace("A-Z", "\u0080-\U0010ffffA-Z")
_IDN_QUOTED = _QUOTED.replace("\\x21", "\\x21\u0080-\U0010ffff")
_IDN_LOCAL = re.compile(rf"{_IDN_ATOM}(?:\.{_IDN_ATOM})*|{_IDN_QUOTED}")
_IDN_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_GENERAL_LITERAL = re.compile(r"[A-Za-z0-9-]*[A-Za-z0-9]:[\x21-\x5a\x5e-\x7e]+")


def is_ipv4(text: str) -> bool:
    return _IPV4.fullmatch(text) is not None


def is_ipv6(text: str) -> bool:
    if _IPV6_CHARACTERS.fullmatch(text) is None or ("." in text and not is_ipv4(text.rpartition(":")[2])):
        return False
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def is_hostname(text: str) -> bool:
    """At most 253 characters of letter-digit-hyphen labels; `xn--` labels must decode to legal names."""
    if len(text) > 253 or not text.isascii():
        return False
    return all(_is_ascii_label(label) for label in text.split("."))


def _is_ascii_label(label: str) -> bool:
    if _LABEL.fullmatch(label) is None:
        return False
    return not label.lower().startswith("xn--") or _is_international_label(label.lower())


def is_idn_hostname(text: str) -> bool:
    labels = _IDN_DOTS.split(text)
    encoded = [_to_ascii(label) for label in labels]
    if any(label is None for label in encoded) or len(".".join(filter(None, encoded))) > 253:
        return False
    return _obeys_bidi_rule(labels)


def _is_international_label(label: str) -> bool:
    return _to_ascii(label) is not None


def _to_ascii(label: str) -> str | None:
    """The ASCII form of one label, or None when IDNA 2008 refuses it."""
    import idna  # 40 ms, and most schemas never ask

    if label.isascii() and not label.lower().startswith("xn--"):
        return label if _LABEL.fullmatch(label) and label[2:4] != "--" else None
    try:
        if label.isascii():
            unicode_label = idna.ulabel(label)
            return label if idna.alabel(unicode_label).decode() == label.lower() else None
        return idna.alabel(label).decode()
    except (idna.IDNAError, UnicodeError):
        return None


def _obeys_bidi_rule(labels: list[str]) -> bool:
    """RFC 5893: in a name with a right-to-left label every label must obey, digits-first ones included."""
    import idna

    directions = {unicodedata.bidirectional(character) for label in labels for character in label}
    if not directions & {"R", "AL", "AN"}:
        return True
    try:
        return all(idna.check_bidi(label, check_ltr=True) for label in labels)
    except idna.IDNAError:
        return False


def is_email(text: str) -> bool:
    """A Mailbox of RFC 5321: dot-atom or quoted local part (64 octets), host name or address literal."""
    local, at, domain = text.rpartition("@")
    if not at or len(local) > 64 or _LOCAL.fullmatch(local) is None:
        return False
    return is_hostname(domain) or _is_address_literal(domain)


def is_idn_email(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    if not at or len(local.encode(errors="replace")) > 64 or _IDN_LOCAL.fullmatch(local) is None:
        return False
    return is_hostname(domain) or _is_address_literal(domain) or is_idn_hostname(unicodedata.normalize("NFC", domain))


def _is_address_literal(domain: str) -> bool:
    if not (domain.startswith("[") and domain.endswith("]")):
        return False
    literal = domain[1:-1]
    if literal[:5].lower() == "ipv6:":
        return is_ipv6(literal[5:])
    return is_ipv4(literal) or _GENERAL_LITERAL.fullmatch(literal) is not None
