"""The standard formats, strictly: each checker takes a string and says whether it is one.

Sources: RFC 3339 (dates, times, durations), RFC 4122 (uuid), RFC 6901 and the relative JSON pointer draft,
RFC 6570 (templates). Names and addresses live in `net_formats`, URIs in `uri_formats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from structgen.validation import net_formats, uri_formats
from structgen.validation.patterns import is_strict_pattern

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))")
_DURATION = re.compile(
    r"P(?:[0-9]+W"
    r"|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?&time))?"
    r"|T(?&time))".replace("(?&time)", r"(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)")
)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_JSON_POINTER = re.compile(_POINTER, re.DOTALL)
_RELATIVE_JSON_POINTER = re.compile(rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})", re.DOTALL)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    if not 1 <= month <= 12:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _DAYS[month - 1] + (month == 2 and leap)


def is_time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    hour, minute, second = (int(part) for part in match.group(1, 2, 3))
    offset_hour, offset_minute = int(match[5] or 0), int(match[6] or 0)
    if hour > 23 or minute > 59 or second > 60 or offset_hour > 23 or offset_minute > 59:
        return False
    if second < 60:
        return True
    # A leap second is the last second of a day in UTC.
    offset = (offset_hour * 60 + offset_minute) * (-1 if match[4] == "-" else 1)
    return (hour * 60 + minute - offset) % (24 * 60) == 24 * 60 - 1


def is_date_time(text: str) -> bool:
    return text[10:11] in {"T", "t"} and is_date(text[:10]) and is_time(text[11:])


def is_duration(text: str) -> bool:
    return _DURATION.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def is_json_pointer(text: str) -> bool:
    return _JSON_POINTER.fullmatch(text) is not None


def is_relative_json_pointer(text: str) -> bool:
    return _RELATIVE_JSON_POINTER.fullmatch(text) is not None


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": is_duration,
    "uuid": is_uuid,
    "json-pointer": is_json_pointer,
    "relative-json-pointer": is_relative_json_pointer,
    "regex": is_strict_pattern,
    "email": net_formats.is_email,
    "idn-email": net_formats.is_idn_email,
    "hostname": net_formats.is_hostname,
    "idn-hostname": net_formats.is_idn_hostname,
    "ipv4": net_formats.is_ipv4,
    "ipv6": net_formats.is_ipv6,
    "uri": uri_formats.is_uri,
    "uri-reference": uri_formats.is_uri_reference,
    "iri": uri_formats.is_iri,
    "iri-reference": uri_formats.is_iri_reference,
    "uri-template": uri_formats.is_uri_template,
}
