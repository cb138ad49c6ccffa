"""A digest is due once a week on the clock of its zone; mistakes are named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyturn.gateway.config import Settings
from keyturn.gateway.service_settings import DigestSettings, MetricsSettings
from tests.levels import examples

ROOT = Path(__file__).parents[1]
ZONES = ["UTC", "Europe/London", "Pacific/Auckland", "Asia/Kathmandu"]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 - it gets its zone
    st.sampled_from(["mon", "Thu", "SUN"]),
    st.sampled_from(["00:00", "02:30", "23:59"]),
    st.sampled_from(ZONES),
)
def test_the_newest_digest_was_due_within_the_week(
    at: datetime, day: str, clock: str, zone: str
) -> None:
    digest, now = DigestSettings(day=day, at=clock, zone=zone), at.replace(tzinfo=UTC)

    due = digest.last_due(now)

    assert due.astimezone(UTC) <= now
    # An hour more where the clock was put back within the week.
    assert now - due.astimezone(UTC) < timedelta(days=7, hours=1)
    assert f"{due:%a}".lower() == day.lower()
    assert f"{due:%H:%M}" == clock


def test_a_week_is_seven_whole_days_on_the_clock() -> None:
    digest = DigestSettings(zone="Europe/London")
    due = digest.last_due(datetime(2026, 10, 26, 12, tzinfo=UTC))

    since, until = digest.week_of(due)

    # The clock was put back on Sunday.
    assert until.astimezone(UTC) - since.astimezone(UTC) == timedelta(days=7, hours=1)
    assert since == datetime(2026, 10, 19, tzinfo=ZoneInfo("Europe/London"))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"digest": {"day": "today"}}, "'today' is no day"),
        ({"digest": {"at": "9am"}}, "'9am' is no time of the day"),
        ({"digest": {"zone": "Mars"}}, "'Mars' is no time zone"),
        ({"alert": {"corrected": "half"}}, "'half' is no share"),
        ({"channel": "general"}, "match"),
    ],
)
def test_a_mistake_is_named(written: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MetricsSettings.model_validate(written)


def test_the_settings_of_the_docs_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    _, _, block = page.partition("```yaml\n")
    (tmp_path / "keyturn.yml").write_text(block.partition("```")[0])

    found = Settings.load(tmp_path / "keyturn.yml", {}).metrics

    assert found.digest == DigestSettings(zone="Europe/London")
    assert found.channel == "#agent-approvals"
