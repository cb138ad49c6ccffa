"""Every event reaches Slack, through restarts, refusals and lost leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import card_publisher, card_updater, publisher, queue_sender
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.publisher import Feed, Publisher, Scheduler
from keyturn.bot.ids import Action
from keyturn.bot.limits import POST
from keyturn.bot.web import SlackNoResponse
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import LeaseLost, StoreUnavailable
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store import missed_cards
from keyturn.gateway.store.events.outbox import Outbox, drop_reader
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.bot_records import Ended
from keyturn.gateway.store.reviewers.cards import CardStore
from keyturn.gateway.store.scripts.fences import holding
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, has_button, says
from tests.bot.tampering import expire
from tests.conftest import eventually
from tests.panics import failing
from tests.sample_questions import REGION


async def test_a_button_works_after_a_restart(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
    async with stack.running():
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        assert (await stack.item(verdict)).state is ItemState.AUTHORIZED
        assert len(await stack.cards(verdict)) == 1


async def test_a_dead_publishers_event_is_sent_by_the_next(stack: Stack) -> None:
    verdict = await stack.refund()
    outbox = stack.store.outbox(stack.keys, reader="slack:default")
    await outbox.prepare()
    assert await outbox.take("dead", block_ms=1)

    async with stack.running():
        await stack.card(verdict)
        await stack.nothing_is_left()


@pytest.mark.slow
async def test_a_click_on_an_unanswered_card_registers_it(stack: Stack) -> None:
    stack.sandbox.faults.plan("lost_response", POST)
    async with stack.running():
        verdict = await stack.refund()
        await stack.click(verdict, Action.APPROVE)

        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        await stack.nothing_is_left()

        assert not (await stack.item(verdict)).is_pending
        assert len(await stack.cards(verdict)) == 1


def archive(stack: Stack, card: JsonObject) -> None:
    del card
    stack.sandbox.control.archive(CHANNEL)


def remove(stack: Stack, card: JsonObject) -> None:
    workspace = stack.sandbox.workspace
    workspace.drop_message(workspace.messages[CHANNEL][str(card["ts"])])


def close_window(stack: Stack, card: JsonObject) -> None:
    del card
    stack.sandbox.control.edit_window(0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "place"),
    [(archive, "D0DAN"), (remove, "D0DAN"), (close_window, CHANNEL)],
)
async def test_a_card_that_cannot_change_any_more_is_told_where_it_can_be(
    live: Stack, harm: Callable[[Stack, JsonObject], None], place: str
) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    await live.nothing_is_left()
    harm(live, card)
    await expire(live, await live.approval(verdict))
    await live.sweeper.sweep()

    told = says("cannot be brought up to date")
    await live.actor("U0DAN").message_with(place, told)
    await live.nothing_is_left()


async def test_a_card_that_breaks_us_is_quarantined_and_tried_again_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> Message:
        raise ZeroDivisionError

    monkeypatch.setattr(queue_sender, "GIVE_UP_AFTER", 1)
    monkeypatch.setattr(card_publisher, "card", broken)
    monkeypatch.setattr(card_publisher, "plain_card", broken)
    async with stack.running():
        verdict = await stack.refund()

        await eventually(
            lambda: asyncio.sleep(0, "publisher.quarantined" in caplog.text)
        )
        monkeypatch.undo()
        stack.sandbox.control.advance(600)

        await stack.card(verdict)
        await stack.nothing_is_left()


@pytest.mark.slow
async def test_when_the_leading_bot_stops_the_other_takes_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishers: list[Noted] = []

    class Noted(Publisher):
        @property
        def is_leading(self) -> bool:
            return self._term is not None

        async def run(self, stop: asyncio.Event) -> None:
            publishers.append(self)
            await super().run(stop)

    monkeypatch.setattr("keyturn.bot.app.Publisher", Noted)

    async def leads(place: int) -> bool:
        return len(publishers) > place and publishers[place].is_leading

    async with AsyncExitStack() as standing_by:
        async with stack.running():
            await eventually(lambda: leads(0))
            await standing_by.enter_async_context(stack.running())
            await eventually(lambda: asyncio.sleep(0, len(publishers) == 2))
            assert not await leads(1)

        await stack.card(await stack.refund())

        assert await leads(1)


async def put(stack: Stack, name: EventName, **data: object) -> None:
    given = {key: str(value) for key, value in data.items() if key != "tier"}
    event = Event(
        name=name,
        tenant="default",
        agent="support",
        thread="t1",
        tool="post_notice",
        tier=str(data.get("tier", "")),
        channel=given.get("channel", ""),
        data=given,
    )
    await stack.store.outbox(stack.keys, reader="").put(event)


async def test_an_agents_last_words_are_plain_text(live: Stack) -> None:
    ts = await live.actor("U0DAN").say("#general", "@keyturn refund")

    place = {"channel": "C0GENERAL", "thread_ts": ts}
    await put(live, EventName.RUN_STARTED, **place)
    dan = live.actor("U0DAN")
    await dan.message_with("#general", says("working on it"))
    await put(live, EventName.RUN_FINISHED, text="*Done* <!channel>", **place)

    found = await dan.message_with("#general", says("Done"))
    assert found["thread_ts"] == ts
    assert "mrkdwn" not in str(found["blocks"])
    assert "Done" not in str(found["text"])


async def test_events_of_another_tenant_are_left_to_its_own_bot(stack: Stack) -> None:
    event = Event(
        name=EventName.RUN_FINISHED,
        tenant="other",
        data={"channel": "C0GENERAL", "text": "secret"},
    )
    await stack.store.outbox(stack.keys, reader="").put(event)
    async with stack.running():
        await stack.card(await stack.refund())
        await stack.nothing_is_left()

    assert "secret" not in str(stack.calls(POST))


@pytest.mark.slow
async def test_who_lost_the_lease_asks_for_it_again(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with stack.running():
            await stack.card(await stack.refund())
            lease = stack.keys.lease("", "slack:default")
            await stack.store.conn.command("DEL", lease)

            await eventually(lambda: caplog.text.count("publisher.leading") == 2)
            await stack.card(await stack.refund(thread="t2"))


async def test_no_failure_ends_publishing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "_RETRY_S", 0.02)
    for error in (ZeroDivisionError(), StoreUnavailable("gone")):
        failing(monkeypatch, Outbox, "take", error, times=1)
    async with stack.running():
        await stack.card(await stack.refund())

    assert caplog.text.count("publisher.failed_and_leads_again") == 1


async def test_a_bot_that_slack_refuses_goes_on_when_it_is_helped(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(card_updater, "BROKEN_S", 0.05)
    async with stack.running():
        scopes = list(stack.sandbox.workspace.bot_scopes)
        stack.sandbox.control.scopes(["commands"])
        verdict = await stack.refund()

        refused = "publisher.bot_refused error=missing_scope"
        await eventually(lambda: refused in caplog.text)
        stack.sandbox.control.scopes(scopes)

        await stack.card(verdict)


async def test_a_card_without_a_response_is_given_up_when_its_approval_is_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silence = SlackNoResponse("chat.postMessage", "no answer")
    monkeypatch.setattr(card_updater, "RETRY_FOR_S", 0.0)
    monkeypatch.setattr(queue_sender, "_LONGEST_WAIT_S", 0.01)
    failing(monkeypatch, CardPublisher, "post_card", silence, times=4)
    async with stack.running():
        # A day of failures does not give up a card that people still need.
        verdict = await stack.refund()
        await stack.card(verdict)
        failing(monkeypatch, CardPublisher, "update_card", silence)
        approval = await stack.approval(verdict)
        await stack.decide(verdict, Reject(reason="no"))

        async def is_given_up() -> bool:
            trouble = await stack.store.cards.trouble(stack.keys, approval.id)
            return trouble is not None and trouble.why == card_updater.NO_RESPONSE

        await eventually(is_given_up)
        assert await stack.store.cards.outdated(stack.keys, 9) == []
    assert "card.undeliverable" in caplog.text


@pytest.mark.parametrize("error", [SlackNoResponse("post", ""), ZeroDivisionError()])
async def test_a_message_that_cannot_be_sent_is_given_up_and_holds_nothing_up(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    monkeypatch.setattr(card_updater, "RETRY_FOR_S", 0.0)
    monkeypatch.setattr(queue_sender, "GIVE_UP_AFTER", 1)
    async with stack.running():
        with monkeypatch.context() as patch:
            failing(patch, CardPublisher, "post", error)
            await put(stack, EventName.RUN_FINISHED, text="x", channel="C0GENERAL")
            await stack.nothing_is_left()

    assert "publisher.gave_up" in caplog.text


async def test_a_late_publisher_changes_no_card_and_posts_none(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        place = await stack.drawn(verdict)
    approval = await stack.approval(verdict)
    sent = len(stack.sandbox.calls)

    async with (
        stack.card_publisher() as late,
        stack.store.threads.lease(stack.keys, "", "slack") as lease,
    ):
        lease.end()
        with holding(lease), pytest.raises(LeaseLost):
            await late.update_card(approval, place, now_ms=0)
        with holding(lease), pytest.raises(LeaseLost):
            await late.post_card(approval, channel=CHANNEL, now_ms=0)

    assert len(stack.sandbox.calls) == sent


# Lost events and lost answers of Slack lose no card.


async def forget_events(stack: Stack) -> None:
    """Drop the bot's reader, and with it every event."""
    assert await drop_reader(stack.store.conn, stack.keys, "slack:default")
    await stack.store.conn.command("XTRIM", stack.keys.outbox, "MAXLEN", 0)


