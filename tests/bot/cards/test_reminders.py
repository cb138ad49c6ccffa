"""A reminder names the people who may still decide, and no others."""

from __future__ import annotations

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.reminders import channel_escalation, escalation, reminder
from keyturn.gateway.approvals.record import Waiting
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import Tier
from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    KIM,
    NOW,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    frame,
)
from tests.bot.strategies import CANARY

PEOPLE = Role(name="support", users=("U0ANA", "U0BEN", "U0KIM"))
CALLED = Waiting(roles=(Role(name="senior", users=("U0BEN",)),), channels=("#leads",))
UNTIL = "<!date^1795258800^{date_short_pretty} {time}|2026-11-21 11:00 UTC>"


def test_a_reminder_names_neither_who_asked_nor_who_has_voted() -> None:
    item = a_refund(requirement=Requirement(approvals=2, of=(PEOPLE,)))
    item = item.with_(votes=(a_vote(item, ANA),))

    note = reminder(an_approval(item, principals=(KIM,)))

    assert readable(note.blocks) == (
        f"m:<@U0BEN> ⏰ Still waiting for a decision. It expires {UNTIL}, and then "
        "nothing runs.\n"
    )


def test_a_reminder_names_whom_another_call_of_the_card_needs() -> None:
    first, second = an_item(index=0, requirement=TWO), an_item(index=1, requirement=TWO)
    first = first.with_(votes=(a_vote(first, BEN),))

    note = reminder(an_approval(first, second))

    assert "<@U0BEN> <!subteam^S0SUPPORT> ⏰" in readable(note.blocks)


def test_a_call_for_others_names_them_and_the_channels_that_were_told() -> None:
    note = escalation(an_approval(waiting=CALLED), {"#leads": ""})

    shown = readable(note.blocks)
    assert "<@U0BEN> 📣 Not decided yet" in shown
    assert "Notified in #leads" in shown


def test_where_a_channel_was_not_told_who_may_decide_is_called_and_it_is_said() -> None:
    item = a_refund(requirement=Requirement(approvals=1, of=(PEOPLE,)))
    waiting = CALLED.with_(channels=("#leads", "C0GENERAL"))

    note = escalation(
        an_approval(item, waiting=waiting),
        {"#leads": "not_in_channel", "C0GENERAL": ""},
    )

    shown = readable(note.blocks)
    assert "<@U0BEN> <@U0ANA> 📣" in shown
    assert "Notified in <#C0GENERAL>" in shown
    assert "Could not notify #leads: Slack says `not_in_channel`." in shown
    assert "Notified in #leads" not in shown


def test_another_channel_learns_where_a_card_can_be_decided_that_is_not_posted() -> (
    None
):
    note = channel_escalation(an_approval(), "")

    assert "It has no card yet" in readable(note.blocks)
    assert "Home tab" in readable(note.blocks)


def test_another_channel_reads_no_argument_and_no_markup_of_strangers() -> None:
    item = an_item({"x": CANARY}, tool=f"*{CANARY}*", tier=Tier.ESCALATE)

    note = channel_escalation(an_approval(item, agent=CANARY), "C0APPROVALS")

    assert_tame(note.blocks, note.text)
    assert "<#C0APPROVALS>" in readable(note.blocks)


def test_the_card_says_that_it_was_escalated_and_to_whom() -> None:
    approval = an_approval(waiting=CALLED, escalated_at_ms=NOW)

    message = card(frame(approval))

    assert "📣 *Escalated*" in readable(message.blocks)
    assert "UTC> to #leads and `senior`" in readable(message.blocks)
