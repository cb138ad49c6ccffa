"""A channel gets the numbers of a week once, and hears when people are too slow."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from keyturn.bot.cards.metrics_messages import metrics_message
from keyturn.bot.delivery.metrics_reports import MetricsReports
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service_settings import (
    AlertSettings,
    DigestSettings,
    MetricsSettings,
)
from keyturn.gateway.store.scripts.fences import holding
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.validation import check_message
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.test_prometheus import ANA, click
from tests.streams import announced, audit_entries

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
    await stack.reviews.decide(await click(stack, verdict), Approve(), ANA)
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
    await stack.reviews.decide(await click(stack, verdict), Approve(), ANA)
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
        await stack.reviews.decide(await click(stack, verdict), decision, ANA)
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
