"""A card shows what its calls need now, after other calls have changed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keyturn.bot.delivery import publisher
from keyturn.bot.ids import Action
from keyturn.bot.limits import UPDATE
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, has_button, says
from tests.bot.tampering import expire
from tests.conftest import eventually

PLAIN = """  process_refund:
    tier: approve
"""
LIMITED = """  process_refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.refunds > 1000, because: over 1000 in a day}
      - {to: deny, when: windows.refunds > 1500, because: over 1500 in a day}
"""
WINDOWS = """
windows:
  refunds: {tools: [process_refund], by: args.order_id, sum: args.amount, within: 24h}
"""
TWO = says("Needs 2 approvals")


def needs_one(message: JsonObject) -> bool:
    """Return whether one person is enough according to a card."""
    return bool(says("Expires")(message)) and not says("2 people")(message)


@pytest.fixture(autouse=True)
def summed(stack: Stack) -> None:
    """Group refunds of one order."""
    assert PLAIN in POLICY
    stack.put_policy(of=POLICY.replace(PLAIN, LIMITED) + WINDOWS)


async def approve(stack: Stack, user: str, card: JsonObject) -> None:
    await stack.actor(user).click(CHANNEL, str(card["ts"]), Action.APPROVE)


async def rejected(stack: Stack, verdict: Verdict) -> None:
    assert await stack.decide(verdict, Reject(reason="no"), "U0BEN") == "decided"


async def expired(stack: Stack, verdict: Verdict) -> None:
    await expire(stack, await stack.approval(verdict))
    await stack.sweeper.sweep()


@pytest.mark.slow
async def test_a_later_call_raises_an_earlier_card(live: Stack) -> None:
    first = await live.refund(amount=700)
    assert needs_one(await live.card(first))

    await live.refund(thread="t2", amount=700)
    card = await live.card(first, TWO)

    assert says("Needs more now")(card)
    assert says("over 1000 in a day")(card)
    await approve(live, "U0ANA", card)
    await live.card(first, says("1 of 2 approvals"))
    await approve(live, "U0CHLOE", card)
    await live.card(first, lambda m: not has_button(m, Action.APPROVE))
    assert (await live.item(first)).state is ItemState.AUTHORIZED


@pytest.mark.slow
@pytest.mark.parametrize("ends", [rejected, expired])
async def test_the_card_falls_back_when_the_later_call_is_over(
    live: Stack, ends: Callable[[Stack, Verdict], Awaitable[None]]
) -> None:
    first = await live.refund(amount=700)
    second = await live.refund(thread="t2", amount=700)
    await live.card(first, TWO)

    await ends(live, second)
    card = await live.card(first, needs_one)

    assert not says("Needs 2 people")(card)


@pytest.mark.slow
async def test_a_returning_bot_finds_cards_to_redraw(stack: Stack) -> None:
    async with stack.running():
        first = await stack.refund(amount=700)
        await stack.card(first)
        await stack.nothing_is_left()
    await stack.refund(thread="t2", amount=700)
    # The event was acknowledged by a bot that died before it redrew the first card.
    outbox = stack.store.outbox(stack.keys, reader="slack:default")
    left = await outbox.take("publisher", block_ms=1)
    assert left
    await outbox.done(*(event.seq for event in left))

    async with stack.running():
        await stack.card(first, TWO)


REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
FROZEN = says("approve after the freeze ends")


@pytest.mark.slow
async def test_a_freeze_redraws_the_cards_that_are_due_soonest_and_no_flood(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MOST_REDRAWN", 2)
    checks, check = list[list[str]](), publisher.outdated_cards

    async def recorded(*args: Any) -> list[str]:
        checks.append(await check(*args))
        return checks[-1]

    monkeypatch.setattr(publisher, "outdated_cards", recorded)
    async with stack.running():
        refunds = [
            await stack.refund(thread=f"t{n}", amount=n + 1, order_id=f"o{n}")
            for n in range(4)
        ]
        for one in refunds:
            await stack.card(one)

        await stack.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")
        for one in refunds[:2]:
            assert has_button(await stack.card(one, FROZEN), Action.REJECT)
        # The event of another call causes another check.
        count = len(checks)
        await stack.card(await stack.refund(thread="t4", order_id="o4"), FROZEN)
        await eventually(lambda: len(checks) > count)
        await stack.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")
        for one in refunds:
            await stack.card(one, lambda card: not FROZEN(card))

        await stack.nothing_is_left()
        assert len(stack.calls(UPDATE)) == 4


@pytest.mark.slow
async def test_a_new_policy_redraws_all_cards_however_many_there_are(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MOST_REDRAWN", 1)
    async with stack.running():
        refunds = [
            await stack.refund(thread=f"t{n}", order_id=f"o{n}") for n in range(3)
        ]
        for one in refunds:
            assert needs_one(await stack.card(one))

        # Two of the same people: nobody else has to be asked.
        escalated = POLICY.replace(PLAIN, PLAIN.replace("approve", "escalate"))
        escalated = escalated.replace("{needs: with_senior}", "{needs: support}")
        stack.put_policy(of=escalated)
        # An event is soon followed by a look at all cards.
        await stack.refund(thread="t9", order_id="o9")
        for one in refunds:
            await stack.card(one, TWO)
