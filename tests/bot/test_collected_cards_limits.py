"""Collected cards keep Slack's limits, and people find them and are notified."""

from __future__ import annotations

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards import table
from keyturn.bot.delivery import card_publisher
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.timing import TimerKind
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.bot.listeners.test_time import ring
from tests.bot.test_collected_cards import batched, cards, notes, posted, states, three
from tests.bot.test_collected_cards_faults import have_cards
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


async def test_a_card_that_cannot_be_displayed_offers_to_reject_each_call(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Message:
        return Message(blocks=({"type": "nonsense"},), text="x")

    monkeypatch.setattr(card_publisher, "card", broken)
    async with stack.running():
        verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(3)]
        ana = stack.actor("U0ANA")
        card = await ana.message_with(CHANNEL, says("cannot be displayed"))

        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT, chosen="Call 2")
        await ana.submit({"reason": "No."})

        assert await states(stack, verdicts) == ["pending", "rejected", "pending"]


async def test_a_call_that_a_row_does_not_show_whole_has_its_own_card(
    stack: Stack,
) -> None:
    async with stack.running():
        long = await stack.refund("t9", amount=9, note="a word " * 24)
        own = await stack.card(long)
        assert has_button(own, Action.APPROVE)
        verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(3)]

        _, shared = await posted(stack, 2)
        assert "Approve all 3" in str(shared["blocks"])
        await have_cards(stack, verdicts)


async def test_the_same_call_twice_has_two_cards_that_name_the_other(
    stack: Stack,
) -> None:
    stack.policy = batched("within: 1s, up_to: 2")
    async with stack.running():
        same = [await stack.refund(f"t{n}", amount=9) for n in range(2)]

        for verdict in same:
            own = await stack.card(verdict, says("*The same call* waits on another"))
            assert has_button(own, Action.APPROVE)


async def test_a_card_holds_as_many_calls_as_it_shows_whole(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "TABLE_CHARS", 3_000)
    stack.policy = batched("within: 10m, up_to: 40")
    async with stack.running():
        for n in range(40):
            await stack.refund(f"t{n}", amount=n, note="n" * 55, order_id="7" * 55)

        # The others wait with those that come after them.
        (card,) = await posted(stack)
        assert "Approve all 20" in str(card["blocks"])


async def test_other_reviewers_for_all_calls_keep_the_card(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        stack.policy = batched("within: 10m, up_to: 3", "needs: senior")

        async def asks_others() -> bool:
            return "S0SENIOR" in str((await cards(stack))[0]["blocks"])

        await eventually(asks_others)
        await nothing_is_left(stack)

        assert len(await cards(stack)) == 1
        # The people who were required first are still required.
        for user in ("U0ANA", "U0CHLOE"):
            await stack.actor(user).click(CHANNEL, ts, Action.APPROVE_ALL)
            await nothing_is_left(stack)
        assert await states(stack, verdicts) == ["authorized"] * 3


async def test_a_call_that_was_given_more_time_is_reminded_of_again(
    stack: Stack,
) -> None:
    stack.policy = batched(
        "within: 10m, up_to: 3", tiers="  approve: {remind_at: 50%}\n"
    )
    async with stack.running():
        verdicts, ts = await three(stack)
        for verdict in verdicts:
            await ring(stack, (await stack.approval(verdict)).id, TimerKind.REMIND)
        await notes(stack, ts, "Still waiting")
        await nothing_is_left(stack)
        (note,) = await notes(stack, ts, "Still waiting")
        assert "The first of its calls expires" in str(note["blocks"])
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, ts, Action.VIEW_ALL, chosen="#2")
        await ana.wait_for_view()
        await ana.act_in_view(Action.EXTEND)
        await notes(stack, ts, "extended the deadline")

        await ring(stack, (await stack.approval(verdicts[1])).id, TimerKind.REMIND)

        async def are_two() -> bool:
            return len(await notes(stack, ts, "Still waiting")) == 2

        await eventually(are_two)
