"""People on call take turns by the local clock, one at every moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyturn.gateway.policy.hours import holiday, off_hours, span, utc, weekday, zone
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.on_call import (
    QuietRule,
    Rotation,
    asked_from,
    last_end,
    on_call,
    quiet_until,
    turn_at,
)
from keyturn.gateway.protocol.records import Tier

LONDON = "Europe/London"
ROTATION = "seniors: {people: [U0ANA], start: 2026-01-05 09:00, length: 7d, zone: UTC}"
WEEKLY = Rotation(
    people=("U0ANA", "U0BEN", "U0EVE"),
    start="2026-01-05 09:00",
    length=timedelta(days=7),
    zone=LONDON,
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "who"),
    [
        ("2026-01-05T08:59", ""),
        ("2026-01-12T09:00", "U0BEN"),
        ("2026-01-26T09:00", "U0ANA"),
        # Summer time: 09:00 in London is 08:00 UTC, and the turn changes then.
        ("2026-03-30T07:59", "U0EVE"),
        ("2026-03-30T08:00", "U0ANA"),
    ],
)
def test_the_turn_changes_at_the_same_local_time(now: str, who: str) -> None:
    assert on_call(WEEKLY, at(now)) == who


def test_a_turn_that_began_goes_on_while_the_clock_shows_its_start_again() -> None:
    rule = WEEKLY.with_(start="2026-10-24 01:30", length=timedelta(days=1))

    # In London it is 01:00 for the second time.
    assert turn_at(rule, at("2026-10-25T00:29")) == 0
    assert turn_at(rule, at("2026-10-25T00:30")) == 1
    assert turn_at(rule, at("2026-10-25T01:00")) == 1


@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1)),  # noqa: DTZ001 - made aware below
    st.sampled_from(["UTC", LONDON, "America/New_York", "Australia/Lord_Howe"]),
    st.sampled_from([1, 8, 12, 24, 7 * 24]),
    st.sampled_from(["00:00", "01:30", "02:15", "09:00"]),
)
def test_every_moment_lies_in_one_turn(
    naive: datetime, zone: str, hours: int, start: str
) -> None:
    rule = WEEKLY.with_(
        zone=zone, length=timedelta(hours=hours), start=f"2024-01-01 {start}"
    )
    now = naive.replace(tzinfo=UTC)

    turn = turn_at(rule, now)

    if turn is None:
        assert now < rule.begin(0)
    else:
        assert rule.begin(turn) <= now < rule.begin(turn + 1)


@pytest.mark.parametrize(
    ("role", "rotation", "said"),
    [
        ("on_call: seniors", "", "which is not in 'on_call'"),
        (
            "on_call: seniors",
            ROTATION.replace("U0ANA", "U0EVE"),
            "'U0EVE' is on call for 'senior' but does not hold that role",
        ),
        ("on_call: seniors", ROTATION.replace("U0ANA", ""), "write at least 1"),
        ("on_call: seniors", ROTATION.replace("09:00", ""), "write 2026-01-05 09:00"),
        ("on_call: seniors", ROTATION.replace("7d", "5m"), "at least an hour"),
    ],
)
def test_an_empty_rotation_is_refused(role: str, rotation: str, said: str) -> None:
    text = f"""\
