"""Check the string formats of JSON Schema that a reviewer could mistype.

They are checked of what a reviewer changed and never of what an agent asked for: the
tool reads its arguments itself, and tools use formats loosely. So a check refuses only
what no tool can mean. Pydantic writes times and date-times without an offset, which RFC
3339 does not allow, and they are taken.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime, time
from uuid import UUID

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
_DAY = 10  # YYYY-MM-DD; the library also reads 20261130


def _day(text: str) -> object:
    return date.fromisoformat(text) if len(text) == _DAY else _refuse(text)


def _date_time(text: str) -> object:
    # A day alone is no date-time, though the library reads it as midnight.
    return datetime.fromisoformat(text) if len(text) > _DAY else _refuse(text)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], object]:
    return lambda text: pattern.fullmatch(text) or _refuse(text)


def _refuse(text: str) -> object:
    raise ValueError(text)


_CHECKS: dict[str, tuple[Callable[[str], object], str]] = {
    "date": (_day, "a date, such as 2026-11-30"),
    "time": (time.fromisoformat, "a time of day, such as 14:30:00"),
    "date-time": (_date_time, "a date and time, such as 2026-11-30T14:30:00Z"),
    "email": (_matching(_EMAIL), "an e-mail address, such as ana@example.com"),
    "uri": (_matching(_URI), "an address with its scheme, such as https://example.com"),
    "uuid": (UUID, "a UUID, such as 123e4567-e89b-12d3-a456-426614174000"),
    "ipv4": (ipaddress.IPv4Address, "an IPv4 address, such as 192.0.2.1"),
    "ipv6": (ipaddress.IPv6Address, "an IPv6 address, such as 2001:db8::1"),
}


def fits(text: str, name: str) -> bool:
    """Return whether a text has this format, or may have it: not all are checked."""
    if name not in _CHECKS:
        return True
    check, _ = _CHECKS[name]
    try:
        check(text)
    except ValueError:
        return False
    return True


def wanted_by(name: str) -> str:
    """Return what a text of a format is, for a sentence; "" for one not checked."""
    return _CHECKS[name][1] if name in _CHECKS else ""
