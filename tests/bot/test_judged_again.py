"""A card says what its calls need by now, whatever other calls did since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.bot.bot_house import CHANNEL, POLICY, TEAM, House, has_button, says
from tests.bot.tampering import expire
from tests.bot.test_publisher import UPDATE, calls, nothing_is_left
from tests.conftest import eventually
from twokey.bot import app
from twokey.bot.ids import Action
from twokey.bot.web import Slack
from twokey.gateway.approvals.decisions import Click, Reject, Reviewer, Standing
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox.json_types import JsonObject

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
TWO = says("Approval needed from 2 people")
BEN = Reviewer(
    team=TEAM,
    user="U0BEN",
    standing=Standing.MEMBER,
    usergroups=frozenset({"S0SUPPORT"}),
)


def needs_one(message: JsonObject) -> bool:
    """Say whether one person is enough by what a card says."""
    return bool(says("Approval needed")(message)) and not says("2 people")(message)


@pytest.fixture(autouse=True)
def summed(house: House) -> None:
    """Let refunds of one order be summed up."""
    assert PLAIN in POLICY
    house.policy = load_policy(POLICY.replace(PLAIN, LIMITED) + WINDOWS, "policy.yml")


async def approve(house: House, user: str, card: JsonObject) -> None:
    await house.actor(user).click(CHANNEL, str(card["ts"]), Action.APPROVE)


async def state(house: House, verdict: Verdict) -> ItemState:
    return (await house.approval(verdict)).items[0].state


async def rejected(house: House, verdict: Verdict) -> None:
    approval = await house.approval(verdict)
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.items[0].action_hash,
    )
    outcome = await house.reviews.decide(click, Reject(reason="no"), BEN)
    assert outcome.kind == "settled"


async def expired(house: House, verdict: Verdict) -> None:
    await expire(house, await house.approval(verdict))
    await house.sweeper.sweep()


async def withdrawn(house: House, verdict: Verdict) -> None:
    await house.agents.withdraw(frozenset({verdict.item_id}))


async def superseded(house: House, verdict: Verdict) -> None:
    assert await house.submit(("look_up_order", {}), thread="t2")
    assert not (await house.approval(verdict)).items[0].is_pending


async def test_a_later_call_raises_an_earlier_card_before_any_click(
    house: House,
) -> None:
    async with house.running():
        first = await house.refund(amount=700)
        assert needs_one(await house.card(first))

        await house.refund(thread="t2", amount=700)
        card = await house.card(first, TWO)

        assert says("Needs 2 people now")(card)
        assert says("over 1000 in a day")(card)
        await approve(house, "U0ANA", card)
        await house.card(first, says("1 of 2 approvals"))
        assert await state(house, first) is ItemState.PENDING
        await approve(house, "U0CHLOE", card)
        await house.card(first, lambda m: not has_button(m, Action.APPROVE))
        assert await state(house, first) is ItemState.AUTHORIZED


@pytest.mark.parametrize("ends", [rejected, expired, withdrawn, superseded])
async def test_the_card_falls_back_when_the_later_call_is_over(
    house: House, ends: Callable[[House, Verdict], Awaitable[None]]
) -> None:
    async with house.running():
        first = await house.refund(amount=700)
        second = await house.refund(thread="t2", amount=700)
        await house.card(first, TWO)

        await ends(house, second)
        card = await house.card(first, needs_one)

        assert not says("Needs 2 people")(card)
        await approve(house, "U0ANA", card)
        await house.card(first, lambda m: not has_button(m, Action.APPROVE))
        assert await state(house, first) is ItemState.AUTHORIZED


async def test_who_approved_while_two_were_needed_settles_it_when_one_is_enough(
    house: House,
) -> None:
    async with house.running():
        first = await house.refund(amount=700)
        second = await house.refund(thread="t2", amount=700)
        await approve(house, "U0ANA", await house.card(first, TWO))
        await house.card(first, says("1 of 2 approvals"))

        await rejected(house, second)
        card = await house.card(first, says("Nobody else is needed now"))

        assert await state(house, first) is ItemState.PENDING
        await approve(house, "U0ANA", card)
        await house.card(first, lambda m: not has_button(m, Action.APPROVE))
        assert await state(house, first) is ItemState.AUTHORIZED


async def test_a_card_says_when_the_policy_allows_its_call_no_longer(
    house: House,
) -> None:
    async with house.running():
        first = await house.refund(amount=800)
        second = await house.refund(thread="t2", amount=600)
        await house.card(first, TWO)
        house.policy = load_policy(
            POLICY.replace(PLAIN, LIMITED.replace("1500", "1300")) + WINDOWS, "p.yml"
        )
        await house.refund(thread="t3", order_id="elsewhere-1", amount=1)

        card = await house.card(first, says("no longer allows this"))
        await approve(house, "U0ANA", card)

        await house.told("U0ANA", "no longer allows")
        await rejected(house, second)
        await house.card(first, needs_one)


async def test_calls_that_change_nothing_redraw_nothing(house: House) -> None:
    async with house.running():
        first = await house.refund(amount=300)
        await house.card(first)
        await house.refund(thread="t2", amount=300)
        await house.refund(thread="t3", amount=900, order_id="elsewhere-1")
        third = await house.refund(thread="t4", amount=700)
        # Its redraw proves that everything before was looked at.
        await house.card(first, TWO)
        await rejected(house, third)
        await house.card(first, needs_one)
        await nothing_is_left(house)

    updated = [str(one["blocks"]) for one in calls(house, UPDATE)]
    approval_id = (await house.approval(first)).id
    assert sum(approval_id in blocks for blocks in updated) == 2
    assert not [blocks for blocks in updated if "elsewhere-1" in blocks]


async def test_a_bot_that_was_away_finds_the_cards_that_are_judged_otherwise(
    house: House,
) -> None:
    async with house.running():
        first = await house.refund(amount=700)
        await house.card(first)
        await nothing_is_left(house)
    await house.refund(thread="t2", amount=700)
    # The event was acknowledged by a bot that died before it redrew the first card.
    outbox = house.store.outbox(house.keys, reader="slack:default")
    left = await outbox.take("publisher", block_ms=1)
    assert left
    await outbox.done(*(event.seq for event in left))

    async with house.running():
        await house.card(first, TWO)


async def test_a_click_counts_as_judged_now_whatever_its_card_shows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(app, "outdated", nothing)
    async with house.running():
        first = await house.refund(amount=700)
        card = await house.card(first)
        await house.refund(thread="t2", amount=700)

        await approve(house, "U0ANA", card)

        await house.card(first, says("1 of 2 approvals"))
        assert await state(house, first) is ItemState.PENDING


async def test_a_card_that_is_gone_is_redrawn_once_for_each_judgement(
    house: House,
) -> None:
    async with house.running(), aiohttp.ClientSession() as session:
        first = await house.refund(amount=700)
        card = await house.card(first)
        token, url = house.sandbox.bot_token, house.sandbox.api_url
        slack = Slack(token, api_url=url, session=session)
        await slack.call("chat.delete", channel=CHANNEL, ts=str(card["ts"]))
        await house.refund(thread="t2", amount=700)

        async def is_refused() -> bool:
            return bool(calls(house, UPDATE, ok=False))

        await eventually(is_refused)
        for n in range(2):
            # A redraw of another order's card: everything was looked at once more.
            one = await house.refund(thread=f"u{n}", order_id=f"o{n}", amount=700)
            await house.refund(thread=f"v{n}", order_id=f"o{n}", amount=700)
            await house.card(one, TWO)
        await nothing_is_left(house)

    assert len(calls(house, UPDATE, ok=False)) == 1
