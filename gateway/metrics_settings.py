"""Settings of the weekly metrics digest and of the alert thresholds."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from enum import IntEnum
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field

from keyturn.gateway.api_settings import ListenAddress
from keyturn.gateway.setting_forms import ChannelName, SettingsModel, Time

_CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)
_PERCENT = re.compile(r"(?P<count>[1-9][0-9]?)%", re.ASCII)


class _Day(IntEnum):
    MON, TUE, WED, THU, FRI, SAT, SUN = range(7)


def _clock(text: str) -> str:
    if _CLOCK.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no time of the day; write '09:00'.")
    return text


def _day(text: str) -> str:
    if text.upper() not in _Day.__members__:
        raise ValueError(
            f"{text!r} is no day; write mon, tue, wed, thu, fri, sat or sun."
        )
    return text


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"{name!r} is no time zone; write one such as Europe/London."
        ) from error
    return name


def _percent(value: object) -> int:
    if isinstance(value, int):
        return value
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no share; write 40%.")
    return int(match["count"])


class DigestSettings(SettingsModel):
    """Time of the weekly digest: a day, a time and its zone."""

    day: Annotated[str, AfterValidator(_day)] = "mon"
    at: Annotated[str, AfterValidator(_clock)] = "09:00"
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"

    def last_due(self, now: datetime) -> datetime:
        """Return the due time of the newest digest; ``now`` is aware."""
        local = now.astimezone(ZoneInfo(self.zone))
        back = (local.weekday() - _Day[self.day.upper()]) % 7
        at = time.fromisoformat(self.at)
        due = datetime.combine(local.date() - timedelta(days=back), at, local.tzinfo)
        # By local clock time, even across a change to or from summer time.
        return due if due <= now else due - timedelta(days=7)

    def week_of(self, due: datetime) -> tuple[datetime, datetime]:
        """Return the seven whole days before the day of a digest."""
        until = datetime.combine(due.date(), time(), due.tzinfo)
        return until - timedelta(days=7), until


class AlertSettings(SettingsModel):
    """Thresholds of the immediate alerts.

    Attributes:
        waiting: a call waits for longer than this.
        corrected: more than this share of the decisions of the last 24 hours, in
            percent, were an edit or a rejection; of at least ``decisions``.
        decisions: with fewer decisions there is no alert.
    """

    waiting: Time | None = None
    corrected: Annotated[int, BeforeValidator(_percent)] | None = None
    decisions: int = Field(default=20, ge=1)


class MetricsSettings(SettingsModel):
    """Posted metrics and their channel, and the metrics server.

    ``listen`` is the address of a server for ``/metrics`` and ``/readyz`` alone; None
    serves them on the bot's server for Slack. ``channel`` empty is the channel of the
    policy's defaults.
    """

    listen: ListenAddress | None = None
    channel: ChannelName = ""
    digest: DigestSettings | None = None
    alert: AlertSettings = AlertSettings()
