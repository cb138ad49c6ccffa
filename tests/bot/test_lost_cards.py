"""A card that was posted and not registered is found after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import card_publisher
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.store.reviewers.cards import CardPlace, CardStore
from tests.bot.bot_stack import REFUND, Stack, has_button
from tests.bot.test_prometheus import ANA, click
from tests.bot.test_publisher import POST, calls, nothing_is_left
from tests.sample_questions import REGION

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
        await stack.reviews.decide(await click(stack, verdict), Reject(), ANA)

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
