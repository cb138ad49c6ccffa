"""Schemas that records share: stored once, kept while one is open, never guessed."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, EVE, ServiceHarness
from tests.stored_records import pinned
from twokey.gateway.approvals.decisions import Approve, Click, Forbidden, Reject
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.store import codec
from twokey.gateway.store.approvals import ApprovalStore
from twokey.gateway.store.connection import fields, number, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

NO_END = -1
SCHEMA: JsonObject = {
    "type": "object",
    # Numbers that canonical JSON refuses, in an order that is not theirs.
    "properties": {"z": {"type": "string"}, "amount": {"maximum": 2**63}},
}


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


def keys_of(harness: ServiceHarness) -> Keys:
    return harness.store.keys_of_tenant("default")


def turn_in(thread: str) -> Turn:
    """Return a refund, with the schema that its agent declares."""
    call = ProposedCall(tool="process_refund", args={"amount": 5}, tool_call_id="c1")
    ref = TurnRef(agent="support", thread=thread, message_id="m1")
    return Turn(ref=ref, calls=(call,), schemas={"process_refund": SCHEMA})


async def refund(harness: ServiceHarness, thread: str) -> Click:
    [verdict] = await harness.agents.submit(turn_in(thread))
    return await harness.click(verdict)


async def schema_key(harness: ServiceHarness, click: Click) -> str:
    head = await harness.store.conn.command(
        "HGETALL", keys_of(harness).head(click.approval)
    )
    [shared] = codec.digests(fields(head))
    return keys_of(harness).schema(shared)


async def life(harness: ServiceHarness, key: str) -> int:
    return number(await harness.store.conn.command("PTTL", key))


async def ends_at(harness: ServiceHarness, key: str) -> int:
    return number(await harness.store.conn.command("PEXPIRETIME", key))


def forget(harness: ServiceHarness) -> None:
    """Let this process know nothing any more, as one that has just started."""
    store = harness.store
    lease_ms = store.approvals.lease_ms
    store.approvals = ApprovalStore(store.members, store.security, lease_ms=lease_ms)


async def test_two_approvals_share_one_schema_until_the_last_has_ended(
    harness: ServiceHarness,
) -> None:
    one = await refund(harness, "one")
    two = await refund(harness, "two")
    key = await schema_key(harness, one)
    assert key == await schema_key(harness, two)
    opened = await pinned(harness.store.conn, keys_of(harness), one.approval)
    assert opened["items"][0]["shared"] == 0
    assert "args_schema" not in opened["items"][0]

    await harness.reviews.decide(one, Reject(reason="No."), ANA)
    assert await life(harness, key) == NO_END
    await harness.reviews.decide(two, Reject(reason="No."), ANA)
    # Not earlier than the record that needs it.
    record = await ends_at(harness, keys_of(harness).head(two.approval))
    assert 0 < record <= await ends_at(harness, key)

    again = await refund(harness, "three")
    assert await schema_key(harness, again) == key
    assert await life(harness, key) == NO_END


async def test_a_turn_that_is_submitted_again_has_its_schemas(
    harness: ServiceHarness,
) -> None:
    turn = turn_in("one")
    first = await harness.agents.submit(turn)
    forget(harness)

    assert first[0].args_schema
    assert await harness.agents.submit(turn) == first


@pytest.mark.parametrize("damage", ["DEL", "HSET"])
async def test_without_its_schema_an_approval_is_refused_and_quarantined(
    harness: ServiceHarness, damage: str
) -> None:
    click = await refund(harness, "one")
    key = await schema_key(harness, click)
    words = [damage, key] if damage == "DEL" else [damage, key, "body", "{}"]
    await harness.store.conn.command(*words)
    forget(harness)

    with pytest.raises(CorruptRecord):
        await harness.reviews.decide(click, Approve(), ANA)
    await harness.overdue(click.approval)
    await harness.sweeper.sweep()

    head = keys_of(harness).head(click.approval)
    state = text(await harness.store.conn.command("HGET", head, "0:s"))
    assert state == ItemState.WITHDRAWN


async def test_the_next_approval_mends_a_damaged_schema(
    harness: ServiceHarness,
) -> None:
    click = await refund(harness, "one")
    key = await schema_key(harness, click)
    await harness.store.conn.command("HSET", key, "body", "{}")
    await refund(harness, "two")
    forget(harness)

    await harness.reviews.decide(click, Approve(), ANA)
    assert (await harness.item(f"{click.approval}.0")).state is ItemState.AUTHORIZED


async def test_nobody_is_let_in_by_another_text_of_what_is_shared(
    harness: ServiceHarness,
) -> None:
    """Whom a call needs stands in the part, so that has to be what its name says."""
    click = await refund(harness, "one")
    key = await schema_key(harness, click)
    body = text(await harness.store.conn.command("HGET", key, "body"))
    assert '"U0ANA"' in body
    forged = body.replace('"U0ANA"', '"U0EVE"')
    await harness.store.conn.command("HSET", key, "body", forged)
    forget(harness)

    with pytest.raises(CorruptRecord):
        await harness.reviews.decide(click, Approve(), EVE)

    await harness.store.conn.command("HSET", key, "body", body)
    outcome = await harness.reviews.decide(click, Approve(), EVE)
    assert isinstance(outcome, Forbidden)
