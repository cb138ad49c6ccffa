"""Whoever writes into Redis past our scripts makes nothing run and stops nobody else.

Decisions and receipts are not signed yet, so a forged state or vote is believed; what
is held here already today is that an action and its hash cannot part, and that what
nobody can read harms itself alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.attacks.attacker import click_payload, deliver, value_of
from tests.attacks.test_wrong_people import click_on, member
from tests.bot.bot_house import House
from tests.bot.tampering import expire
from tests.conftest import eventually
from twokey.bot.ids import Action
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import UnreadableRecord
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from twokey.gateway.store.connection import text
from twokey.gateway.store.outbox import audit_entries

Tamper = Callable[[House, Approval], Awaitable[None]]


async def detail(house: House, approval: Approval) -> dict[str, Any]:
    found = await house.store.conn.command("HGET", house.keys.blobs(approval.id), "0:d")
    return cast("dict[str, Any]", json.loads(text(found)))


async def put_detail(house: House, approval: Approval, row: dict[str, Any]) -> None:
    blobs = house.keys.blobs(approval.id)
    await house.store.conn.command("HSET", blobs, "0:d", json.dumps(row))


def other_action(approval: Approval) -> str:
    """Return the same action with another amount, canonical as ours."""
    document = json.loads(approval.items[0].action)
    document["args"]["amount"] = 1_000_000
    return digest.canonical(document).decode()


async def another_action(house: House, approval: Approval) -> None:
    row = await detail(house, approval)
    await put_detail(house, approval, {**row, "action": other_action(approval)})


async def another_hash(house: House, approval: Approval) -> None:
    head = house.keys.head(approval.id)
    raw = digest.to_raw(digest.action_hash(other_action(approval)))
    await house.store.conn.command("HSET", head, "0:h", raw)


async def kept(house: House, approval: Approval) -> list[object]:
    """Return all that a refused click must leave as it was."""
    conn, keys = house.store.conn, house.keys
    head = await conn.command("HGETALL", keys.head(approval.id))
    blobs = await conn.command("HGETALL", keys.blobs(approval.id))
    audit = await conn.command("XLEN", keys.audit)
    return [head, blobs, audit, await house.store.queue(keys).depth()]


FROZEN: list[dict[str, Any]] = [
    {"tool": "send_email"},
    {"id": "ap_s0_" + "0" * 32 + ".0"},
    {"index": 1},
    {"its_id": "ap_s0_" + "0" * 32},
    {"its_thread": "t2"},
    {"its_tenant": "other"},
    {"its_agent": "ops"},
    {"its_message_id": "m9"},
    {"requested": "{}"},
    {"requested": "[]"},
    {"ctx": {}},
]
"""Changes of what never changes; ``its_`` marks the approval's own members."""


async def both(house: House, approval: Approval) -> None:
    await another_action(house, approval)
    await another_hash(house, approval)


@pytest.mark.parametrize("tamper", [another_action, another_hash, both])
async def test_what_was_changed_before_the_click_is_not_approved(
    house: House, tamper: Tamper
) -> None:
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        approval = await house.approval(verdict)
        value = value_of(house, approval, Action.APPROVE)
        await tamper(house, approval)
        before = await kept(house, approval)

        status, _ = await deliver(
            house, click_payload(card["ts"], Action.APPROVE, value)
        )

        assert (status, await kept(house, approval)) == (200, before)


@pytest.mark.parametrize("tamper", [another_action, another_hash])
async def test_what_was_changed_after_the_decision_is_not_handed_out(
    house: House, tamper: Tamper
) -> None:
    verdict = await house.refund()
    click = await click_on(house, verdict)
    await house.reviews.decide(click, Approve(), member("U0ANA"))
    claim = await claim_of(house, verdict)
    await tamper(house, await house.approval(verdict))

    reply = await house.agents.claim(claim)

    assert reply.kind == "refused"


@pytest.mark.parametrize("change", FROZEN)
async def test_a_record_that_names_another_call_than_its_action_is_not_shown(
    house: House, change: dict[str, Any]
) -> None:
    """The card shows the record's tool; the hash and the seal hold the action's."""
    verdict = await house.refund()
    approval = await house.approval(verdict)
    blobs = house.keys.blobs(approval.id)
    found = text(await house.store.conn.command("HGET", blobs, "frozen"))
    frozen = json.loads(found)
    item = {**frozen["items"][0], **change}
    more = {key: item.pop(key) for key in list(item) if key.startswith("its_")}
    for name, value in more.items():
        frozen[name.removeprefix("its_")] = value
    await house.store.conn.command(
        "HSET", blobs, "frozen", json.dumps({**frozen, "items": [item]})
    )

    with pytest.raises(UnreadableRecord):
        await house.approval(verdict)


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "send_email"},
        {"tool_call_id": "c1"},
        {"item_id": "ap_s0_" + "0" * 32 + ".0"},
        {"item_id": "junk"},
        {"item_id": ".0"},
        {"thread": "t2"},
        {"agent": "ops"},
        {"ns": "sub"},
        {"message_id": "m9"},
    ],
)
async def test_a_claim_for_anything_but_the_authorized_call_is_refused(
    house: House, change: dict[str, str]
) -> None:
    verdict = await house.refund()
    click = await click_on(house, verdict)
    await house.reviews.decide(click, Approve(), member("U0ANA"))
    claim = await claim_of(house, verdict)
    in_ref = {
        key: value for key, value in change.items() if key in TurnRef.model_fields
    }
    rest = {key: value for key, value in change.items() if key not in in_ref}

    reply = await house.agents.claim(claim.with_(ref=claim.ref.with_(**in_ref), **rest))

    assert reply.kind == "refused"
    assert (await house.approval(verdict)).items[0].state is ItemState.AUTHORIZED


