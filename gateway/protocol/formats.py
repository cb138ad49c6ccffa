"""Check the string formats of JSON Schema as pydantic reads them.

A reviewer types a URL without its slash, a UUID without dashes or a blank for the ``T``
of a date-time. A tool with pydantic types reads such a text as another spelling of the
same value, so it would not run with the text that was approved. `canonical` returns the
spelling that is read as itself.

An edit is checked, and the arguments of an agent are not: the tool reads those itself.
Pydantic writes times and date-times without an offset, which RFC 3339 does not allow.
They are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

from pydantic import AnyUrl, TypeAdapter, ValidationError

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def _email(text: str) -> str:
    if _EMAIL.fullmatch(text) is None:
        raise ValueError(text)
    name, _, domain = text.partition("@")
    return f"{name}@{domain.lower()}"


def _as(kind: Any) -> Callable[[str], str]:  # noqa: ANN401 - any type that pydantic reads
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return lambda text: str(
        adapter.dump_python(adapter.validate_python(text), mode="json")
    )


_FORMATS: dict[str, tuple[Callable[[str], str], str]] = {
    "date": (_as(date), "a date, such as 2026-11-30"),
    "time": (_as(time), "a time of day, such as 14:30:00"),
    "date-time": (_as(datetime), "a date and time, such as 2026-11-30T14:30:00Z"),
    "decimal": (_as(Decimal), "a number, such as 449.50"),
    "email": (_email, "an e-mail address, such as ana@example.com"),
    "uri": (_as(AnyUrl), "an address with its scheme, such as https://example.com"),
    "uuid": (_as(UUID), "a UUID, such as 123e4567-e89b-12d3-a456-426614174000"),
    "ipv4": (_as(IPv4Address), "an IPv4 address, such as 192.0.2.1"),
    "ipv6": (_as(IPv6Address), "an IPv6 address, such as 2001:db8::1"),
}


def canonical(text: str, name: str) -> str | None:
    """Return a text of a format in the spelling that tools read as itself.

    Returns None for a text that is not of the format. A text of a format that is not
    checked is returned unchanged.
    """
    if name not in _FORMATS:
        return text
    read, _ = _FORMATS[name]
    try:
        return read(text)
    except (ValidationError, ValueError):
        return None


def wanted_by(name: str) -> str:
    """Return what a text of a format is, for a sentence; "" for one not checked."""
    return _FORMATS[name][1] if name in _FORMATS else ""
