"""What notifications and screen readers read is a sentence, as people write them."""

from __future__ import annotations

import re

from keyturn.bot.blocks import Message
from keyturn.bot.cards import channel_messages, reminders
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.channel_messages import FREEZE_EVENTS, freeze_message
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.special_cards import many_ran, plain_card, report_line
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.bot.cards.test_card_snapshots import CARDS
from tests.bot.cards.test_notification import MESSAGES
from tests.bot.cards.test_notification import shown as notified
from tests.bot.samples import TEAM, a_refund, an_approval, an_item, frame

SENTENCE = re.compile(r"([\w ,.-]{1,80}: )?(?=[A-Z0-9])[^\n]{6,240}[.]")
NO_PERSONS_WORD = re.compile(
    r"ap_|nt_|sha256|<|>|`|\b(?:item|approval|run|record)\.[a-z]|\bcall \d+:|_ms\b"
    r"|T0KEYTURN|U0|C0|\b[A-Z]{2,}_",
)
STATES = [an_item(index=index, state=s) for index, s in enumerate(ItemState)]
APPROVALS = (
    *CARDS.values(),
    an_approval(*STATES),
    *(an_approval(a_refund(state=one)) for one in ItemState),
)


def messages_about(approval: Approval) -> list[Message]:
    """Return each message about an approval."""
    notes = [
        thread_note(
            Event(
                name=name,
                tenant="acme",
                approval=approval.id,
                item=approval.items[0].id,
                actor=f"{TEAM}/U0ANA",
                reason=reason,
            ),
            approval,
        )
        for name in EventName
        for reason in ("", *Finding)
    ]
    return [
        card(frame(approval)),
        plain_card(frame(approval)),
        reminders.reminder(approval).message,
        reminders.escalation(approval, {"C0A": "", "C0B": "not_in_channel"}).message,
        reminders.channel_escalation(approval, "C0APPROVALS"),
        *(note for note in notes if note),
    ]


def other_messages() -> list[Message]:
    """Return each message that is about no card."""
    event = Event(
        name=EventName.ITEM_AUTHORIZED,
        tenant="acme",
        approval="ap_default_1",
        agent="a",
        tool="pay",
        actor="T/U0ANA",
    )
    return [
        *map(notified, MESSAGES.values()),
        *(plain_card(frame(one)) for one in MESSAGES.values()),
        *(freeze_message(event.with_(name=name, tool="")) for name in FREEZE_EVENTS),
        many_ran([event, event]),
        report_line(event.with_(name=EventName.APPROVAL_REPORTED)),
        channel_messages.agent_answer("Done."),
        channel_messages.no_answer(),
        channel_messages.run_failed(),
        channel_messages.corrupt_record("ap_default_1"),
    ]


def test_every_fallback_is_a_sentence_without_machine_words() -> None:
    about = [message for one in APPROVALS for message in messages_about(one)]
    texts = {message.text for message in (*about, *other_messages())}

    assert len(texts) > len(ItemState)
    for text in texts:
        assert SENTENCE.fullmatch(text), text
        assert not NO_PERSONS_WORD.search(text.replace("process_refund", "x")), text
