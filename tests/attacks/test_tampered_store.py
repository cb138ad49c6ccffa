"""Writing into Redis without our scripts runs no call and stops no other agent.

A decision without the bot's signature does not run, see
`tests/service/test_claim_policy.py`. These tests check that an action and its hash
cannot be separated, and that a corrupt record affects only itself.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from tests import stored_records
from tests.attacks.attacker import click_payload, deliver, value_of
from tests.attacks.test_wrong_people import click_on, member
from tests.bot.bot_stack import Stack
from tests.bot.tampering import expire
from tests.conftest import eventually
from tests.streams import audit_entries


def other_action(approval: Approval) -> str:
    """Return the same action with another amount, canonical as ours."""
    document = json.loads(approval.items[0].action)
    document["args"]["amount"] = 1_000_000
    return digest.canonical(document).decode()


async def another_action(stack: Stack, approval: Approval) -> None:
    conn, action = stack.store.conn, other_action(approval)
    await stored_records.put_detail(conn, stack.keys, approval.id, action=action)


async def test_a_claim_with_the_index_of_a_sibling_is_refused(stack: Stack) -> None:
    one, two = await stack.submit(
        ("process_refund", {"amount": 1, "order_id": "1"}),
        ("process_refund", {"amount": 2, "order_id": "1"}),
    )
    click = await click_on(stack, one)
    await stack.reviews.decide(click, Approve(), member("U0ANA"))
    claim = await claim_of(stack, two)

    replies = [
        await stack.agents.claim(claim),
        await stack.agents.claim(claim.with_(item_id=one.item_id)),
        await stack.agents.claim(claim.with_(item_id=one.item_id[:-1] + "7")),
    ]

    assert {reply.kind for reply in replies} == {"refused"}


@pytest.mark.parametrize("junk", ["{broken", "null", "[]", '{"action": 1}', "{}"])
async def test_an_unreadable_record_is_answered(stack: Stack, junk: str) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        approval = await stack.approval(verdict)
        value = value_of(stack, approval, Action.APPROVE)
        document = stack.keys.document(approval.id)
        await stack.store.conn.command("SET", document, junk)

        status, _ = await deliver(
            stack, click_payload(card["ts"], Action.APPROVE, value)
        )

        state = await stack.store.conn.command(
            "HGET", stack.keys.head(approval.id), "0:s"
        )
        assert (status, state) == (200, b"pending")


async def test_other_records_expire_beside_an_unreadable_one(stack: Stack) -> None:
    broken, sound = await stack.refund(), await stack.refund(thread="t2")
    for verdict in (broken, sound):
        await expire(stack, await stack.approval(verdict))
    first = (await stack.approval(broken)).id
    conn, keys = stack.store.conn, stack.keys
    await stored_records.put_detail(conn, keys, first, tier="{broken")
    await conn.command("ZADD", keys.expiry, 0, keys.listed(first))

    # The clock goes on after a failure, as `resume.transient_retry.repeat` does.
    for _ in range(3):
        await asyncio.gather(stack.sweeper.sweep(), return_exceptions=True)

    assert (await stack.item(sound)).state is ItemState.EXPIRED
    events = await audit_entries(stack.store.conn, stack.keys)
    quarantined = [one for one in events if one.name is EventName.RECORD_QUARANTINED]
    assert [one.approval for one in quarantined] == [first]
    assert await stack.store.conn.command("ZCARD", stack.keys.expiry) == 0
    state = await stack.store.conn.command("HGET", stack.keys.head(first), "0:s")
    assert state == b"withdrawn"
    # Both threads are resumed: one with the expiry, one with "unknown".
    assert await stack.store.queue(stack.keys).depth() == 2


async def test_what_is_quarantined_is_said_under_its_card(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        approval = await stack.approval(verdict)
        await another_action(stack, approval)
        await expire(stack, approval)

        await stack.sweeper.sweep()

        async def is_said() -> bool:
            notes = str(await stack.notes(card))
            return "is corrupt, so none of its calls can be decided" in notes

        await eventually(is_said)


async def test_an_unreadable_event_stops_no_card(stack: Stack) -> None:
    """A newer replica, or a hand, wrote it; every later card waits behind it."""
    unknown = json.dumps({"name": "item.teleported", "tenant": "default"})
    async with stack.running():
        await stack.store.conn.command(
            "XADD", stack.keys.outbox, "*", "e", unknown, "at", "1"
        )

        verdict = await stack.refund()

        await stack.card(verdict)


async def claim_of(stack: Stack, verdict: Verdict) -> ClaimRequest:
    """Return the claim that the executor of this call would make."""
    approval = await stack.approval(verdict)
    ctx = approval.items[int(verdict.item_id.rpartition(".")[2])].ctx
    ref = TurnRef(
        agent=ctx.agent, thread=ctx.thread, ns=ctx.ns, message_id=ctx.message_id
    )
    return ClaimRequest(
        item_id=verdict.item_id,
        ref=ref,
        tool=verdict.tool,
        tool_call_id=ctx.tool_call_id,
        owner="0" * 32,
    )
