"""Several calls share a card; a call in doubt is reconciled by a person who looked."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from keyturn.sandbox.json_types import as_objects
from tests.bot.bot_stack import (
    CHANNEL,
    REFUND,
    Stack,
    has_button,
)

MAIL: JsonObject = {"to": "a@example.com", "body": "hello"}


async def test_an_escalated_call_has_a_card_of_its_own(live: Stack) -> None:
    wire, mail, other_wire, refund = await live.submit(
        ("wire_money", {"n": 1}),
        ("send_email", MAIL),
        ("wire_money", {"n": 2}),
        ("process_refund", REFUND),
    )
    shared = await live.card(mail)

    await live.actor("U0ANA").click(CHANNEL, str(shared["ts"]), Action.APPROVE_ALL)

    states = [item.state for item in (await live.approval(refund)).items]
    assert states == [ItemState.AUTHORIZED] * 2
    for verdict in (wire, other_wire):
        await live.card(verdict, lambda m: not has_button(m, Action.APPROVE_ALL))
        (item,) = (await live.approval(verdict)).items
        assert (item.is_pending, item.votes) == (True, ())


async def test_one_call_of_a_batch_is_decided_alone(live: Stack) -> None:
    _, second = await live.submit(("process_refund", REFUND), ("send_email", MAIL))
    card = await live.card(second)
    approval = await live.approval(second)
    block = row_of(card, f"{approval.id}:1:1:")

    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE, block)

    states = [item.state for item in (await live.approval(second)).items]
    assert states == [ItemState.PENDING, ItemState.AUTHORIZED]


async def test_a_call_found_not_to_have_run_runs_again(stack: Stack) -> None:
    action = Action.RECONCILE_RERUN
    async with stack.running():
        verdict = await stack.refund()
        ts = str((await stack.card(verdict))["ts"])
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await worker_dies(stack, verdict)
        await stack.card(verdict, lambda m: has_button(m, action))

        await stack.actor("U0ANA").click(CHANNEL, ts, action)

        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
        await stack.card(verdict, lambda m: not has_button(m, action))


async def worker_dies(stack: Stack, verdict: Verdict) -> None:
    """Claim a call, and move the clock past the claim's lease."""
    approval_id, index = approval_of(verdict.item_id)
    ctx = (await stack.approval(verdict)).items[index].ctx
    ref = TurnRef(agent=ctx.agent, thread=ctx.thread, message_id=ctx.message_id)
    claim = await stack.agents.claim(
        ClaimRequest(
            item_id=verdict.item_id,
            ref=ref,
            tool=verdict.tool,
            tool_call_id=ctx.tool_call_id,
            owner="0" * 32,
        )
    )
    assert claim.kind == "new"
    await stack.store.conn.transaction(
        ["HSET", stack.keys.head(approval_id), f"{index}:u", 1],
        ["ZADD", stack.keys.expiry, 1, stack.keys.listed(approval_id)],
    )
    await stack.sweeper.sweep()


def row_of(card: JsonObject, start: str) -> str:
    """Return the id of the row of buttons whose values begin like this."""
    rows = (one for one in as_objects(card["blocks"]) if one["type"] == "actions")
    return next(str(one["block_id"]) for one in rows if start in str(one))