async def test_a_dropped_reader_brings_every_card_up_to_date(stack: Stack) -> None:
    async with stack.running():
        old, same = await stack.refund("t1"), await stack.refund("t2")
        card = await stack.card(old)
        await stack.drawn(old)
        await stack.drawn(same)
    assert await missed_cards.mark_missed(stack.store, stack.keys) == 0
    new = await stack.refund("t3")
    await stack.decide(old, Approve())
    await stack.store.cards.unmark(stack.keys, (await stack.approval(new)).id)
    await forget_events(stack)

    async with stack.running():
        await stack.card(new)
        shown = await stack.card(old, lambda m: not has_button(m, Action.APPROVE))
        await stack.bot_is_quiet()

    assert shown["ts"] == card["ts"]
    assert len(await stack.cards(new)) == len(await stack.cards(same)) == 1


async def test_a_card_whose_end_was_missed_stops_asking(stack: Stack) -> None:
    async with stack.running():
        ended, redacted = await stack.refund("t1"), await stack.refund("t2")
        cards = [await stack.card(one) for one in (ended, redacted)]
        await stack.drawn(ended)
        await stack.drawn(redacted)
    for one in (ended, redacted):
        await stack.decide(one, Reject())
    approval = await stack.approval(redacted)
    posted = stack.store.posted_messages
    told = Ended(at_ms=1, redacted_rev=approval.rev)
    await posted.look_at(stack.keys, approval.id, 10**15, ended=told)
    await forget_events(stack)
    for tenant, found in (("other", 0), ("default", 1)):
        keys = stack.store.keys_of_tenant(tenant)
        marked = await missed_cards.mark_missed(stack.store, keys)
        assert marked == found

    async with stack.running():
        shown = await stack.card(ended, lambda m: not has_button(m, Action.APPROVE))
        await stack.bot_is_quiet()

    assert shown["ts"] == cards[0]["ts"]
    assert await missed_cards.mark_missed(stack.store, stack.keys) == 0
    assert len(await stack.cards(ended)) == 1
    [same] = await stack.cards(redacted)
    assert same["blocks"] == cards[1]["blocks"], "nobody shows it again"


