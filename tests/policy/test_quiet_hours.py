"""Quiet hours follow the clock of their zone; one rule names the people in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyturn.gateway.policy.on_call import QuietRule, asked_from, last_end, quiet_until
from keyturn.gateway.protocol.records import Tier

BERLIN = "Europe/Berlin"
NIGHT = QuietRule(hours="22:00-07:00", zone=BERLIN)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "now", "until"),
    [
        ("22:00-07:00", "2026-07-04T20:00", "2026-07-05T05:00"),
        ("22:00-07:00", "2026-07-05T05:00", None),
        ("18:00-24:00", "2026-01-15T20:00", "2026-01-15T23:00"),
        # The clocks go forward from 02:00 to 03:00: the night is an hour shorter.
        ("22:00-02:30", "2026-03-28T21:00", "2026-03-29T01:00"),
        # They go back from 03:00 to 02:00: 02:15 comes twice, and is quiet twice.
        ("22:00-02:30", "2026-10-25T00:15", "2026-10-25T00:30"),
        ("22:00-02:30", "2026-10-25T00:45", None),
        ("22:00-02:30", "2026-10-25T01:15", "2026-10-25T01:30"),
    ],
)
def test_the_end_is_that_of_the_local_clock(
    hours: str, now: str, until: str | None
) -> None:
    found = quiet_until(QuietRule(hours=hours, zone=BERLIN), at(now))

    assert found == (at(until) if until else None)


@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(0, 23),
    st.integers(0, 23),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
)
def test_at_their_end_nobody_is_quiet_and_a_look_is_due(
    naive: datetime, start: int, end: int, zone: str
) -> None:
    if start == end:
        return
    rule = QuietRule(hours=f"{start:02}:00-{end:02}:00", zone=zone)
    now = naive.replace(tzinfo=UTC)

    until = quiet_until(rule, now)

    assert last_end(rule, now) <= now
    if until is not None:
        assert timedelta() < until - now <= timedelta(hours=25)
        assert quiet_until(rule, until) is None
        assert last_end(rule, until) == until
        assert until.astimezone(ZoneInfo(zone)).hour >= end


def test_hours_that_end_twice_in_autumn_end_twice() -> None:
    rule = QuietRule(hours="23:00-02:30", zone=BERLIN)
    first, second = at("2026-10-25T00:30"), at("2026-10-25T01:30")

    assert last_end(rule, at("2026-10-25T01:15")) == first
    assert last_end(rule, second) == second


@pytest.mark.parametrize(
    ("urgent", "tier", "expires_in", "is_asked"),
    [
        ("escalate", Tier.ESCALATE, 1, True),
        ("escalate", Tier.ESCALATE, 12, False),
        ("escalate", Tier.APPROVE, 1, False),
        ("approve", Tier.APPROVE, 1, True),
        ("none", Tier.ESCALATE, 1, False),
    ],
)
def test_only_a_call_that_would_expire_breaks_quiet_hours(
    urgent: str, tier: Tier, expires_in: int, *, is_asked: bool
) -> None:
    rule = QuietRule.model_validate({**NIGHT.model_dump(), "urgent": urgent})
    now = at("2026-07-04T23:00")

    begin = asked_from(rule, tier, now=now, expires=now + timedelta(hours=expires_in))

    assert (begin is None) == is_asked


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"hours": "00:00-24:00", "zone": BERLIN}, "'notify: none'"),
        ({"hours": "22-7", "zone": BERLIN}, "write '08:00-18:00'"),
        ({"hours": "22:00-07:00", "zone": "Europe/Berln"}, "Europe/Berlin"),
    ],
)
def test_what_cannot_be_meant_is_refused(given_: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QuietRule.model_validate(given_)
