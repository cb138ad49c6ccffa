"""The calls of an agent that floods people share one card, and notify nobody."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import BatchRule
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide import reviews
from keyturn.sandbox.json_types import as_objects
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack, has_button, says
from tests.bot.listeners.test_time import PATIENT_TEXT, has_note, ring
from tests.bot.tampering import click_with
from tests.bot.test_collected_cards import posted
from tests.conftest import eventually
from tests.levels import size

FLOOD = 3
CALLS = size(deep=98, short=20)
FLOODS = f"protect: {{flood_per_10m: {FLOOD}}}\n"
GROUP = "<!subteam^S0SUPPORT>"


@pytest.fixture
def stack(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    # Posted once all of them are there, and not after ten seconds.
    rule = BatchRule(within=timedelta(minutes=10), up_to=CALLS - FLOOD)
    monkeypatch.setattr(reviews, "_FLOOD", rule)
    stack.policy = load_policy(POLICY + FLOODS, "policy.yml")
    return stack


async def test_a_flood_is_one_card_and_one_message(stack: Stack) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")
        for n in range(FLOOD):
            await stack.refund(f"t{n}", amount=10 + n, order_id=f"{n}")
        before = await posted(stack, FLOOD)
        for n in range(FLOOD, CALLS):
            await stack.refund(f"t{n}", amount=10 + n, order_id=f"{n}")
        # The hostile one is a transfer, which two people approve on its own card.
        hostile = await stack.submit(("wire_money", {"n": 1}), thread="hostile")

        told = await ana.message_with(CHANNEL, says(f"{FLOOD + 1} in ten minutes"))
        alone = await stack.card(hostile[0])
        shared = await ana.message_with(CHANNEL, says(f"Approve all {CALLS - FLOOD}"))
        cards = await posted(stack, FLOOD + 2)

    assert all(GROUP in str(card["blocks"]) for card in before)
    assert re.search(r"Waiting calls:.*\d × process_refund", str(told["blocks"]))
    assert has_button(alone, Action.APPROVE)
    assert says("No notifications for now")(shared)
    assert GROUP not in str(shared["blocks"])
    assert len(cards) == FLOOD + 2


async def test_the_message_about_a_flood_freezes_the_agent(stack: Stack) -> None:
    async with stack.running():
        for n in range(FLOOD + 1):
            await stack.refund(f"t{n}", order_id=f"{n}")
        ana = stack.actor("U0ANA")
        told = await ana.message_with(
            CHANNEL, lambda m: has_button(m, Action.FREEZE_AGENT)
        )
        ts = str(told["ts"])

        await stack.actor("U0EVE").click(CHANNEL, ts, Action.FREEZE_AGENT)
        await stack.told("U0EVE", "Only support or senior")
        assert not await stack.reviews.freezes.frozen()
        (row,) = [one for one in as_objects(told["blocks"]) if one["type"] == "actions"]
        (button,) = as_objects(row["elements"])
        other = str(button["value"]).replace("support", "billing")
        await click_with(stack, told, Action.FREEZE_AGENT, other)
        await stack.told("U0ANA", "does not belong")
        assert not await stack.reviews.freezes.frozen()
        await ana.click(CHANNEL, ts, Action.FREEZE_AGENT)
        await stack.told("U0ANA", "The agent is frozen")

    (freeze,) = await stack.reviews.freezes.frozen()
    assert (str(freeze.scope), freeze.by) == ("agent support", f"{TEAM}/U0ANA")


async def test_a_reminder_of_a_flood_notifies_people(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.policy = load_policy(PATIENT_TEXT + FLOODS, "policy.yml")
    one_second = BatchRule(within=timedelta(seconds=1))
    monkeypatch.setattr(reviews, "_FLOOD", one_second)
    async with stack.running():
        verdicts = [
            await stack.refund(f"t{n}", order_id=f"{n}") for n in range(FLOOD + 1)
        ]
        card = await stack.card(verdicts[-1], says("No notifications for now"))
        await ring(stack, (await stack.approval(verdicts[-1])).id, TimerKind.REMIND)

        await eventually(lambda: has_note(stack, card, GROUP))
        await stack.card(
            verdicts[-1], lambda m: not says("No notifications for now")(m)
        )


async def test_after_its_reminder_a_flood_still_shares_its_card(stack: Stack) -> None:
    direct = "users: [U0DAN], notify: dm}"
    text = PATIENT_TEXT.replace("users: [U0DAN]}", direct)
    assert direct in text
    stack.policy = load_policy(text + FLOODS, "policy.yml")
    async with stack.running():
        ana, verdicts = stack.actor("U0ANA"), list[Verdict]()
        for n in range(CALLS):
            verdicts.append(await stack.refund(f"t{n}", amount=10 + n, order_id=f"{n}"))
        shared = await ana.message_with(CHANNEL, says(f"Approve all {CALLS - FLOOD}"))
        await ring(stack, (await stack.approval(verdicts[-1])).id, TimerKind.REMIND)

        await eventually(lambda: has_note(stack, shared, GROUP))
        await stack.bot_is_quiet()
        cards = await posted(stack)
        copies = [m for m in await ana.messages("D0ANA") if m.get("metadata")]

    assert len(cards) == FLOOD + 1
    assert len(copies) == FLOOD


async def test_people_who_had_enough_cards_are_not_notified(stack: Stack) -> None:
    policy = POLICY.replace("[S0SUPPORT], users: [U0DAN]", "[S0SUPPORT, S0SENIOR]")
    stack.policy = load_policy(policy + "attention: {per_person: 2}\n", "policy.yml")
    seniors, keys = "<!subteam^S0SENIOR>", stack.keys
    async with stack.running():
        first = await stack.refund("t1")
        one = await stack.card(first)
        # Another card at the same time notified the seniors only.
        at_ms = (await stack.approval(first)).created_at_ms
        await stack.store.cards.note_notified(keys, "ap_x", ["S0SENIOR"], at_ms)
        two = await stack.card(await stack.refund("t2"))
        three = await stack.card(await stack.refund("t3"), says("many requests lately"))
        transfer = await stack.submit(("wire_money", {"n": 1}), thread="t4")
        four = await stack.card(transfer[0])

    assert [GROUP in str(card) for card in (one, two, three, four)] == [
        True,
        True,
        False,
        True,
    ]
    assert [seniors in str(card) for card in (one, two, three)] == [True, False, False]
