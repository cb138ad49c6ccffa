"""Several calls share a card; a call in doubt is settled by a person who looked."""

from __future__ import annotations

import pytest

from tests.bot.bot_house import (
    CHANNEL,
    POLICY,
    REFUND,
    TEAM,
    House,
    has_button,
    says,
)
from tests.bot.tampering import click_with
from twokey.bot.ids import Action, seal
from twokey.bot.membership import FRESH_S
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict

MAIL: JsonObject = {"to": "a@example.com", "body": "hello"}


async def test_approve_all_authorizes_every_call_that_waits(house: House) -> None:
    async with house.running():
        first, _ = await house.submit(("process_refund", REFUND), ("send_email", MAIL))
        card = await house.card(first)

        await house.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE_ALL)

        approval = await house.approval(first)
        assert [item.state for item in approval.items] == [ItemState.AUTHORIZED] * 2
        await house.card(first, lambda m: not has_button(m, Action.APPROVE_ALL))


async def test_an_escalated_call_has_a_card_of_its_own(house: House) -> None:
    async with house.running():
        wire, mail, other_wire, refund = await house.submit(
            ("wire_money", {"n": 1}),
            ("send_email", MAIL),
            ("wire_money", {"n": 2}),
            ("process_refund", REFUND),
        )
        shared = await house.card(mail)

        await house.actor("U0ANA").click(CHANNEL, str(shared["ts"]), Action.APPROVE_ALL)

        states = [item.state for item in (await house.approval(refund)).items]
        assert states == [ItemState.AUTHORIZED] * 2
        for verdict in (wire, other_wire):
            await house.card(verdict, lambda m: not has_button(m, Action.APPROVE_ALL))
            (item,) = (await house.approval(verdict)).items
            assert (item.is_pending, item.votes) == (True, ())


async def test_approve_all_never_covers_a_call_that_was_escalated_later(
    house: House,
) -> None:
    async with house.running():
        first, second = await house.submit(
            ("process_refund", REFUND), ("send_email", MAIL)
        )
        card = await house.card(first)
        approval = await house.approval(second)
        stricter = POLICY.replace("send_email: {tier: approve", "send_email: {tier: X")
        house.policy = load_policy(stricter.replace("X", "escalate"), "policy.yml")
        await house.actor("U0ANA").click(
            CHANNEL, str(card["ts"]), Action.APPROVE, f"{approval.id}:1.1:1.actions"
        )
        after = await house.card(
            second, lambda m: not has_button(m, Action.APPROVE_ALL)
        )
        value = seal(
            await house.approval(second),
            None,
            key=house.config.seal_key,
            team=TEAM,
            purpose=Action.APPROVE_ALL,
        )

        await click_with(house, after, Action.APPROVE_ALL, value, user="U0CHLOE")

        await house.told("U0CHLOE", "needs a decision of its own")
        items = (await house.approval(second)).items
        assert [len(item.votes) for item in items] == [0, 1]


async def test_who_may_not_approve_one_call_may_not_approve_all(house: House) -> None:
    async with house.running():
        first, _ = await house.submit(("process_refund", REFUND), ("send_email", MAIL))
        card = await house.card(first)

        await house.actor("U0DAN").click(CHANNEL, str(card["ts"]), Action.APPROVE_ALL)

        await house.told("U0DAN", "You asked for this one yourself")
        assert (await house.approval(first)).rev == 1


async def test_one_call_of_a_batch_is_decided_alone(house: House) -> None:
    async with house.running():
        _, second = await house.submit(("process_refund", REFUND), ("send_email", MAIL))
        card = await house.card(second)
        approval = await house.approval(second)
        block = f"{approval.id}:1.1:1.actions"

        await house.actor("U0ANA").click(
            CHANNEL, str(card["ts"]), Action.APPROVE, block
        )

        states = [item.state for item in (await house.approval(second)).items]
        assert states == [ItemState.PENDING, ItemState.AUTHORIZED]


async def test_two_of_two_people_authorize_an_escalated_call(house: House) -> None:
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {"n": 1}))
        ts = str((await house.card(verdict))["ts"])

        await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await house.told("U0ANA", "1 of 2")
        await house.card(verdict, says("1 of 2"))
        await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await house.told("U0ANA", "already counted")
        await house.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE)

        item = (await house.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED


async def test_who_left_a_group_counts_for_a_few_seconds_at_most(house: House) -> None:
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {"n": 1}))
        ts = str((await house.card(verdict))["ts"])
        await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        house.sandbox.control.set_group("S0SENIOR", [])
        house.sandbox.control.advance(2 * FRESH_S + 1)

        await house.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE)

        await house.told("U0CHLOE", "you are not on that list")
        assert (await house.approval(verdict)).items[0].is_pending


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (Action.RECONCILE_EXECUTED, ItemState.EXECUTED),
        (Action.RECONCILE_RERUN, ItemState.AUTHORIZED),
        (Action.RECONCILE_SKIP, ItemState.FAILED),
    ],
)
async def test_a_call_in_doubt_is_settled_by_what_a_person_found(
    house: House, action: Action, state: ItemState
) -> None:
    async with house.running():
        verdict = await house.refund()
        ts = str((await house.card(verdict))["ts"])
        await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await worker_dies(house, verdict)
        await house.card(verdict, lambda m: has_button(m, action))

        await house.actor("U0ANA").click(CHANNEL, ts, action)

        assert (await house.approval(verdict)).items[0].state is state
        await house.card(verdict, lambda m: not has_button(m, action))


async def worker_dies(house: House, verdict: Verdict) -> None:
    """Claim a call, and let the claim's lease have passed."""
    approval_id, index = approval_of(verdict.item_id)
    ctx = (await house.approval(verdict)).items[index].ctx
    ref = TurnRef(agent=ctx.agent, thread=ctx.thread, message_id=ctx.message_id)
    claim = await house.agents.claim(
        ClaimRequest(
            item_id=verdict.item_id,
            ref=ref,
            tool=verdict.tool,
            tool_call_id=ctx.tool_call_id,
            owner="worker-1",
        )
    )
    assert claim.kind == "new"
    await house.store.conn.together(
        ["HSET", house.keys.head(approval_id), f"{index}:u", 1],
        ["ZADD", house.keys.expiry, 1, approval_id],
    )
    await house.sweeper.sweep()
