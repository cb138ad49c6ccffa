"""On-call rotation: people who take turns, each for the same time."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from keyturn.gateway.policy import hours
from keyturn.gateway.policy.fields import Distinct, Duration, UserId, Zone
from keyturn.gateway.protocol.records import Record, Tier

_DAY = timedelta(days=1)


def _span(text: str) -> str:
    start, end = hours.span(text)
    if (end - start) % (24 * 60) == 0:
        raise ValueError(
            f"{text!r} is the whole day, so the role would never be asked; write "
            "'notify: none' for that."
        )
    return text


class QuietRule(Record):
    """Hours of each day without mentions and direct messages for a role.

    The card is posted at once; its people are asked when the hours end.
    """

    hours: Annotated[str, AfterValidator(_span)]
    """Start and end, such as ``22:00-07:00``."""
    zone: Zone
    """Time zone of the hours."""
    urgent: Literal["approve", "escalate", "none"] = "escalate"
    """Lowest tier whose people are asked at once if a call would expire in these
    hours. Calls below it may expire unseen."""

    def is_urgent(self, tier: Tier) -> bool:
        """Return whether a call that would expire is announced in quiet hours."""
        if self.urgent == "none":
            return False
        return tier is Tier.ESCALATE or self.urgent == "approve"


def quiet_until(rule: QuietRule, now: datetime) -> datetime | None:
    """Return the end of the quiet hours around this moment; None outside of them."""
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
    """Return the last end of quiet hours, at this moment or before."""
    _, end = hours.span(rule.hours)
    today = now.astimezone(hours.zone(rule.zone)).date()
    # Tomorrow too: hours until 24:00 end on the next day. An end may occur twice where
    # local time goes back.
    ends = (
        _at(rule, today - back * _DAY, end, after)
        for back in (-1, 0, 1, 2)
        for after in (hours.EARLIEST, hours.LATEST)
    )
    return max(moment for moment in ends if moment <= now)


def _at(rule: QuietRule, day: date, minute: int, after: datetime) -> datetime:
    local = datetime.combine(day, time()) + timedelta(minutes=minute)
    return hours.instant(local, rule.zone, after=after)


_LOCAL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}", re.ASCII)
_SHORTEST = timedelta(hours=1)


def _local(text: str) -> str:
    try:
        datetime.fromisoformat(text if _LOCAL.fullmatch(text) else "")
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a local time; write 2026-01-05 09:00."
        ) from error
    return text


def _long(length: timedelta) -> timedelta:
    if length < _SHORTEST:
        raise ValueError("a turn lasts at least an hour; write 12h or 7d.")
    return length


class Rotation(Record):
    """People who take turns; a turn changes at the same local time all year.

    The person on call is asked instead of all holders of the role. All holders are
    asked if more votes are needed, if this person asked for the call, and before the
    first turn.
    """

    people: Annotated[tuple[UserId, ...], Distinct, Field(min_length=1)]
    """Slack user ids in their order."""
    start: Annotated[str, AfterValidator(_local)]
    """Local time of the first turn, such as ``2026-01-05 09:00``."""
    length: Annotated[Duration, AfterValidator(_long)]
    """Length of a turn: an hour at least."""
    zone: Zone
    """Time zone of ``start``."""

    def begin(self, turn: int) -> datetime:
        """Return when a turn begins, counted from 0."""
        local = datetime.fromisoformat(self.start) + turn * self.length
        return hours.instant(local, self.zone, after=hours.EARLIEST)


def turn_at(rule: Rotation, now: datetime) -> int | None:
    """Return the index of the current turn; None before the first one."""
    local = now.astimezone(hours.zone(rule.zone)).replace(tzinfo=None)
    turn = (local - datetime.fromisoformat(rule.start)) // rule.length
    # When local time goes back, a turn has begun although its local time is ahead
    # again. Instants never go back, so they decide.
    while rule.begin(turn + 1) <= now:
        turn += 1
    return turn if turn >= 0 else None


def on_call(rule: Rotation, now: datetime) -> str:
    """Return the person on call; "" before the first turn."""
    turn = turn_at(rule, now)
    return "" if turn is None else rule.people[turn % len(rule.people)]
