"""A sample week of metrics."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

from keyturn.bot.cards.metrics_messages import DIGEST, digest_of
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.metrics.counts import Counts, Outcome
from keyturn.gateway.metrics.fold import Metrics, Selection
from keyturn.gateway.service_settings import DigestSettings

_WEEK = {
    "2026-11-16": (31, 12, 2, 1),
    "2026-11-17": (44, 17, 5, 0),
    "2026-11-18": (38, 21, 3, 2),
    "2026-11-19": (52, 15, 6, 1),
    "2026-11-20": (47, 9, 2, 4),
    "2026-11-21": (11, 3, 0, 0),
    "2026-11-22": (8, 0, 0, 0),
}
"""Calls that ran by themselves, were approved, edited or rejected, and expired."""

_TOOLS = {
    "look_up_order": (231, 0, 0, 0),
    "process_refund": (0, 49, 11, 6),
    "send_email": (0, 21, 5, 2),
    "change_address": (0, 7, 2, 0),
}


def week_before(due: datetime) -> Metrics:
    """Return the empty metrics of the week that a digest is about."""
    zone = due.tzinfo
    assert isinstance(zone, ZoneInfo)
    since, until = (
        int(at.timestamp() * 1000) for at in DigestSettings(zone=zone.key).week_of(due)
    )
    return Metrics(Selection(since_ms=since, until_ms=until), zone)


def a_busy_week() -> Event:
    """Return the announcement of a digest with calls on every day."""
    metrics = week_before(datetime(2026, 11, 23, 9, tzinfo=ZoneInfo("Europe/London")))
    metrics.days |= {day: _counts(*row) for day, row in _WEEK.items()}
    metrics.tools |= {tool: _counts(*row) for tool, row in _TOOLS.items()}
    metrics.total = _counts(*map(sum, zip(*_TOOLS.values(), strict=True)))
    data = {DIGEST: digest_of(metrics).model_dump_json()}
    name = EventName.METRICS_DIGEST
    return Event(name=name, tenant="default", seq="1-1", data=data)


def _counts(auto: int, approved: int, corrected: int, expired: int) -> Counts:
    edited = corrected // 2
    calls = {
        Outcome.AUTO: auto,
        Outcome.APPROVED: approved,
        Outcome.EDITED: edited,
        Outcome.REJECTED: corrected - edited,
        Outcome.EXPIRED: expired,
    }
    counts = Counts(calls=Counter(calls))
    for n in range(approved + corrected):
        counts.waits.add(20_000 + n * n * 900)
    return counts
