"""Quiet hours of a role: when nobody of it is mentioned or messaged."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator

from twokey.gateway.policy import hours
from twokey.gateway.policy.fields import Zone
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier

_DAY = timedelta(days=1)


def _span(text: str) -> str:
    try:
        start, end = hours.span(text)
    except ValueError as error:
        raise ValueError(f"{error}.") from error
    if (end - start) % (24 * 60) == 0:
        raise ValueError(
            f"{text!r} is the whole day, so nobody would ever be asked; write "
            "'notify: none' for that."
        )
    return text


class QuietRule(Record):
    """Hours of each day, in one time zone, in which nobody of a role is asked.

    A call that expires before they end is urgent: at tier ``urgent`` and above its
    people are asked at once, below it the call may expire unseen, which denies it.
    """

    hours: Annotated[str, AfterValidator(_span)]
    zone: Zone
    urgent: Literal["approve", "escalate", "none"] = "escalate"

    def is_urgent(self, tier: Tier) -> bool:
        """Return whether a call of this tier that would expire is worth a call."""
        if self.urgent == "none":
            return False
        return tier is Tier.ESCALATE or self.urgent == "approve"


def quiet_until(rule: QuietRule, now: datetime) -> datetime | None:
    """Return when the quiet hours of this moment end; None outside of them."""
    start, end = hours.span(rule.hours)
    local = now.astimezone(hours.zone(rule.zone))
    minute = local.hour * 60 + local.minute
    is_quiet = start <= minute < end
    day = local.date()
    if start > end:
        is_quiet = minute >= start or minute < end
        day += _DAY if minute >= start else timedelta()
    return _at(rule, day, end, now) if is_quiet else None


def asked_from(
    rule: QuietRule, tier: Tier, *, now: datetime, expires: datetime
) -> datetime | None:
    """Return when the people of a role are asked about a call; None for now."""
    end = quiet_until(rule, now)
    is_urgent = end is not None and expires <= end and rule.is_urgent(tier)
    return None if is_urgent else end


def last_end(rule: QuietRule, now: datetime) -> datetime:
    """Return when quiet hours ended last, at this moment or before."""
    _, end = hours.span(rule.hours)
    today = now.astimezone(hours.zone(rule.zone)).date()
    # Tomorrow as well: hours that end at 24:00 end on the day after. Each may come
    # twice, where local time goes back.
    ends = (
        _at(rule, today - back * _DAY, end, after)
        for back in (-1, 0, 1, 2)
        for after in (hours.EARLIEST, hours.LATEST)
    )
    return max(moment for moment in ends if moment <= now)


def _at(rule: QuietRule, day: date, minute: int, after: datetime) -> datetime:
    local = datetime.combine(day, time()) + timedelta(minutes=minute)
    return hours.instant(local, rule.zone, after=after)
