"""The card shows whether a caller waits for a call, and callers do not share one."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.bot.cards.approval import card
from keyturn.connect.gate import HttpGate
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.http_api import Attendance
from tests.api.api_stack import serving
from tests.bot.samples import NOW, frame
from tests.service.harness import ServiceHarness, claim_of

GONE = "The client has stopped waiting. It can return until "


async def attends(
    people: ServiceHarness, item_id: str, wait_s: float, *, joins: bool = False
) -> bool:
    """Report a caller, and let all timers that are due fire."""
    asked = Attendance(item_id=item_id, wait_s=wait_s, joins=joins)
    found = await people.agents.attend(asked)
    await people.sweeper.sweep()
    return found.has_call


def text_of(approval: Approval) -> str:
    now_ms = approval.created_at_ms or NOW
    return str(card(frame(approval, now_ms=now_ms)).blocks)


async def test_a_card_shows_that_its_caller_has_gone(harness: ServiceHarness) -> None:
    _, [verdict] = await harness.submit(("process_refund", {"amount": 5}))
    item_id = verdict.item_id
    for wait_s, is_gone in ((60, False), (0, True), (60, False), (0, True)):
        assert await attends(harness, item_id, wait_s)
        shown = text_of(await harness.approval(item_id))
        assert (GONE in shown) is is_gone
    # An approved call runs only when the caller returns, so its card shows the same.
    await harness.decide(verdict, Approve())
    assert GONE in text_of(await harness.approval(item_id))
    assert await attends(harness, item_id, 60)
    assert GONE not in text_of(await harness.approval(item_id))
    names = EventName.APPROVAL_CALLER_GONE, EventName.APPROVAL_CALLER_BACK
    assert [one.name for one in await harness.announced(*names)] == [*names, *names]


async def test_a_started_or_ended_call_misses_nobody(harness: ServiceHarness) -> None:
    ref, [verdict] = await harness.submit(("process_refund", {"amount": 5}))
    assert await attends(harness, verdict.item_id, 60)
    await harness.decide(verdict, Approve())
    await harness.granted(claim_of(ref, verdict))
    assert not await attends(harness, verdict.item_id, 0)
    _, [other] = await harness.submit(("process_refund", {"amount": 6}))
    assert await attends(harness, other.item_id, 0)
    await harness.decide(other, Reject())
    assert GONE not in text_of(await harness.approval(other.item_id))
    assert not await attends(harness, "ap_unknown.0", 0)


async def test_one_caller_joins_at_a_time(harness: ServiceHarness) -> None:
    _, [verdict] = await harness.submit(("process_refund", {"amount": 5}))
    item_id = verdict.item_id
    assert not await attends(harness, item_id, 60, joins=True)
    assert await attends(harness, item_id, 60)
    assert not await attends(harness, item_id, 60, joins=True)
    # Also before the timer has fired.
    await harness.agents.attend(Attendance(item_id=item_id, wait_s=0))
    joining = (attends(harness, item_id, 60, joins=True) for _ in range(5))
    assert sorted(await asyncio.gather(*joining)) == [False] * 4 + [True]


async def test_a_key_reports_its_own_agents_only(harness: ServiceHarness) -> None:
    _, [verdict] = await harness.submit(("process_refund", {"amount": 5}))
    asked = Attendance(item_id=verdict.item_id, wait_s=60)
    async with serving(harness) as stack:
        mine = HttpGate(stack.url, stack.key())
        theirs = HttpGate(stack.url, stack.key(agents=["billing"]))
        assert (await mine.attend(asked)).has_call
        with pytest.raises(NotAllowed, match="no such call"):
            await theirs.attend(asked)
        await mine.aclose()
        await theirs.aclose()
