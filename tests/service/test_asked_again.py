"""An approval of an escalated call that comes within seconds is asked for once more."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decided,
    Forbidden,
    Voted,
)
from keyturn.gateway.approvals.events import AFTER_MS, EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.gateway.store.store import Store
from tests.service.harness import (
    BEN,
    CHLOE,
    POLICY,
    ServiceHarness,
    still_members,
)
from tests.stored_records import document

LONG_AGO_MS = 3_000


def within(time: str) -> Policy:
    text = POLICY.replace("with_senior}", f"with_senior, ask_again_within: {time}}}")
    return load_policy(text, "p")


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, within("10m"))


async def wired(harness: ServiceHarness) -> Click:
    _, (verdict,) = await harness.submit(("wire_money", {"to": "x"}))
    return await harness.click(verdict)


async def later(harness: ServiceHarness, click: Click) -> None:
    """Move the clock: the record is some seconds old."""
    item = await harness.item(f"{click.approval}.0")
    noted = [one.with_(at_ms=one.at_ms - LONG_AGO_MS) for one in item.too_soon]
    keys = harness.keys
    head = keys.head(click.approval)
    text = json.dumps(await document(harness.store.conn, keys, click.approval))
    for old, new in zip(item.too_soon, noted, strict=True):
        text = text.replace(str(old.at_ms), str(new.at_ms))
    await harness.store.conn.transaction(
        ["SET", keys.document(click.approval), text],
        ["HINCRBY", head, "created", -LONG_AGO_MS],
    )


async def test_a_first_quick_approval_does_not_count(harness: ServiceHarness) -> None:
    click = await wired(harness)

    async def approved() -> list[str]:
        return [
            (
                await harness.reviews.decide(
                    click, Approve(), who, voters=still_members
                )
            ).kind
            for who in (BEN, CHLOE)
        ]

    first = await approved()
    votes = (await harness.item(f"{click.approval}.0")).votes
    # A double click is one click.
    again = await harness.reviews.decide(click, Approve(), BEN)
    await later(harness, click)
    second = await approved()

    assert (first, votes) == (["toosoon", "toosoon"], ())
    assert isinstance(again, Forbidden)
    assert "sooner than the policy accepts" in again.reason
    assert second == ["voted", "decided"]
    told, _ = await harness.audited(EventName.ITEM_ASKED_AGAIN)
    assert told.actor == "T0/U0BEN"
    assert 0 <= int(told.data[AFTER_MS]) < 600_000
    metrics = await StatisticsService(harness.store).metrics()
    assert metrics.tools["wire_money"].too_soon == 2


async def test_only_a_tier_with_the_key_asks_again(harness: ServiceHarness) -> None:
    refund, _ = await harness.refund(thread="refund")
    plain = ServiceHarness(harness.store)
    click = await wired(plain)

    assert isinstance(await harness.reviews.decide(refund, Approve(), BEN), Decided)
    assert isinstance(await plain.reviews.decide(click, Approve(), BEN), Voted)
