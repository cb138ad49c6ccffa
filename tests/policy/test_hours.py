"""Working hours follow the wall clock of the people who work, all year round."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.policy.hours import holiday, off_hours, span, utc, weekday, zone

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
def test_every_weekday_minute_is_in_one_span_or_the_other(
    now: datetime, start: int, end: int
) -> None:
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
