"""Texts about standing approvals are true: in direct messages and in the form."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.delivery.card_publisher import (
    CardPublisher,
    CopyUpdater,
    policy_decision_digest,
)
from keyturn.bot.delivery.outbox_queue import QueueEntry
from keyturn.gateway.approvals.standing import used
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace
from tests.approvals.test_standing import NOW, standing

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

    shown = json.dumps(card(Frame(given, KEY, "T0", NOW)).blocks)
    now = json.dumps(card(Frame(after, KEY, "T0", NOW)).blocks)
    assert ("3 of 3 calls left" in shown, "2 of 3 calls left" in now) == (True, True)

    assert (
        updater.next_call(QueueEntry(key="ap", approval="ap"), after, place) is not None
    )
