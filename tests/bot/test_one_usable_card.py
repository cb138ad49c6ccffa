"""After any failures of publishers and answers, one card counts and is correct."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.ids import Action
from keyturn.bot.limits import POST
from keyturn.bot.listener_context import ListenerContext
from keyturn.gateway.approvals.decisions import Approve, Click
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.reviewers.cards import CardPlace
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.conftest import eventually

BOT, GENERAL = "U0KEYTURN", "C0GENERAL"


@pytest.mark.slow
async def test_an_abandoned_copy_counts_no_more(stack: Stack) -> None:
    stack.sandbox.faults.plan("lost_response", POST)
    async with stack.running(fallback_channel=GENERAL):
        verdict = await stack.refund()

        await eventually(lambda: stack.cards(verdict))
        stack.sandbox.control.leave(CHANNEL, BOT)
        (lost,) = await stack.cards(verdict)
        card = await stack.card(verdict, channel=GENERAL)
        await stack.nothing_is_left()

        await stack.actor("U0ANA").click(CHANNEL, str(lost["ts"]), Action.APPROVE)
        await stack.told("U0ANA", "not the newest copy")
        assert (await stack.item(verdict)).is_pending
        await stack.actor("U0ANA").click(GENERAL, str(card["ts"]), Action.APPROVE)
        assert (await stack.item(verdict)).state is ItemState.AUTHORIZED


@pytest.mark.slow
async def test_what_a_paused_publisher_shows_late_is_drawn_again(live: Stack) -> None:
    (verdict,) = await live.submit(("wire_money", {}))
    card = await live.card(verdict)
    older = await live.drawn(verdict)
    assert await live.decide(verdict, Approve()) == "voted"
    await live.card(verdict, says("1 of 2"))
    await live.nothing_is_left()

    # It was on its way to Slack when its publisher lost the lease.
    await late_update(live, older, card)

    await live.card(verdict, says("1 of 2"))
    await live.drawn(verdict)


async def late_update(stack: Stack, older: CardPlace, card: Any) -> None:
    """Make Slack and the store accept an older state after a newer one."""
    shown = {"blocks": card["blocks"], "text": card["text"]}
    async with stack.card_publisher() as late:
        await late.slack.call("chat.update", channel=CHANNEL, ts=older.ts, **shown)
    approval = await stack.store.cards.shown_at(stack.keys, CHANNEL, older.ts)
    await stack.store.cards.shown(
        stack.keys, approval, rev=older.rev, display_digest=""
    )


async def test_a_card_that_is_posted_by_two_at_once_has_one_copy_in_the_end(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends while a card is on its way; the next publisher posts it."""
    real, is_first = CardPublisher.post_card, [True]

    async def paused(self: CardPublisher, *args: Any, **more: Any) -> CardPlace:
        if is_first.pop() if is_first else False:
            other = await real(self, *args, **more)
            assert other
        return await real(self, *args, **more)

    monkeypatch.setattr(CardPublisher, "post_card", paused)
    async with stack.running():
        verdict = await stack.refund()

        card = await stack.card(verdict, lambda m: has_button(m, Action.APPROVE))
        await stack.nothing_is_left()

        async def is_one() -> bool:
            return len(await stack.cards(verdict)) == 1

        await eventually(is_one)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        assert not (await stack.item(verdict)).is_pending


async def test_a_moved_cards_click_counts_once_slack_confirms(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    await live.nothing_is_left()
    live.sandbox.control.share(CHANNEL, "C0SHARED")
    ana = live.actor("U0ANA")
    place = "C0SHARED", str(card["ts"]), Action.APPROVE
    live.sandbox.control.fault("http_500", "chat.getPermalink")

    await ana.click(*place)
    assert (await live.item(verdict)).state is ItemState.PENDING

    await ana.click(*place)
    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


async def test_a_decision_names_the_card_from_before_slack_was_asked(
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = await live.refund()
    card = await live.card(verdict, lambda m: has_button(m, Action.APPROVE))
    seen, clicks = await live.drawn(verdict), list[Click]()
    approval_id = (await live.approval(verdict)).id
    asked, decided = ListenerContext.deciders_of, ReviewService.decide

    async def drawn_again(self: ListenerContext, *who: Any, **more: Any) -> Any:
        await live.store.cards.shown(
            live.keys, approval_id, rev=seen.rev + 1, display_digest="later"
        )
        return await asked(self, *who, **more)

    async def noted(self: ReviewService, click: Click, *given: Any, **more: Any) -> Any:
        clicks.append(click)
        return await decided(self, click, *given, **more)

    monkeypatch.setattr(ListenerContext, "deciders_of", drawn_again)
    monkeypatch.setattr(ReviewService, "decide", noted)
    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

    assert [one.display_digest for one in clicks] == [seen.display_digest]
