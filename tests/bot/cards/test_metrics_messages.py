"""A digest shows any week: a chart, a table, and words for those who see neither."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.blocks import Message, ensure_valid_message
from keyturn.bot.cards.metrics_messages import (
    DIGEST,
    OUTCOMES,
    Digest,
    digest_of,
    metrics_message,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.metrics.report import Counts, Metrics, Outcome, Selection
from keyturn.gateway.service_settings import DigestSettings
from tests.bot.strategies import CANARY, hostile
from tests.levels import examples

LONDON = ZoneInfo("Europe/London")
MONDAY = datetime(2026, 11, 23, 9, tzinfo=LONDON)


def counts(**calls: int) -> Counts:
    return Counts(calls=Counter({Outcome(name): n for name, n in calls.items()}))


def message_of(digest: Digest, *, has_chart: bool = True) -> Message:
    data = {DIGEST: digest.model_dump_json()}
    event = Event(name=EventName.METRICS_DIGEST, tenant="t", seq="1-1", data=data)
    return metrics_message(event, has_chart=has_chart)


def part(message: Message, kind: str) -> Any:
    return next((one for one in message.blocks if one["type"] == kind), None)


def chart_of(message: Message) -> dict[str, list[int]]:
    """Return the values of each series; they are in the order of the categories."""
    chart = part(message, "data_visualization")["chart"]
    labels = chart["axis_config"]["categories"]
    for series in chart["series"]:
        assert [one["label"] for one in series["data"]] == labels
    return {
        one["name"]: [point["value"] for point in one["data"]]
        for one in chart["series"]
    }


def test_the_chart_has_every_call_of_every_day_once() -> None:
    metrics = week_before(MONDAY)
    metrics.days["2026-11-17"] = counts(auto=7, approved=3, edited=1, rejected=1)
    metrics.days["2026-11-20"] = counts(auto=2, denied=1, expired=2, returned=9)
    metrics.days["2026-11-20"].failed_auto = 1
    # Started on the day before, and lapsed on this one.
    metrics.days["2026-11-22"] = counts(approved=3)
    metrics.days["2026-11-22"].unused_auto = 2

    message = message_of(digest_of(metrics, Metrics()))

    block = part(message, "data_visualization")
    assert (block["title"], block["chart"]["type"]) == ("Calls of each day", "bar")
    assert block["chart"]["axis_config"]["categories"] == [
        "Mon 16", "Tue 17", "Wed 18", "Thu 19", "Fri 20", "Sat 21", "Sun 22",
    ]  # fmt: skip
    assert chart_of(message) == {
        "Auto-approved": [0, 7, 0, 0, 1, 0, 0],
        "Approved": [0, 3, 0, 0, 0, 0, 3],
        "Corrected": [0, 2, 0, 0, 0, 0, 0],
        "Other": [0, 0, 0, 0, 4, 0, 0],
    }


def test_without_a_chart_the_days_are_bars_of_text() -> None:
    metrics = week_before(MONDAY)
    metrics.days["2026-11-17"] = counts(auto=1)
    metrics.days["2026-11-18"] = counts(auto=400)

    message = message_of(digest_of(metrics, Metrics()), has_chart=False)

    assert part(message, "data_visualization") is None
    shown = json.dumps(message.blocks, ensure_ascii=False)
    assert f"Tue 17 █ 1\\nWed 18 {'█' * 20} 400" in re.sub(" +", " ", shown)


def test_a_week_of_runs_without_calls_has_neither() -> None:
    metrics = week_before(MONDAY)
    metrics.total.runs = 3

    message = message_of(digest_of(metrics, Metrics()))

    assert [one["type"] for one in message.blocks] == ["header", "context", "rich_text"]
    assert "Calls of each day" not in message.text


def test_a_table_of_many_tools_says_how_many_are_not_in_it() -> None:
    metrics = week_before(MONDAY)
    for n in range(200):
        metrics.tools[f"tool_{n}"] = counts(auto=200 - n)

    rows = part(message_of(digest_of(metrics, Metrics())), "table")["rows"]

    assert len(rows) == 12
    assert [one["text"] for one in rows[-1]][:3] == ["190 more", "18145", "…"]


names = st.one_of(hostile, st.text(max_size=300))
amounts = st.one_of(st.integers(0, 9), st.sampled_from([10**6, 10**12, 10**15]))
any_counts = st.builds(
    Counts,
    calls=st.dictionaries(st.sampled_from(Outcome), amounts).map(Counter),
    failed=amounts,
    failed_auto=amounts,
    unused_auto=amounts,
    runs=amounts,
    unasked_runs=amounts,
    unknown_runs=amounts,
    too_soon=amounts,
)
# Clocks go back and forward; midnight of some Sundays does not exist in Santiago.
zones = st.sampled_from(["UTC", "Europe/London", "America/Santiago", "Pacific/Apia"])


@st.composite
def any_week(draw: st.DrawFn) -> Metrics:
    """Draw a week, with counts on days in it and outside, and up to 200 tools."""
    day = draw(st.dates(date(2000, 1, 1), date(2099, 1, 1)))
    zone = ZoneInfo(draw(zones))
    metrics = week_before(datetime(day.year, day.month, day.day, 9, tzinfo=zone))
    for back in draw(st.sets(st.integers(-1, 9))):
        at = (day - timedelta(days=back)).isoformat()
        metrics.days[at] = draw(any_counts)
    for name in draw(st.lists(names, max_size=12)):
        metrics.tools[name] = draw(any_counts)
    if draw(st.booleans()):
        many = draw(any_counts)
        metrics.tools |= {f"{CANARY} {n}": many for n in range(200)}
    metrics.total = draw(any_counts)
    return metrics


@pytest.mark.parametrize("has_chart", [True, False])
@settings(deadline=None, max_examples=examples(200))
@given(metrics=any_week())
def test_slack_accepts_any_weeks_digest(metrics: Metrics, *, has_chart: bool) -> None:
    digest = digest_of(metrics, Metrics())

    message = message_of(digest, has_chart=has_chart)

    assert len(digest.days) == 7
    ensure_valid_message(message.blocks, message.text)
    assert message.blocks[0]["type"] == "header"
    # Nothing of a stranger is markup, nor in what screen readers read.
    rest = [one for one in message.blocks if one["type"] != "table"]
    assert CANARY not in json.dumps(rest)
    assert CANARY not in message.text
    if has_chart and any(count for _, count in digest.days):
        drawn = chart_of(message)
        assert tuple(drawn) == OUTCOMES
        assert {len(values) for values in drawn.values()} == {7}
        for n, (_, count) in enumerate(digest.days):
            assert sum(values[n] for values in drawn.values()) >= count


@pytest.mark.parametrize(
    ("limit_ms", "said"),
    [(3_000, "3 s"), (90_000, "90 s"), (300_000, "5 min")],
)
def test_a_limit_is_shown_in_a_fitting_unit(limit_ms: int, said: str) -> None:
    data = {"count": "1", "limit_ms": str(limit_ms), "since": "1"}
    name = EventName.METRICS_ALERT
    event = Event(name=name, tenant="acme", reason="waiting", data=data)

    assert f"Longer than {said}" in json.dumps(metrics_message(event).blocks)


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
        int(at.timestamp() * 1000) for at in DigestSettings(zone=zone).week_of(due)
    )
    return Metrics(Selection(since_ms=since, until_ms=until), zone)


def a_busy_week() -> Event:
    """Return the announcement of a digest with calls on every day."""
    metrics = week_before(datetime(2026, 11, 23, 9, tzinfo=ZoneInfo("Europe/London")))
    metrics.days |= {day: _counts(*row) for day, row in _WEEK.items()}
    metrics.tools |= {tool: _counts(*row) for tool, row in _TOOLS.items()}
    metrics.total = _counts(*map(sum, zip(*_TOOLS.values(), strict=True)))
    data = {DIGEST: digest_of(metrics, Metrics()).model_dump_json()}
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