version: 1
defaults: {{needs: senior}}
roles: {{senior: {{users: [U0ANA, U0BEN], {role}}}}}
on_call: {{{rotation}}}
"""
    with pytest.raises(BadPolicy) as found:
        load_policy(text, "policy.yml")

    assert said in str(found.value)


BERLIN = "Europe/Berlin"
NIGHT = QuietRule(hours="22:00-07:00", zone=BERLIN)


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
def test_a_span_ends_by_local_time(hours: str, now: str, until: str | None) -> None:
    found = quiet_until(QuietRule(hours=hours, zone=BERLIN), at(now))

    assert found == (at(until) if until else None)


@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(0, 23),
    st.integers(0, 23),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
)
def test_quiet_hours_end(naive: datetime, start: int, end: int, zone: str) -> None:
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


DAY = "08:00-18:00"


@pytest.mark.parametrize(
    ("when", "zone_name", "hours", "is_off"),
    [
        # A summer and a winter day in London: the same wall clock, another UTC.
        ("2026-07-01T06:59:59Z", LONDON, DAY, True),
        ("2026-07-01T07:00:00Z", LONDON, DAY, False),
        ("2026-07-01T17:00:00Z", LONDON, DAY, True),
        ("2026-01-07T08:00:00Z", LONDON, DAY, False),
        # The weekend is that of the zone: Friday evening here is Saturday there.
        ("2026-07-03T16:00:00Z", LONDON, DAY, False),
        ("2026-07-03T16:00:00Z", "Pacific/Auckland", "00:00-24:00", True),
        ("2026-07-05T10:00:00Z", LONDON, DAY, True),
        # Past midnight: the hours belong to the day on which they began.
        ("2026-07-01T22:30:00Z", "UTC", "22:00-06:00", False),
        ("2026-07-02T06:00:00Z", "UTC", "22:00-06:00", True),
        ("2026-07-04T03:00:00Z", "UTC", "22:00-06:00", False),  # Friday's night
        ("2026-07-04T23:00:00Z", "UTC", "22:00-06:00", True),  # Saturday's night
        # Spring 2026 in New York: 02:00 to 03:00 of March 8, a Sunday, never comes by.
        ("2026-03-09T12:00:00Z", "America/New_York", DAY, False),
        # Cairo changes on Fridays: 2026-04-24 00:00 jumps to 01:00.
        ("2026-04-23T22:00:00Z", "Africa/Cairo", "01:00-02:00", False),
        # Autumn in Cairo: Thursday 2026-10-29 23:00 to 24:00 comes by twice.
        ("2026-10-29T20:30:00Z", "Africa/Cairo", "23:00-24:00", False),
        # Lord Howe moves by half an hour; Nepal differs by a quarter of an hour.
        ("2026-07-01T21:30:00Z", "Australia/Lord_Howe", DAY, False),
        ("2026-07-01T02:15:00Z", "Asia/Kathmandu", DAY, False),
    ],
)
def test_hours_are_those_of_the_wall_clock(
    when: str, zone_name: str, hours: str, is_off: object
) -> None:
    assert off_hours(at(when), zone_name, hours) == is_off


@pytest.mark.parametrize(
    ("when", "is_off"),
    [
        ("2026-12-25T10:00:00Z", True),  # every year
        ("2026-04-03T10:00:00Z", True),  # once
        ("2028-04-03T10:00:00Z", False),
    ],
)
def test_nobody_works_on_a_holiday(when: str, is_off: object) -> None:
    assert off_hours(at(when), LONDON, DAY, ("12-25", "2026-04-03")) == is_off


def test_a_holiday_is_a_day_of_the_zone() -> None:
    eve = at("2026-12-24T15:30:00Z")  # already the 25th in Tokyo

    assert off_hours(eve, "Asia/Tokyo", "00:00-24:00", ("12-25",))
    assert not off_hours(eve, LONDON, "00:00-24:00", ("12-25",))


@given(
    st.datetimes(
        min_value=datetime(2026, 1, 1),  # noqa: DTZ001 - hypothesis wants naive bounds
        max_value=datetime(2027, 1, 1),  # noqa: DTZ001 - as above
        timezones=st.just(UTC),
    ),
    st.integers(0, 23),
    st.integers(0, 23),
)
def test_each_minute_is_in_one_span_only(now: datetime, start: int, end: int) -> None:
    if start >= end:
        return
    inside, outside = f"{start:02}:00-{end:02}:00", f"{end:02}:00-{start:02}:00"

    if weekday(now, LONDON) in {2, 3, 4, 5}:
        assert off_hours(now, LONDON, inside) != off_hours(now, LONDON, outside)


@pytest.mark.parametrize("text", ["8-18", "08:00-08:00", "08:00-24:30", ""])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write '08:00-18:00'"):
        span(text)


@pytest.mark.parametrize("text", ["", "12-32", "2026-02-29", "25.12.", "2026-W01-1"])
def test_a_day_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a day"):
        holiday(text)


def test_the_29th_of_february_is_a_yearly_day() -> None:
    assert holiday("02-29") == "02-29"


@pytest.mark.parametrize("name", ["", "Europe/Londn", "../etc/passwd", "Mars/Base"])
def test_a_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="there is no time zone"):
        zone(name)


def test_milliseconds_become_the_exact_time_or_a_problem() -> None:
    assert utc(1_782_900_000_001).microsecond == 1000
    with pytest.raises(ValueError, match="not a time of the calendar"):
        utc(10**18)