async def test_a_bot_that_starts_again_looks_at_no_card(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[str]()

    async def mark_missed(_store: Store, keys: Keys) -> int:
        looks.append(keys.tenant)
        return 0

    monkeypatch.setattr("keyturn.bot.delivery.publisher.mark_missed", mark_missed)
    for _ in range(2):
        async with stack.running():
            await stack.card(await stack.refund())

    assert looks == ["default"]


CALLS: dict[str, tuple[str, Any]] = {
    "one person": ("process_refund", REFUND),
    "plain": ("process_refund", REFUND),
    "two people": ("wire_money", {}),
    "notification": ("post_notice", {"text": "hello"}),
    "question": (ASK_USER, {"questions": [REGION]}),
}


@pytest.mark.parametrize("has_ended", [False, True], ids=["waits", "ended"])
@pytest.mark.parametrize("kind", CALLS)
async def test_a_card_that_was_not_registered_is_found_and_not_posted_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, kind: str, *, has_ended: bool
) -> None:
    if kind == "notification" and has_ended:
        pytest.skip("nobody decides about it")
    with monkeypatch.context() as patch:
        # What a publisher that is killed now leaves behind.
        failing(patch, CardStore, "posted", StoreUnavailable("killed"))
        if kind == "plain":
            patch.setattr(card_publisher, "card", _refused)
            patch.setattr(card_publisher, "ensure_valid_message", _unchecked)
        async with stack.running():
            (verdict,) = await stack.submit(CALLS[kind])
            lost = await stack.card(verdict)
    if has_ended:
        await stack.decide(verdict, Reject())

    async with stack.running():
        place = await stack.drawn(verdict)
        await stack.nothing_is_left()

    [card] = await stack.cards(verdict)
    assert (card["ts"], place.ts) == (lost["ts"], lost["ts"])
    assert not (has_ended and has_button(card, Action.APPROVE))
    posts = stack.calls(POST)
    assert len([one for one in posts if not one.get("thread_ts")]) == 1
    # The plain card has no mentions.
    is_mentioned = "Your decision is needed too" in str(posts)
    assert is_mentioned is (kind == "plain" and not has_ended)


