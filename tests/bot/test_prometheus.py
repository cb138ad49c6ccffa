"""Prometheus reads the counts of `keyturn stats`, under a closed set of labels."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from keyturn.bot.cards.metrics_messages import metrics_message
from keyturn.bot.delivery.metrics_reports import MetricsReports
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.instruments import DECISION_TO_RUN, SLACK_CALLS, answered
from keyturn.gateway.metrics.report import Counts, Metrics, Outcome
from keyturn.gateway.prometheus import exposition
from keyturn.gateway.service.report.audit_reading import OTHER
from keyturn.gateway.service_settings import (
    AlertSettings,
    DigestSettings,
    MetricsSettings,
)
from keyturn.gateway.store.events.outbox import Backlog
from keyturn.gateway.store.scripts.fences import holding
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.validation import check_message
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.strategies import CANARY
from tests.streams import announced, audit_entries

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs/grafana/keyturn.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
OUTCOME = r"outcome(?:=~|!~|!=|=)\"([\w|]+)\""
Samples = dict[tuple[str, frozenset[str]], float]


async def scraped(stack: Stack) -> str:
    assert stack.bot is not None
    url = stack.bot.url.replace("/slack/events", "/metrics")
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


def samples(text: str) -> Samples:
    return {
        (one.name, frozenset(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if not one.name.endswith("_created")
    }


def of(name: str, *labels: str) -> tuple[str, frozenset[str]]:
    """Return the position of a value."""
    return name, frozenset(labels)


async def test_what_happens_is_scraped(stack: Stack) -> None:
    await stack.refund("before")
    async with stack.running():
        approved, rejected = [await stack.refund(name) for name in ("t2", "t3")]
        await stack.decide(approved, Approve())
        refusal = Reject(reason="no")
        await stack.decide(rejected, refusal)

        found = samples(await scraped(stack))

    refund = {"process_refund", "approve"}
    assert found[of("keyturn_calls_total", *refund, "approved")] == 1
    assert found[of("keyturn_calls_total", *refund, "rejected")] == 1
    assert found[of("keyturn_wait_seconds_count", *refund)] == 2
    assert found[of("keyturn_wait_seconds_bucket", *refund, "+Inf")] == 2
    # What waited when the bot started still does.
    assert found[of("keyturn_waiting_calls", *refund)] == 1
    assert found[of("keyturn_waiting_oldest_seconds", *refund)] >= 0
    assert found[of("keyturn_stalled_runs", "parked")] == 0
    assert found[of("keyturn_outbox_events")] > 0
    assert found[of("keyturn_jobs_waiting")] == 2
    assert found[of("keyturn_slack_api_calls_total", "auth.test", "ok")] >= 1
    assert found[of("keyturn_outbox_held_up")] == 0
    assert samples(whole_text())[of("keyturn_outbox_held_up")] == 1


async def test_invented_names_and_arguments_are_no_labels(live: Stack) -> None:
    await live.submit((CANARY, {"key": CANARY}), thread="t1")
    (verdict,) = await live.submit((f"x{CANARY}", {"key": CANARY}), thread="t2")
    refusal = Reject(reason=CANARY)
    await live.decide(verdict, refusal)

    text = await scraped(live)

    assert CANARY not in text
    found = samples(text)
    assert found[of("keyturn_calls_total", OTHER, "approve", "rejected")] == 1
    assert found[of("keyturn_waiting_calls", OTHER, "approve")] == 1


def whole_text() -> str:
    """Return the exposition of something of each kind."""
    metrics = Metrics()
    counts = Counts(
        handed=Counter(taken=1),
        checks=Counter(right=1),
        seeded=Counter(shown=1),
        failed=3,
        failed_auto=2,
        unused_auto=1,
        too_soon=1,
        runs=3,
        unasked_runs=1,
    )
    counts.calls.update(Outcome)
    counts.waits.add(70_000)
    metrics.security["replayed"] = 1
    metrics.cells["process_refund", "approve"] = counts
    waiting = {("process_refund", "approve"): [9000]}
    SLACK_CALLS.labels("chat.postMessage", "ok").inc()
    answered("/v1/submit", 200, 0)
    DECISION_TO_RUN.observe(1)
    return exposition(metrics, waiting, (1, 2), Backlog(300_000, "away")).decode()


def labels_by_metric() -> dict[str, set[str]]:
    return {
        one.name: set(one.labels)
        for family in text_string_to_metric_families(whole_text())
        for one in family.samples
    }


def expressions() -> list[str]:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


ALERTS = yaml.safe_load((ROOT / "docs/grafana/alerts.yml").read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_prometheus_can_load_each_rule(rule: dict[str, Any]) -> None:
    told = rule["annotations"]["summary"]
    labels = re.findall(r"{{ \$labels\.(\w+) }}", told)
    grouped = ",".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))

    assert rule.keys() <= {"alert", "expr", "for", "annotations"}
    assert re.fullmatch(r"[A-Z]\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0m"))
    assert told.count("{{") == len(labels)
    assert set(labels) <= {label.strip() for label in grouped.split(",")}


@pytest.mark.parametrize(
    "expression", [*expressions(), *(rule["expr"] for rule in rules())]
)
def test_expressions_ask_for_metrics_and_labels_that_exist(expression: str) -> None:
    known = labels_by_metric()

    names = set(re.findall(r"\bkeyturn_\w+", expression))
    selected = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    outcomes = set(re.findall(r"\w+", " ".join(re.findall(OUTCOME, expression))))
    grouped = ",".join(re.findall(r"by \(([^)]*)\)", expression))
    labels = {*selected, *filter(None, map(str.strip, grouped.split(",")))}

    assert names
    assert names <= known.keys()
    assert labels <= {label for name in names for label in known[name]}
    assert outcomes <= set(Outcome)
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(expressions())

    families = {
        name.removesuffix("_bucket")
        for name in labels_by_metric()
        if not name.endswith(("_sum", "_count", "_created"))
    }

    assert [name for name in families if name not in shown] == []


def test_the_docs_name_every_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(keyturn_\w+)` \| ([^|]*)\|", PAGE, re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}

    known = {
        name.removesuffix("_bucket"): labels - {"le"}
        for name, labels in labels_by_metric().items()
        if not name.endswith(("_sum", "_count", "_created"))
    }

    assert told == known


MINUTE = timedelta(minutes=1)


def due_today(**more: Any) -> MetricsSettings:
    """Return settings of a digest that was due at the beginning of today, UTC."""
    today = f"{datetime.now(UTC):%a}".lower()  # noqa: TID251 - of the real clock, as the store's
    digest = DigestSettings.model_validate({"day": today, "at": "00:00"})
    return MetricsSettings(digest=digest, **more)


def reports(stack: Stack, settings: MetricsSettings) -> MetricsReports:
    return MetricsReports(
        stack.reviews, settings, tenant="default", reader="slack:default"
    )


async def look(stack: Stack, made: MetricsReports) -> None:
    """Look as the bot that publishes does, under its lease."""
    lease = stack.store.threads.lease(stack.keys, "", "slack:default")
    async with lease as held:
        with holding(held):
            await made.look()


async def told(stack: Stack, name: EventName) -> list[Event]:
    return [
        one for one in await announced(stack.store.conn, stack.keys) if one.name is name
    ]


async def yesterday(stack: Stack) -> None:
    """Make a decision one day old in the audit log."""
    verdict = await stack.refund("t1")
    await stack.decide(verdict, Approve())
    await stack.submit(("look_up_order", {"id": 7}), thread="t2")
    conn, audit = stack.store.conn, stack.keys.audit
    rows = await audit_entries(conn, stack.keys)
    await conn.command("DEL", audit)
    for event in rows:
        at_ms = event.at_ms - 86_400_000
        body = event.with_(at_ms=0, seq="").model_dump_json()
        entry = f"{at_ms}-*"
        await conn.command("XADD", audit, entry, "e", body, "at", at_ms)


async def test_the_week_s_numbers_are_posted_once(stack: Stack) -> None:
    await yesterday(stack)
    ana = stack.actor("U0ANA")
    message: dict[str, Any] = {}

    for _ in range(2):
        async with stack.running(metrics=due_today(channel=CHANNEL)):
            message = await ana.message_with(CHANNEL, says("The week's numbers"))
    shown = json.dumps(message, ensure_ascii=False)

    assert "1 of 2 calls ran without a person" in shown
    assert "process_refund" in shown
    assert "data_visualization" in shown
    assert "Auto-approved: 50 %, 1 of 2 calls ran without a person" in message["text"]
    assert len(await told(stack, EventName.METRICS_DIGEST)) == 1


def refuse_charts(monkeypatch: pytest.MonkeyPatch, *, all_of: bool = False) -> None:
    """Make the sandbox a workspace without the new block."""

    def checked(blocks: Any, text: str | None, **more: Any) -> None:
        kinds = {block["type"] for block in blocks or ()}
        if "data_visualization" in kinds or ("table" in kinds and all_of):
            raise ApiError("invalid_blocks")
        check_message(blocks, text, **more)

    monkeypatch.setattr("keyturn.sandbox.messages.check_message", checked)


async def test_a_workspace_without_charts_gets_bars_of_text_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_charts(monkeypatch)
    await yesterday(stack)
    ana = stack.actor("U0ANA")

    async with stack.running(metrics=due_today(channel=CHANNEL)):
        shown = await ana.message_with(CHANNEL, says("The week's numbers"))
        await stack.bot_is_quiet()

    kinds = [block["type"] for block in shown["blocks"]]
    assert kinds == ["header", "context", "rich_text", "rich_text", "table"]
    assert "█" in json.dumps(shown["blocks"], ensure_ascii=False)
    posted = [one for one in await ana.messages(CHANNEL) if "numbers" in one["text"]]
    assert posted == [shown]
    said = [one for one in caplog.messages if "digest" in one or "dropped" in one]
    assert said == ["message.made_plain event=metrics.digest why=invalid_blocks"]


async def test_a_week_without_calls_is_not_posted(stack: Stack) -> None:
    await look(stack, reports(stack, due_today()))

    assert await told(stack, EventName.METRICS_DIGEST) == []


async def test_slow_reviews_are_reported_once_each_way(stack: Stack) -> None:
    verdict = await stack.refund()
    settings = MetricsSettings(alert=AlertSettings(waiting=5 * MINUTE), channel=CHANNEL)
    made = reports(stack, settings)
    await look(stack, made)
    assert await told(stack, EventName.METRICS_ALERT) == []
    head = stack.keys.head((await stack.approval(verdict)).id)
    await stack.store.conn.command("HINCRBY", head, "created", -360_000)

    await look(stack, made)
    await look(stack, reports(stack, settings))  # of the next process
    (over,) = await told(stack, EventName.METRICS_ALERT)
    await stack.decide(verdict, Approve())
    await look(stack, made)
    await look(stack, made)

    first, last = await told(stack, EventName.METRICS_ALERT)
    assert first == over
    assert "Longer than 5 min: 1, the first" in json.dumps(
        metrics_message(first).blocks
    )
    assert "No call waits for longer than" in metrics_message(last).text


@pytest.mark.parametrize(
    ("limit", "of", "is_told"),
    [
        (49, "", True),
        (50, "", False),
        (49, "process_refund", True),
        (49, "approve", True),
        (49, "send_email", False),
    ],
)
async def test_people_hear_once_a_day_that_they_correct_more(
    stack: Stack, limit: int, of: str, *, is_told: bool
) -> None:
    for thread, decision in (("t1", Approve()), ("t2", Reject(reason="no"))):
        verdict = await stack.refund(thread)
        await stack.decide(verdict, decision)
    by_name = {"corrected_of": {of: limit}} if of else {"corrected": limit}
    alert = AlertSettings.model_validate({"decisions": 2, **by_name})

    for _ in range(2):
        await look(stack, reports(stack, MetricsSettings(alert=alert)))

    found = await told(stack, EventName.METRICS_ALERT)
    assert len(found) == int(is_told)
    for event in found:
        words = json.dumps(metrics_message(event).blocks)
        assert "Of 2 decisions of the last 24 hours, 1 were an edit" in words
        assert of in words
