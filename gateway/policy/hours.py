"""Compute working hours in a configured time zone.

Each instant has exactly one local time, so daylight saving needs no special case: local
times in a gap never occur, and in an overlap both instants count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from keyturn.gateway.validation_errors import near

_HOURS = re.compile(
    r"(?P<from>[01][0-9]|2[0-3]):(?P<fm>[0-5][0-9])"
    r"-(?P<to>[01][0-9]|2[0-4]):(?P<tm>[0-5][0-9])",
    re.ASCII,
)
_DAY = re.compile(r"(?:[0-9]{4}-)?[0-9]{2}-[0-9]{2}", re.ASCII)
_LEAP_YEAR = "2000-"
_SATURDAY = 5
_WHOLE_DAY = 24 * 60
_MINUTE = timedelta(minutes=1)
EARLIEST = datetime.min.replace(tzinfo=UTC)
"""Before every moment."""
LATEST = datetime.max.replace(tzinfo=UTC)
"""After every moment."""


@lru_cache(maxsize=512)
def zone(name: str) -> ZoneInfo:
    """Return an IANA time zone.

    Raises:
        ValueError: when there is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        hint = near(name, available_timezones())
        if hint.startswith("use one of"):
            hint = "write an IANA name such as 'Europe/London' or 'UTC'."
        raise ValueError(f"there is no time zone {name!r}; {hint}") from error


@lru_cache(maxsize=512)
def span(text: str) -> tuple[int, int]:
    """Parse ``08:00-18:00`` into minutes of the day; the end is exclusive.

    An end before the start goes past midnight; ``00:00-24:00`` is the whole day.

    Raises:
        ValueError: for anything else.
    """
    if match := _HOURS.fullmatch(text):
        start = int(match["from"]) * 60 + int(match["fm"])
        end = int(match["to"]) * 60 + int(match["tm"])
        if end <= _WHOLE_DAY and start != end:
            return start, end
    raise ValueError(f"{text!r} are not hours; write '08:00-18:00'.")


def instant(local: datetime, zone_name: str, *, after: datetime) -> datetime:
    """Return the instant of a local time, in UTC.

    A time that daylight saving skips is reached at the end of the gap. If a time occurs
    twice, the first one counts, unless it is at or before ``after``.
    """
    first = local.replace(tzinfo=zone(zone_name))
    found = first.astimezone(UTC)
    # In a gap the clock already shows a later time; go back to the end of the gap.
    while _wall(found - _MINUTE, zone_name) >= local:
        found -= _MINUTE
    return found if found > after else first.replace(fold=1).astimezone(UTC)


def _wall(moment: datetime, zone_name: str) -> datetime:
    return moment.astimezone(zone(zone_name)).replace(tzinfo=None)


def holiday(text: str) -> str:
    """Check ``2026-12-25``, or ``12-25`` for every year.

    Raises:
        ValueError: when there is no such day.
    """
    # A leap year, so that 02-29 is valid.
    whole = text if text.count("-") > 1 else _LEAP_YEAR + text
    try:
        date.fromisoformat(whole if _DAY.fullmatch(text) else "")
    except ValueError as error:
        shown = f"{text!r} is not a day; write 2026-12-25, or 12-25 for every year."
        raise ValueError(shown) from error
    return text


def hour(now: datetime, zone_name: str) -> int:
    """Return the local hour, 0 to 23."""
    return now.astimezone(zone(zone_name)).hour


def weekday(now: datetime, zone_name: str) -> int:
    """Return the local day of the week, 1 for Monday to 7 for Sunday (ISO 8601)."""
    return now.astimezone(zone(zone_name)).isoweekday()


def off_hours(
    now: datetime, zone_name: str, hours: str, holidays: Iterable[str] = ()
) -> bool:
    """Return whether a time is outside these hours, on a weekend or on a holiday.

    Hours past midnight belong to the day on which they begin: with ``22:00-06:00``,
    Saturday 03:00 is still Friday's shift.
    """
    local = now.astimezone(zone(zone_name))
    start, end = span(hours)
    minute = local.hour * 60 + local.minute
    day = local.date()
    if start < end:
        # The end is exclusive: 18:00 is outside.
        is_open = start <= minute < end
    else:
        is_open = minute >= start or minute < end
        # The first day of the calendar has no previous day.
        if minute < end and day > date.min:
            day -= timedelta(days=1)
    # Listed as 2026-12-25, or as 12-25 for every year.
    is_holiday = not {day.isoformat(), f"{day:%m-%d}"}.isdisjoint(holidays)
    return not is_open or day.weekday() >= _SATURDAY or is_holiday


def utc(now_ms: int) -> datetime:
    """Return Unix milliseconds as an aware time, exactly.

    Raises:
        ValueError: when the time is not a date of the calendar.
    """
    try:
        midnight = datetime.combine(date(1970, 1, 1), time(), UTC)
        # Not fromtimestamp(), which goes through a float.
        return midnight + timedelta(milliseconds=now_ms)
    except OverflowError as error:
        raise ValueError(f"{now_ms!r} ms is not a time of the calendar") from error
