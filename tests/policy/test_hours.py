"""Working hours follow the wall clock of the people who work, all year round."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.policy.hours import (
    holiday,
    hour,
    off_hours,
    span,
    utc,
    weekday,
    zone,
)

LONDON = "Europe/London"
DAY = "08:00-18:00"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("when", "zone_name", "hours", "is_off"),
    [
        # A summer and a winter day in London: the same wall clock, another UTC.
        ("2026-07-01T06:59:59Z", LONDON, DAY, True),
        ("2026-07-01T07:00:00Z", LONDON, DAY, False),
        ("2026-07-01T16:59:59Z", LONDON, DAY, False),
        ("2026-07-01T17:00:00Z", LONDON, DAY, True),
        ("2026-01-07T07:59:59Z", LONDON, DAY, True),
        ("2026-01-07T08:00:00Z", LONDON, DAY, False),
        # The weekend is that of the zone: Friday evening here is Saturday there.
        ("2026-07-03T16:00:00Z", LONDON, DAY, False),
        ("2026-07-03T16:00:00Z", "Pacific/Auckland", "00:00-24:00", True),
        ("2026-07-04T10:00:00Z", LONDON, DAY, True),
        ("2026-07-05T10:00:00Z", LONDON, DAY, True),
        ("2026-07-05T22:00:00Z", "Asia/Tokyo", "07:00-18:00", False),
        # Past midnight: the hours belong to the day on which they began.
        ("2026-07-01T22:30:00Z", "UTC", "22:00-06:00", False),
        ("2026-07-02T05:59:00Z", "UTC", "22:00-06:00", False),
        ("2026-07-02T06:00:00Z", "UTC", "22:00-06:00", True),
        ("2026-07-04T03:00:00Z", "UTC", "22:00-06:00", False),  # Friday's night
        ("2026-07-04T23:00:00Z", "UTC", "22:00-06:00", True),  # Saturday's night
        ("2026-07-06T03:00:00Z", "UTC", "22:00-06:00", True),  # Sunday's night
        # Spring 2026 in New York: 02:00 to 03:00 of March 8, a Sunday, never comes by.
        ("2026-03-09T11:59:00Z", "America/New_York", DAY, True),
        ("2026-03-09T12:00:00Z", "America/New_York", DAY, False),
        ("2026-03-06T12:30:00Z", "America/New_York", DAY, True),
        # Cairo changes on Fridays: 2026-04-24 00:00 jumps to 01:00.
        ("2026-04-23T21:59:00Z", "Africa/Cairo", "23:00-23:59", True),
        ("2026-04-23T22:00:00Z", "Africa/Cairo", "01:00-02:00", False),
        ("2026-04-23T21:30:00Z", "Africa/Cairo", "23:00-24:00", False),
        # Autumn in Cairo: Thursday 2026-10-29 23:00 to 24:00 comes by twice.
        ("2026-10-29T20:30:00Z", "Africa/Cairo", "23:00-24:00", False),
        ("2026-10-29T21:30:00Z", "Africa/Cairo", "23:00-24:00", False),
        # Lord Howe moves by half an hour; Nepal differs by a quarter of an hour.
        ("2026-07-01T21:30:00Z", "Australia/Lord_Howe", DAY, False),
        ("2026-01-06T20:59:00Z", "Australia/Lord_Howe", DAY, True),
        ("2026-07-01T02:15:00Z", "Asia/Kathmandu", DAY, False),
        ("2026-07-01T02:14:00Z", "Asia/Kathmandu", DAY, True),
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
        ("2027-12-24T10:00:00Z", False),
        ("2026-04-03T10:00:00Z", True),  # once
        ("2028-04-03T10:00:00Z", False),
        ("2026-12-24T23:30:00Z", True),  # out of hours anyway
    ],
)
def test_nobody_works_on_a_holiday(when: str, is_off: object) -> None:
    assert off_hours(at(when), LONDON, DAY, ("12-25", "2026-04-03")) == is_off


def test_a_holiday_is_a_day_of_the_zone() -> None:
    eve = at("2026-12-24T15:30:00Z")  # already the 25th in Tokyo

    assert off_hours(eve, "Asia/Tokyo", "00:00-24:00", ("12-25",))
    assert not off_hours(eve, LONDON, "00:00-24:00", ("12-25",))


def test_the_hour_comes_by_twice_when_clocks_go_back() -> None:
    first, second = at("2026-10-25T00:30:00Z"), at("2026-10-25T01:30:00Z")

    assert (hour(first, LONDON), hour(second, LONDON)) == (1, 1)
    assert weekday(first, LONDON) == 7


def test_no_instant_has_an_hour_that_clocks_skip() -> None:
    start = at("2026-03-29T00:00:00Z")

    seen = {hour(start + timedelta(minutes=15 * n), LONDON) for n in range(12)}

    assert seen == {0, 2, 3}


@given(
    st.datetimes(
        min_value=datetime(1971, 1, 1),  # noqa: DTZ001 - hypothesis wants naive bounds
        max_value=datetime(2100, 1, 1),  # noqa: DTZ001 - as above
        timezones=st.just(UTC),
    ),
    st.sampled_from(["Europe/London", "America/New_York", "Asia/Kathmandu", "UTC"]),
    st.integers(-720, 720),
)
def test_an_instant_is_one_moment_however_it_is_written(
    now: datetime, zone_name: str, shift: int
) -> None:
    elsewhere = now.astimezone(timezone(timedelta(minutes=shift)))

    assert off_hours(now, zone_name, DAY) == off_hours(elsewhere, zone_name, DAY)
    assert hour(now, zone_name) == hour(elsewhere, zone_name)
    assert 1 <= weekday(now, zone_name) <= 7


@given(
    st.datetimes(
        min_value=datetime(2026, 1, 1),  # noqa: DTZ001 - hypothesis wants naive bounds
        max_value=datetime(2027, 1, 1),  # noqa: DTZ001 - as above
        timezones=st.just(UTC),
    ),
    st.integers(0, 23),
    st.integers(0, 23),
)
def test_every_weekday_minute_is_in_one_span_or_the_other(
    now: datetime, start: int, end: int
) -> None:
    if start >= end:
        return
    inside, outside = f"{start:02}:00-{end:02}:00", f"{end:02}:00-{start:02}:00"

    if weekday(now, LONDON) in {2, 3, 4, 5}:
        assert off_hours(now, LONDON, inside) != off_hours(now, LONDON, outside)


@pytest.mark.parametrize(
    "text",
    [
        "8-18",
        "08:00",
        "08:00-08:00",
        "08:60-09:00",
        "24:00-08:00",
        "08:00-24:30",
        "08:00 - 18:00",
        "",
    ],
)
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


def test_every_known_zone_can_be_used() -> None:
    now = at("2026-07-01T08:00:00Z")

    assert LONDON in available_timezones()
    assert all(0 <= hour(now, name) <= 23 for name in available_timezones())


def test_milliseconds_become_the_exact_time_or_a_problem() -> None:
    assert utc(1_782_900_000_001).microsecond == 1000
    with pytest.raises(ValueError, match="not a time of the calendar"):
        utc(10**18)
