"""Texts about standing approvals are true: in direct messages and in the form."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.special_cards import standing_card
from keyturn.bot.delivery.card_copies import CopyUpdater
from keyturn.bot.delivery.card_publisher import CardPublisher, policy_decision_digest
from keyturn.bot.delivery.outbox_queue import QueueEntry
from keyturn.bot.modals import allow_similar
from keyturn.gateway.approvals.standing import used
from keyturn.gateway.policy.standing import Offer
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace
from keyturn.gateway.store.store import Store
from tests.approvals.test_standing import NOW, standing
from tests.service.harness import ServiceHarness
from tests.service.standing import allowing

KEY = b"k" * 32


def test_a_direct_message_shows_what_is_left_of_a_standing_approval() -> None:
    given = standing(rev=2)
    copy = CardCopy(
        channel="D0BEN",
        ts="1.1",
        rev=2,
        decision_digest=policy_decision_digest(given, KEY),
    )
    after, _ = used(given, "ap_default_2.0", 40_000_000, NOW)
    after = after.with_(rev=3)
    place = CardPlace(channel="C0", ts="1.0", rev=3, copies={"U0BEN": copy})
    publisher = cast("CardPublisher", SimpleNamespace(seal_key=KEY))
    updater = CopyUpdater(publisher)

    shown = json.dumps(standing_card(Frame(given, KEY, "T0", NOW)).blocks)
    now = json.dumps(standing_card(Frame(after, KEY, "T0", NOW)).blocks)
    assert ("3 of 3 left" in shown, "2 of 3 left" in now) == (True, True)

    assert (
        updater.next_call(QueueEntry(key="ap", approval="ap"), after, place) is not None
    )


async def test_the_form_does_not_say_that_people_see_a_repetition(store: Store) -> None:
    harness: ServiceHarness = allowing(store)
    _, (verdict,) = await harness.submit(("restart", {"service": "web"}))
    approval = await harness.approval(verdict.item_id)
    offer = harness.reviews.standing.offer(approval, 0)
    assert isinstance(offer, Offer)

    # Within these bounds each call repeats the first: it is covered all the same, see
    # test_calls_that_are_to_be_the_same_may_be_the_same.
    form = json.dumps(allow_similar.view(Frame(approval, KEY, "T0", NOW), 0, offer))

    assert "repeats one already done" not in form
