"""Lost events and lost answers of Slack lose no card."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import card_publisher
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.store import missed_cards
from keyturn.gateway.store.events.readers import drop_reader
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.cards import CardPlace, CardStore
from keyturn.gateway.store.reviewers.posted_messages import Ended
from keyturn.gateway.store.store import Store
from tests.bot.bot_stack import REFUND, Stack, has_button
from tests.bot.test_publisher import POST, calls, nothing_is_left
from tests.sample_questions import REGION


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


async def not_kept(*_: object, **__: object) -> CardPlace:
    """Keep no place: what a publisher that is killed now leaves behind."""
    raise StoreUnavailable("killed")


@pytest.mark.parametrize("has_ended", [False, True], ids=["waits", "ended"])
@pytest.mark.parametrize("kind", CALLS)
async def test_a_card_that_was_not_registered_is_found_and_not_posted_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, kind: str, *, has_ended: bool
) -> None:
    if kind == "notification" and has_ended:
        pytest.skip("nobody decides about it")
    with monkeypatch.context() as patch:
        patch.setattr(CardStore, "posted", not_kept)
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
        await nothing_is_left(stack)

    [card] = await stack.cards(verdict)
    assert (card["ts"], place.ts) == (lost["ts"], lost["ts"])
    assert not (has_ended and has_button(card, Action.APPROVE))
    posts = calls(stack, POST)
    assert len([one for one in posts if not one.get("thread_ts")]) == 1
    # The plain card has no mentions.
    is_mentioned = "Your decision is needed too" in str(posts)
    assert is_mentioned is (kind == "plain" and not has_ended)


def _refused(*_: object) -> Message:
    """Return a card that Slack refuses, so that the plain one is posted."""
    return Message(({"type": "nonsense"},), "x")


def _unchecked(*_: object, **__: object) -> None:
    """Make Slack alone refuse it."""
