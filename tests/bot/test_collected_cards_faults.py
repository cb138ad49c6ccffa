"""Collected cards stay correct when calls, policies and messages change."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, Stack, has_button
from tests.bot.listeners.test_time import PATIENT, ring
from tests.bot.tampering import expire
from tests.bot.test_collected_cards import (
    batched,
    cards,
    notes,
    posted,
    shown,
    states,
    three,
)
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually
from tests.stored_records import put_detail

OVER_100 = "raise: [{to: escalate, when: args.amount > 100, because: over 100}]"
OVER_1 = OVER_100.replace("100", "1")


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


async def have_cards(stack: Stack, verdicts: list[Verdict]) -> None:
    """Wait until each call is on a card."""

    async def is_so() -> bool:
        ids = [(await stack.approval(one)).id for one in verdicts]
        places = [await stack.store.cards.place(stack.keys, one) for one in ids]
        return None not in places

    await eventually(is_so)


async def test_cards_from_before_the_rule_stay_as_they_are(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(2)]
        old = [await stack.card(one) for one in verdicts]
        await nothing_is_left(stack)
        stack.policy = batched("within: 10m, up_to: 2")
        for verdict in verdicts:
            await ring(stack, (await stack.approval(verdict)).id, TimerKind.REMIND)
        for card in old:
            await notes(stack, str(card["ts"]), "Still waiting")

        await stack.actor("U0ANA").click(CHANNEL, str(old[0]["ts"]), Action.APPROVE)

        await stack.card(verdicts[0], lambda card: not has_button(card, Action.APPROVE))
        assert len(await cards(stack)) == 2


async def test_the_last_call_on_a_card_can_be_decided_there(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        stack.policy = batched("within: 10m, up_to: 3", OVER_100)
        await posted(stack, 3)

        card = await shown(stack, "Approve all 1")
        assert "1 × process_refund" in str(card["blocks"])
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        assert await states(stack, verdicts) == ["authorized", "pending", "pending"]


async def test_a_card_that_all_have_left_says_so(stack: Stack) -> None:
    async with stack.running():
        await three(stack)
        stack.policy = batched("within: 10m, up_to: 3", OVER_1)

        messages = stack.actor("U0ANA")
        await messages.message_with(
            CHANNEL, lambda one: "a card of its own now" in str(one["blocks"])
        )
        await eventually(lambda: have_own_cards(stack))
        assert not [c for c in await cards(stack) if has_button(c, Action.APPROVE_ALL)]


async def have_own_cards(stack: Stack) -> bool:
    found = await cards(stack)
    return sum(has_button(one, Action.APPROVE) for one in found) == 3


async def test_a_choice_of_calls_that_moved_up_is_not_taken_for_others(
    stack: Stack,
) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, ts, Action.CHOOSE)
        view = await ana.wait_for_view()
        boxes = [row for row in view["blocks"] if row["type"] == "input"]
        await ana.submit({str(boxes[0]["block_id"]): ["2"], "others": "leave"})
        await ana.wait_for_view(lambda one: "1 approve" in str(one))
        first = (await stack.approval(verdicts[0])).id
        await stack.store.collected_cards.leave(stack.keys, first)

        await ana.submit({})

        await ana.wait_for_view(lambda one: "nothing was recorded" in str(one))
        assert await states(stack, verdicts) == ["pending"] * 3


async def test_calls_that_all_expire_at_once_take_the_buttons_along(
    stack: Stack,
) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        for verdict in verdicts:
            await expire(stack, await stack.approval(verdict))

        # Late, and before a sweep.
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)
        await stack.sweeper.sweep()

        card = await shown(stack, "3 expired")
        assert not has_button(card, Action.APPROVE_ALL)
        assert await states(stack, verdicts) == ["expired"] * 3
        await nothing_is_left(stack)
        updates = [one for one in stack.sandbox.calls if one.method == "chat.update"]
        assert len(updates) <= 3


async def test_a_corrupt_record_does_not_keep_people_from_the_others(
    stack: Stack,
) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        broken = (await stack.approval(verdicts[1])).id
        conn, keys = stack.store.conn, stack.keys
        await put_detail(conn, keys, broken, tier="{")
        await conn.command("ZADD", keys.expiry, 1, keys.listed(broken))
        await stack.sweeper.sweep()

        await shown(stack, "Approve all 2")
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        await shown(stack, "2 approved")
        assert await states(stack, [verdicts[0], verdicts[2]]) == ["authorized"] * 2
