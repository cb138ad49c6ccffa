"""Slack notifies those whose word a card needs: at first, and whenever that changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
)
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, claim_of, says
from tests.conftest import eventually

PLAIN = """  process_refund:
    tier: approve
"""
RAISING = """  process_refund:
    tier: approve
    raise:
      - {to: escalate, when: args.amount > 900, because: over 900}
      - {to: escalate, when: windows.refunds > 2000, because: over 2000 in a day}
"""
WINDOWS = """
windows:
  refunds: {tools: [process_refund], by: args.order_id, sum: args.amount, within: 24h}
"""
LINE = "Your decision is needed too"


def raising(stack: Stack) -> Stack:
    assert PLAIN in POLICY
    stack.put_policy(of=POLICY.replace(PLAIN, RAISING) + WINDOWS)
    return stack


async def notified(stack: Stack, user: str, words: str = "") -> list[JsonObject]:
    """Return the messages with these words that Slack notified a person of."""
    messages = await stack.actor(user).messages(CHANNEL)
    return [one for one in messages if one["mentions_me"] and says(words)(one)]


def is_told(
    stack: Stack, user: str, words: str, *, times: int = 1
) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return len(await notified(stack, user, words)) >= times

    return is_so


async def test_a_new_card_notifies_those_who_may_decide_it(each_live: Stack) -> None:
    live = each_live
    verdict = await live.refund()
    card = await live.card(verdict)

    who = [u for u in ("U0ANA", "U0BEN", "U0CHLOE", "U0EVE") if await notified(live, u)]

    assert who == ["U0ANA", "U0BEN"]
    assert '*Reviewers:* <!subteam^S0SUPPORT>"' in str(card["blocks"]).replace("'", '"')
    (post,) = live.calls("chat.postMessage")
    assert "<" not in str(post["text"]), "the notification reads as a sentence"


async def test_an_edit_that_raises_notifies_new_reviewers(live: Stack) -> None:
    raising(live)
    verdict = await live.refund()
    await live.card(verdict)
    assert not await notified(live, "U0CHLOE")

    edit = Edit(args={"amount": 950, "order_id": "78291"})
    assert await live.decide(verdict, edit) == "voted"

    await eventually(is_told(live, "U0CHLOE", "Edited."))
    await live.nothing_is_left()
    assert len(await notified(live, "U0CHLOE")) == 1
    assert len(await notified(live, "U0BEN", "🔔 Your decision is needed.")) == 1


@pytest.mark.slow
async def test_a_person_needed_by_another_call_is_notified(stack: Stack) -> None:
    raising(stack)
    async with stack.running():
        first = await stack.refund()
        await stack.card(first)
        second = await stack.refund(thread="t2", amount=800)
        # A card that is posted only after the third call mentions people itself.
        await stack.card(second)
        assert not await notified(stack, "U0CHLOE")

        third = await stack.refund(thread="t3", amount=850)

        await eventually(is_told(stack, "U0CHLOE", LINE, times=2))
        await stack.agents.withdraw_items(frozenset({third.item_id}))
        await stack.card(first, lambda m: not says("Needs more now")(m))
        await stack.nothing_is_left()
    async with stack.running():
        await stack.refund(thread="t4", amount=850)
        await stack.card(first, says("Needs more now"))
        await stack.nothing_is_left()

    lines = await notified(stack, "U0CHLOE", LINE)
    assert len({line["thread_ts"] for line in lines}) == len(lines) == 2
    assert not await notified(stack, "U0BEN", LINE)


async def test_a_retracted_approval_notifies_again(live: Stack) -> None:
    verdict = await live.refund(amount=950)
    await live.card(verdict)
    assert await live.decide(verdict, Approve()) == "decided"
    raising(live)

    claim = await live.agents.claim(claim_of(await live.item(verdict)))
    assert claim.kind != "new"
    await eventually(is_told(live, "U0CHLOE", "was taken back"))
    assert await notified(live, "U0BEN", "was taken back")