async def test_a_claim_with_the_index_of_a_sibling_is_refused(house: House) -> None:
    one, two = await house.submit(
        ("process_refund", {"amount": 1, "order_id": "1"}),
        ("process_refund", {"amount": 2, "order_id": "1"}),
    )
    click = await click_on(house, one)
    await house.reviews.decide(click, Approve(), member("U0ANA"))
    claim = await claim_of(house, two)

    replies = [
        await house.agents.claim(claim),
        await house.agents.claim(claim.with_(item_id=one.item_id)),
        await house.agents.claim(claim.with_(item_id=one.item_id[:-1] + "7")),
    ]

    assert {reply.kind for reply in replies} == {"refused"}


@pytest.mark.parametrize("junk", ["{broken", "null", "[]", '{"action": 1}', "{}"])
async def test_a_record_that_nobody_can_read_is_answered_calmly(
    house: House, junk: str
) -> None:
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        approval = await house.approval(verdict)
        value = value_of(house, approval, Action.APPROVE)
        blobs = house.keys.blobs(approval.id)
        await house.store.conn.command("HSET", blobs, "0:d", junk)

        status, _ = await deliver(
            house, click_payload(card["ts"], Action.APPROVE, value)
        )

        state = await house.store.conn.command(
            "HGET", house.keys.head(approval.id), "0:s"
        )
        assert (status, state) == (200, b"pending")


async def test_a_record_that_nobody_can_read_does_not_keep_others_from_expiring(
    house: House,
) -> None:
    broken, sound = await house.refund(), await house.refund(thread="t2")
    for verdict in (broken, sound):
        await expire(house, await house.approval(verdict))
    first = (await house.approval(broken)).id
    await house.store.conn.together(
        ["ZADD", house.keys.expiry, 0, first],
        ["HSET", house.keys.blobs(first), "0:d", "{broken"],
    )

    # The clock goes on after a failure, as `resume.sweeping.repeat` does.
    for _ in range(3):
        await asyncio.gather(house.sweeper.sweep(), return_exceptions=True)

    assert (await house.approval(sound)).items[0].state is ItemState.EXPIRED
    events = await audit_entries(house.store.conn, house.keys)
    put_aside = [one for one in events if one.name is EventName.RECORD_UNREADABLE]
    assert [one.approval for one in put_aside] == [first]
    assert await house.store.conn.command("ZCARD", house.keys.expiry) == 0
    state = await house.store.conn.command("HGET", house.keys.head(first), "0:s")
    assert state == b"withdrawn"
    # Both threads are brought back: one is told of the expiry, one that it is unknown.
    assert await house.store.queue(house.keys).depth() == 2


async def test_what_is_put_aside_is_said_under_its_card(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        approval = await house.approval(verdict)
        await another_hash(house, approval)
        await expire(house, approval)

        await house.sweeper.sweep()

        async def is_said() -> bool:
            notes = str(await house.notes(card))
            return "cannot be read, so nothing of it is decided or run" in notes

        await eventually(is_said)


async def test_junk_among_the_deadlines_and_timers_is_dropped(house: House) -> None:
    sound = await house.refund()
    await expire(house, await house.approval(sound))
    conn, keys = house.store.conn, house.keys
    junk = [part for number in range(150) for part in (0, f"junk{number}")]
    await conn.together(
        ["ZADD", keys.expiry, *junk],
        ["ZADD", keys.timers, 0, "junk", 0, b"\xff remind", 0, "ap_x dance"],
    )

    for _ in range(3):
        await house.sweeper.sweep()

    assert (await house.approval(sound)).items[0].state is ItemState.EXPIRED
    assert await conn.command("ZCARD", keys.expiry) == 0
    assert await conn.command("ZCARD", keys.timers) == 0


async def test_an_event_that_this_version_cannot_read_does_not_stop_the_cards(
    house: House,
) -> None:
    """A newer replica, or a hand, wrote it; every later card waits behind it."""
    unknown = json.dumps({"name": "item.teleported", "tenant": "default"})
    async with house.running():
        await house.store.conn.command(
            "XADD", house.keys.outbox, "*", "e", unknown, "at", "1"
        )

        verdict = await house.refund()

        await house.card(verdict, timeout_s=3)


async def claim_of(house: House, verdict: Verdict) -> ClaimRequest:
    """Return the claim that the executor of this call would make."""
    approval = await house.approval(verdict)
    ctx = approval.items[int(verdict.item_id.rpartition(".")[2])].ctx
    ref = TurnRef(
        agent=ctx.agent, thread=ctx.thread, ns=ctx.ns, message_id=ctx.message_id
    )
    return ClaimRequest(
        item_id=verdict.item_id,
        ref=ref,
        tool=verdict.tool,
        tool_call_id=ctx.tool_call_id,
        owner="worker-1",
    )
