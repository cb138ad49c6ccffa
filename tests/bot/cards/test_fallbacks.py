"""What notifications and screen readers read is a sentence, as people write them."""

from __future__ import annotations

import re

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards import channel_messages, reminders
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.channel_messages import FREEZE_EVENTS, freeze_message
from keyturn.bot.cards.fallbacks import card_fallback, plain_card
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.special_cards import many_ran, plain_notification, report_line
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.bot.cards.test_notification import MESSAGES
from tests.bot.cards.test_notification import shown as notified
from tests.bot.samples import (
    ANA,
    BEN,
    REFUND,
    TEAM,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
)

SENTENCE = re.compile(r"(?=[A-Z0-9])[^\n]{8,240}[.]")
NO_PERSONS_WORD = re.compile(
    r"ap_|nt_|sha256|<|>|`|\b(?:item|approval|run|record)\.[a-z]|\bcall \d+:|_ms\b"
    r"|T0KEYTURN|U0|C0|\b[A-Z]{2,}_",
)


def approvals() -> list[Approval]:
    """Return an approval in each state, alone, of two people, edited and in a batch."""
    every = [an_approval(a_refund(state=state)) for state in ItemState]
    two = a_refund(requirement=TWO)
    changed = edited(a_refund(), REFUND | {"amount": 449.5}, reason="half")
    batch = [an_item(index=index, state=s) for index, s in enumerate(ItemState)]
    return [
        *every,
        an_approval(two),
        an_approval(two.with_(votes=(a_vote(two, ANA), a_vote(two, BEN)))),
        an_approval(changed),
        an_approval(*batch),
        an_approval(*(item.with_(state=ItemState.EXECUTED) for item in batch)),
        an_approval(a_refund(tool="<!channel> *now*")),
    ]


def messages() -> list[Message]:
    """Return each message that the bot posts."""
    made: list[Message] = []
    for approval in approvals():
        made += [
            card(frame(approval)),
            plain_card(frame(approval)),
            reminders.reminder(approval),
            reminders.escalation(approval, {"C0A": "", "C0B": "not_in_channel"}),
            reminders.channel_escalation(approval, "C0APPROVALS"),
        ]
        for name in EventName:
            for reason in ("", *Finding):
                event = Event(
                    name=name,
                    tenant="acme",
                    approval=approval.id,
                    item=approval.items[0].id,
                    actor=f"{TEAM}/U0ANA",
                    reason=reason,
                )
                note = thread_note(event, approval)
                made += [note] if note else []
    for approval in MESSAGES.values():
        made += [notified(approval), plain_notification(frame(approval))]
    stopped = [
        Event(name=name, tenant="acme", agent="a") for name in sorted(FREEZE_EVENTS)
    ]
    ran = Event(name=EventName.ITEM_AUTHORIZED, tenant="acme", agent="a", tool="pay")
    reported = Event(
        name=EventName.APPROVAL_REPORTED,
        tenant="acme",
        approval="ap_default_1",
        actor="T/U0ANA",
    )
    return [
        *made,
        *(freeze_message(event) for event in stopped),
        many_ran([ran, ran]),
        report_line(reported),
        channel_messages.agent_answer("Done."),
        channel_messages.no_answer(),
        channel_messages.run_failed(),
        channel_messages.corrupt_record("ap_default_1"),
    ]


def test_every_fallback_is_a_sentence_without_machine_words() -> None:
    texts = {message.text for message in messages()}

    assert len(texts) > len(ItemState)
    for text in texts:
        assert SENTENCE.fullmatch(text), text
        assert not NO_PERSONS_WORD.search(text.replace("process_refund", "x")), text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            ItemState.PENDING,
            "Approval needed for process_refund until 2026-11-21 11:00",
        ),
        (
            ItemState.REJECTED,
            "Rejected: process_refund. Nothing ran.",
        ),
        (ItemState.IN_DOUBT, "Did process_refund run? Please check."),
    ],
)
def test_what_is_asked_comes_first(state: ItemState, words: str) -> None:
    assert card_fallback(an_approval(a_refund(state=state))).startswith(words)


def test_how_many_people_are_still_needed_is_said() -> None:
    two = a_refund(requirement=TWO)
    voted = two.with_(votes=(a_vote(two, ANA),))

    assert card_fallback(an_approval(two)).startswith(
        "2 approvals needed for process_refund"
    )
    assert card_fallback(an_approval(voted)).startswith(
        "1 of 2 approvals given for process"
    )
