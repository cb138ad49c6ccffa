"""A reminder names the people who may still decide, and no others."""

from __future__ import annotations

from pathlib import Path

from keyturn.bot.blocks import Message
from keyturn.bot.cards.reminders import (
    Call,
    channel_escalation,
    escalation,
    newly_needed,
    reminder,
    still_in_doubt,
    undelivered,
    waits_again,
    with_reviewers,
)
from keyturn.gateway.approvals.record import Approval, Waiting
from keyturn.gateway.approvals.requirement import Requirement, Revocation, Role
from keyturn.gateway.approvals.timing import with_end
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.bot.cards.test_card_snapshots import expiring_apart
from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    KIM,
    LATER,
    NOW,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
)
from tests.bot.snapshots import assert_all_same
from tests.bot.strategies import CANARY

PEOPLE = Role(name="support", users=("U0ANA", "U0BEN", "U0KIM"))
OF_PEOPLE = a_refund(requirement=Requirement(approvals=2, of=(PEOPLE,)))
CALLED = Waiting(roles=(Role(name="senior", users=("U0BEN",)),), channels=("#leads",))
APART = expiring_apart()


def edit_of_one() -> Call:
    """Return the note about the edit of one call of a card for different people."""
    edit = edited(an_item(index=0, requirement=TWO), {"amount": 1}, by=ANA)
    other = an_item(index=1, requirement=Requirement(approvals=1, of=(PEOPLE,)))
    note = Message((), "Edited: process_refund.")
    return with_reviewers(note, an_approval(edit, other, principals=(KIM,)), edit)


def reopened() -> Approval:
    """Return a card of two calls; the second one is asked anew for longer."""
    items = [an_item({"n": n}, index=n) for n in range(2)]
    why = Revocation(reason="The policy changed.", at_ms=NOW)
    later = items[1].with_(expires_at_ms=LATER + 60_000, revoked=why)
    return with_end(an_approval(*items), later)


def two_calls() -> Approval:
    """Return a card whose first call Ben has approved, and whose second he has not."""
    first, second = an_item(index=0, requirement=TWO), an_item(index=1, requirement=TWO)
    return an_approval(first.with_(votes=(a_vote(first, BEN),)), second)


def in_doubt() -> Message:
    item = an_item(requirement=Requirement(approvals=1, of=(PEOPLE,)))
    call = still_in_doubt(an_approval(item.with_(state=ItemState.IN_DOUBT)))
    assert call is not None
    assert call.roles == {"support"}
    return call.message


MESSAGES = {
    "a reminder names neither who asked nor who has voted": reminder(
        an_approval(OF_PEOPLE.with_(votes=(a_vote(OF_PEOPLE, ANA),)), principals=(KIM,))
    ).message,
    "a reminder names those whom another call of the card needs": reminder(
        two_calls()
    ).message,
    "a reminder of calls that expire apart": reminder(APART).message,
    "people who are needed now, too": newly_needed(
        an_approval(an_item(requirement=TWO)), but={"support"}
    ).message,
    "people who are needed for calls that expire apart": newly_needed(
        APART, but=()
    ).message,
    "an edit names those who decide the edited call": edit_of_one().message,
    "a doubt names those who can settle it": in_doubt(),
    "a call that waits again has its own end": waits_again(
        reopened(), "It changed."
    ).message,
    "others are called, and a channel": escalation(
        an_approval(waiting=CALLED), {"#leads": ""}
    ).message,
    "all are called where a channel could not be told": escalation(
        an_approval(OF_PEOPLE, waiting=CALLED.with_(channels=("#leads", "C0GENERAL"))),
        {"#leads": "not_in_channel", "C0GENERAL": ""},
    ).message,
    "another channel, without a card": channel_escalation(an_approval(), ""),
    "another channel, with calls that expire apart": channel_escalation(
        APART, "C0APPROVALS"
    ),
    "a card that cannot be updated": undelivered(
        APART, channel="C0APPROVALS", why="is_archived", is_posted=True
    ),
}


def test_each_message_names_those_who_can_act_and_the_time() -> None:
    texts = {name: readable(one.blocks, one.text) for name, one in MESSAGES.items()}

    assert_all_same(Path(__file__).parent / "snapshots", "reminders", texts)


def test_an_edit_notes_the_roles_that_it_mentions() -> None:
    assert edit_of_one().roles == {"senior", "support"}


def test_nobody_is_reminded_of_a_doubt_that_is_settled() -> None:
    executed = an_approval(OF_PEOPLE.with_(state=ItemState.EXECUTED))

    assert still_in_doubt(executed) is None


def test_another_channel_reads_no_argument_and_no_markup_of_strangers() -> None:
    item = an_item({"x": CANARY}, tool=f"*{CANARY}*", tier=Tier.ESCALATE)

    note = channel_escalation(an_approval(item, agent=CANARY), "C0APPROVALS")

    assert_tame(note.blocks, note.text)
    assert "<#C0APPROVALS>" in readable(note.blocks)
