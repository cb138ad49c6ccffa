"""Slack notifies those whose word a card needs: at first, and whenever that changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.bot.bot_house import CHANNEL, POLICY, TEAM, House, says
from tests.bot.test_publisher import calls, nothing_is_left
from tests.conftest import eventually
from twokey.gateway.approvals.decisions import Approve, Click, Edit, Reviewer, Standing
from twokey.gateway.approvals.record import Approval
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from twokey.sandbox.json_types import JsonObject

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
LINE = "This needs your decision too by now"


def raising(house: House) -> House:
    assert PLAIN in POLICY
    house.policy = load_policy(POLICY.replace(PLAIN, RAISING) + WINDOWS, "policy.yml")
    return house


def ana() -> Reviewer:
    groups = frozenset({"S0SUPPORT"})
    return Reviewer(
        team=TEAM, user="U0ANA", standing=Standing.MEMBER, usergroups=groups
    )


def click_on(approval: Approval) -> Click:
    return Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.items[0].action_hash,
    )


async def notified(house: House, user: str, words: str = "") -> list[JsonObject]:
    """Return the messages with these words that Slack notified a person of."""
    messages = await house.actor(user).messages(CHANNEL)
    return [one for one in messages if one["mentions_me"] and says(words)(one)]


def asked_roles(
    house: House, verdict: Verdict
) -> Callable[[], Awaitable[frozenset[str]]]:
    async def roles() -> frozenset[str]:
        approval = await house.approval(verdict)
        place = await house.store.cards.place(house.keys, approval.id)
        assert place
        return place.asked

    return roles


def is_told(house: House, user: str, words: str) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return bool(await notified(house, user, words))

    return is_so


async def test_a_new_card_notifies_those_who_may_decide_it(each_house: House) -> None:
    house = each_house
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)

        who = [
            u
            for u in ("U0ANA", "U0BEN", "U0CHLOE", "U0EVE")
            if await notified(house, u)
        ]

    assert who == ["U0ANA", "U0BEN"]
    assert '*Reviewers:* <!subteam^S0SUPPORT>"' in str(card["blocks"]).replace("'", '"')
    (post,) = calls(house, "chat.postMessage")
    assert "<" not in str(post["text"]), "the notification reads as a sentence"


async def test_a_role_that_must_be_among_them_is_notified_from_the_start(
    house: House,
) -> None:
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {"iban": "DE02"}))
        await house.card(verdict)

        assert await notified(house, "U0CHLOE")
        assert await notified(house, "U0BEN")


async def test_an_edit_that_raises_a_call_notifies_those_who_decide_it_then(
    house: House,
) -> None:
    raising(house)
    async with house.running():
        verdict = await house.refund()
        await house.card(verdict)
        approval = await house.approval(verdict)
        assert not await notified(house, "U0CHLOE")

        edit = Edit(args={"amount": 950, "order_id": "78291"})
        outcome = await house.reviews.decide(click_on(approval), edit, ana())

        assert outcome.kind == "voted"
        await eventually(is_told(house, "U0CHLOE", "Edited by"))
        await nothing_is_left(house)
        assert len(await notified(house, "U0CHLOE")) == 1
        assert len(await notified(house, "U0BEN", "🔔 This needs your")) == 1


async def test_who_is_needed_because_of_another_call_is_notified_once(
    house: House,
) -> None:
    raising(house)
    async with house.running():
        first = await house.refund()
        await house.card(first)
        await house.refund(thread="t2", amount=800)
        assert not await notified(house, "U0CHLOE")

        third = await house.refund(thread="t3", amount=850)

        await eventually(is_told(house, "U0CHLOE", LINE))
        await house.agents.withdraw(frozenset({third.item_id}))
        await house.card(first, lambda m: not says("2 people")(m))
        await nothing_is_left(house)
    async with house.running():
        await house.refund(thread="t4", amount=850)
        await house.card(first, says("2 people"))
        await nothing_is_left(house)

    lines = await notified(house, "U0CHLOE", LINE)
    assert len({line["thread_ts"] for line in lines}) == len(lines) == 2
    assert not await notified(house, "U0BEN", LINE)


async def test_an_approval_that_is_taken_back_notifies_people_again(
    house: House,
) -> None:
    async with house.running():
        verdict = await house.refund(amount=950)
        await house.card(verdict)
        approval = await house.approval(verdict)
        done = await house.reviews.decide(click_on(approval), Approve(), ana())
        assert done.kind == "settled"
        raising(house)

        item = (await house.approval(verdict)).items[0]
        ctx = item.ctx
        claim = await house.agents.claim(
            ClaimRequest(
                item_id=item.id,
                ref=TurnRef(
                    agent=ctx.agent,
                    thread=ctx.thread,
                    ns=ctx.ns,
                    message_id=ctx.message_id,
                ),
                tool=item.tool,
                tool_call_id=ctx.tool_call_id,
                owner="worker-1",
            )
        )

        assert claim.kind != "new"
        await eventually(is_told(house, "U0CHLOE", "was taken back"))
        assert await notified(house, "U0BEN", "was taken back")


async def test_nobody_counts_as_mentioned_before_slack_took_the_message(
    house: House,
) -> None:
    raising(house)
    async with house.running():
        first = await house.refund()
        await house.card(first)
        await house.refund(thread="t2", amount=800)
        asked = asked_roles(house, first)
        fault = house.sandbox.control.fault
        fault("rate_limit", "chat.postMessage", calls=1000)

        await house.refund(thread="t3", amount=850)
        await house.card(first, says("2 people"))

        assert await asked() == {"support"}
        house.sandbox.control.clear_faults()
        await eventually(is_told(house, "U0CHLOE", LINE))
        await nothing_is_left(house)
        assert await asked() == {"support", "senior"}


async def test_a_policy_may_leave_people_in_peace(house: House) -> None:
    quiet = POLICY.replace(
        "support: {usergroups: [S0SUPPORT], users: [U0DAN]}",
        "support: {usergroups: [S0SUPPORT], users: [U0DAN], notify: none}",
    )
    house.policy = load_policy(quiet, "policy.yml")
    async with house.running():
        verdict = await house.refund()
        await house.card(verdict)
        await nothing_is_left(house)

        assert not await notified(house, "U0ANA")
        approval = await house.approval(verdict)
        done = await house.reviews.decide(click_on(approval), Approve(), ana())
        assert done.kind == "settled"