def _refused(*_: object) -> Message:
    """Return a card that Slack refuses, so that the plain one is posted."""
    return Message(({"type": "nonsense"},), "x")


def _unchecked(*_: object, **__: object) -> None:
    """Make Slack alone refuse it."""


@pytest.mark.slow
async def test_a_message_that_nobody_sends_makes_the_bot_unready_until_it_is_sent(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "_WATCH_S", 0.02)
    stuck = asyncio.Event()
    real = Scheduler.run

    async def sleeping(self: Scheduler) -> None:
        if stuck.is_set():
            await real(self)
        await asyncio.Event().wait()

    monkeypatch.setattr(Scheduler, "run", sleeping)
    monkeypatch.setattr(publisher, "_CHECKS", 10**6)
    async with stack.running():
        verdict = await stack.refund()

        # A bot that has just started may be unready for other reasons before.
        async def is_unready() -> bool:
            stack.sandbox.control.advance(31)
            return "nobody sends it" in str(await stack.problems())

        await eventually(is_unready)

        # The next look finds it too: the term ends, and the next one begins anew.
        stuck.set()
        monkeypatch.setattr(publisher, "_CHECKS", 1)
        with caplog.at_level(logging.ERROR):
            await stack.card(verdict)
        assert "publisher.stalled" in caplog.text
        assert await stack.problems() == []


async def test_events_that_no_bot_reads_are_seen_by_every_bot_of_the_tenant(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(self: Feed) -> bool:
        del self
        return await asyncio.Event().wait()

    monkeypatch.setattr(Feed, "read_new", deaf)
    monkeypatch.setattr(publisher, "STALLED_S", 0.3)
    async with stack.running(), stack.running():
        await stack.refund()

        async def is_unready() -> bool:
            return "No bot has read" in str(await stack.problems())

        await eventually(is_unready)
