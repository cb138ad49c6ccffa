"""Parse Retry-After from a service's error (RFC 9110, section 10.2.3)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

from twokey.gateway.resume.known_errors import attribute

LONGEST_S = 3600.0
"""A service that asks for more is asked again after this long all the same."""


def retry_after_s(error: BaseException) -> float:
    """Return the seconds that an HTTP error's ``Retry-After`` asks for; 0 for none.

    The headers are those of the error or of its response, as the common clients have
    them. ``retry-after-ms`` is what some model providers send beside it.
    """
    for owner in (attribute(error, "response"), error):
        headers = attribute(owner, "headers")
        milliseconds = _seconds(_header(headers, "retry-after-ms"))
        seconds = _header(headers, "retry-after")
        found = milliseconds / 1000 or _seconds(seconds) or _until(seconds, headers)
        if found:
            return min(found, LONGEST_S)
    return 0.0


def _header(headers: object, name: str) -> str:
    try:
        found: object = cast("dict[str, object]", headers).get(name)
    except Exception:  # noqa: BLE001 - no headers, or foreign ones
        return ""
    return found if isinstance(found, str) else ""


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    # float() also takes "nan" and "inf".
    return found if math.isfinite(found) and found > 0 else 0.0


def _until(text: str, headers: object) -> float:
    """Return the seconds until an HTTP date, by the clock of who wrote it."""
    at, now = _date(text), _date(_header(headers, "date"))
    if at is None or now is None:
        return 0.0
    return max(0.0, (at - now).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    # Python returns a date with the zone "-0000", which is UTC too, without a zone.
    return found if found.tzinfo else found.replace(tzinfo=UTC)
