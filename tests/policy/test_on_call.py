"""People on call take turns by the local clock, one at every moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.on_call import Rotation, on_call, turn_at

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
        ("on_call: seniors", ROTATION.replace("U0ANA", ""), "name at least one"),
        ("on_call: seniors", ROTATION.replace("09:00", ""), "write 2026-01-05 09:00"),
        ("on_call: seniors", ROTATION.replace("7d", "5m"), "at least an hour"),
    ],
)
def test_a_rotation_that_reaches_nobody_is_refused(
    role: str, rotation: str, said: str
) -> None:
    text = f"""\
version: 1
defaults: {{needs: senior}}
roles: {{senior: {{users: [U0ANA, U0BEN], {role}}}}}
on_call: {{{rotation}}}
"""
    with pytest.raises(BadPolicy) as found:
        load_policy(text, "policy.yml")

    assert said in str(found.value)
