"""On-call rotation: people who take turns, each for the same time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from twokey.gateway.policy import hours
from twokey.gateway.policy.fields import Distinct, Duration, UserId, Zone
from twokey.gateway.protocol.records import Record

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
    """Who is on call, one after the other.

    Turns change at the same local time all year: a turn over the start of summer time
    is an hour shorter, one over its end an hour longer.

    Attributes:
        people: Slack user ids, in their order.
        start: local time of the first turn.
        length: of each turn, at most 30 days.
        zone: IANA time zone.
    """

    people: Annotated[tuple[UserId, ...], Distinct, Field(min_length=1)]
    start: Annotated[str, AfterValidator(_local)]
    length: Annotated[Duration, AfterValidator(_long)]
    zone: Zone

    def begin(self, turn: int) -> datetime:
        """Return when a turn begins, counted from 0."""
        local = datetime.fromisoformat(self.start) + turn * self.length
        return hours.instant(local, self.zone, after=hours.EARLIEST)


def turn_at(rule: Rotation, now: datetime) -> int | None:
    """Return which turn it is; None before the first one."""
    local = now.astimezone(hours.zone(rule.zone)).replace(tzinfo=None)
    turn = (local - datetime.fromisoformat(rule.start)) // rule.length
    # Local time goes back once a year, and then a turn has begun whose local time has
    # not come again; instants never go back, so they decide.
    while rule.begin(turn + 1) <= now:
        turn += 1
    return turn if turn >= 0 else None


def on_call(rule: Rotation, now: datetime) -> str:
    """Return who is on call; "" before the first turn."""
    turn = turn_at(rule, now)
    return "" if turn is None else rule.people[turn % len(rule.people)]
