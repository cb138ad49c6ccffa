"""Questions to requesters are stored and audited, and delay no decision."""

from __future__ import annotations

import asyncio

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Approve, Forbidden, Stale, Unknown
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Inquiry
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.decide.reviews import ReviewService
from tests.service.harness import ANA, BEN, DAN, EVE, ServiceHarness

ROUNDS = 20
DAN_AGAIN = Person(team="T0", user="U0DAN")


async def audited(harness: ServiceHarness) -> list[Event]:
    return await harness.audited()


async def read(harness: ServiceHarness, approval_id: str) -> Approval:
    loaded = await harness.reviews.read(approval_id)
    assert loaded
    return loaded.approval


async def test_a_question_and_its_reply_are_read_back(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    service = harness.reviews

    await service.ask_requester(click.approval, None, ANA, "Was it broken?")
    await service.reply(click.approval, DAN_AGAIN, "Ja, völlig ☕", "17.1")

    said = (await read(harness, click.approval)).inquiries
    assert [(one.by.user, one.text, one.reply_ts) for one in said] == [
        ("U0ANA", "Was it broken?", ""),
        ("U0DAN", "Ja, völlig ☕", "17.1"),
    ]
    assert said[1].by.name == DAN.name
    entries = [one for one in await audited(harness) if one.reason]
    assert [(one.name, one.actor, one.reason) for one in entries] == [
        (EventName.APPROVAL_ASKED, "T0/U0ANA", "Was it broken?"),
        (EventName.APPROVAL_REPLIED, "T0/U0DAN", "Ja, völlig ☕"),
    ]


async def test_another_tenant_asks_and_learns_nothing(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    other = ReviewService(harness.store, lambda: harness.policy, tenant="other")

    asked = await other.ask_requester(click.approval, None, ANA, "Why?")
    replied = await other.reply(click.approval, DAN, "So", "17.1")
    unknown = await harness.reviews.ask_requester("ap_none", None, ANA, "Why?")

    assert [asked, replied, unknown] == [Unknown()] * 3
    assert (await read(harness, click.approval)).rev == 1


async def test_who_may_not_decide_asks_nothing(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()

    asked = await harness.reviews.ask_requester(click.approval, None, EVE, "Why?")

    assert isinstance(asked, Forbidden)
    assert (await read(harness, click.approval)).rev == 1


async def test_two_who_ask_while_a_third_decides_lose_nothing(
    harness: ServiceHarness,
) -> None:
    service = harness.reviews
    for n in range(ROUNDS):
        click, _ = await harness.refund(thread=f"t{n}")

        *asked, outcome = await asyncio.gather(
            service.ask_requester(click.approval, None, ANA, "Ana asks"),
            service.ask_requester(click.approval, None, BEN, "Ben asks"),
            harness.reviews.decide(click, Approve(), BEN),
        )

        assert outcome.kind == "decided"
        assert all(isinstance(one, Change | Stale) for one in asked)
        kept = (await read(harness, click.approval)).inquiries
        assert len(kept) == sum(isinstance(one, Change) for one in asked)
        entries = [one.name for one in await audited(harness)]
        assert entries.count(EventName.ITEM_AUTHORIZED) == n + 1


async def test_a_reply_that_comes_many_times_at_once_is_kept_once(
    harness: ServiceHarness,
) -> None:
    service = harness.reviews
    click, _ = await harness.refund()
    await service.ask_requester(click.approval, None, ANA, "Why?")

    found = await asyncio.gather(
        *(service.reply(click.approval, DAN, "So", "17.1") for _ in range(8)),
        service.reply(click.approval, DAN, "And", "17.2"),
    )

    said = (await read(harness, click.approval)).inquiries
    assert sorted(one.reply_ts for one in said) == ["", "17.1", "17.2"]
    assert sum(isinstance(one, Change) for one in found) == 2
    assert sum(isinstance(one, Inquiry) for one in found) == 7
    names = [one.name for one in await audited(harness)]
    assert names.count(EventName.APPROVAL_REPLIED) == 2
