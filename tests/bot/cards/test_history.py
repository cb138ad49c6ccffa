"""The thread under a card shows its history and its reminders."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards.history import thread_note
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
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item, Waiting
from keyturn.gateway.approvals.requirement import Requirement, Revocation, Role
from keyturn.gateway.approvals.timing import with_end
from keyturn.gateway.approvals.waiting_changes import extend
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from tests.bot.cards.test_card_snapshots import expiring_apart
from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    KIM,
    LATER,
    NOW,
    REFUND,
    TEAM,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    in_state,
)
from tests.bot.snapshots import assert_all_same
from tests.bot.strategies import CANARY

N, S = EventName, ItemState
ESCALATED = a_refund(tier=Tier.ESCALATE, requirement=TWO)
EDITED = edited(a_refund(), REFUND | {"amount": 449.5}, reason="half was broken")
BY_BEN = f"{TEAM}/U0BEN"


def note(name: EventName, item: Item, **changes: object) -> str:
    """Return the line of an event about the only call of a card; "" for none."""
    return line(name, an_approval(item), item=item.id, **changes)


def line(name: EventName, approval: Approval, **changes: object) -> str:
    event = Event(name=name, tenant="acme", approval=approval.id)
    made = thread_note(event.with_(**changes), approval)
    return readable(made.blocks, made.text) if made else ""


def together(**data: str) -> str:
    """Return the line of a decision about several calls."""
    several = an_approval(*(a_refund(index=n) for n in range(4)))
    return line(N.APPROVAL_DECIDED, several, data=data)


def more_time() -> str:
    """Return the line of more time for all calls except the first to expire."""
    approval = expiring_apart()
    third = approval.items[2].with_(latest_at_ms=approval.items[2].expires_at_ms)
    groups = frozenset({"S0SUPPORT"})
    ana = Reviewer(
        team=TEAM, user="U0ANA", usergroups=groups, account=AccountKind.MEMBER
    )
    change = extend(approval.replacing(third), ana, NOW)
    assert isinstance(change, Change)
    made = thread_note(change.events[0], change.approval)
    assert made is not None
    return readable(made.blocks, made.text)


ONE_OF_TWO = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),))
TWO_OF_TWO = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN)))
VOTED = EDITED.with_(votes=(a_vote(EDITED, ANA),))
DONE = in_state(a_refund(), S.EXECUTED, result=Result(ok=True, summary="R-1"))
FIRST_OF_TWO = an_approval(in_state(an_item({}), S.EXPIRED), an_item({}, index=1))
REJECTED = in_state(a_refund(), S.REJECTED, text="*no*")
ANSWERED = in_state(a_refund(), S.ANSWERED, text="ask first")
NOTES = {
    "one of two": note(N.ITEM_VOTED, ONE_OF_TWO),
    "two of two, and the senior lacks": note(N.ITEM_VOTED, TWO_OF_TWO),
    "an own edit": note(N.ITEM_EDITED, in_state(EDITED, S.EXECUTED)),
    "an edit that needs others": note(
        N.ITEM_EDITED, edited(ESCALATED, REFUND | {"amount": 1200})
    ),
    "an edit that expired": note(N.ITEM_EDITED, in_state(VOTED, S.EXPIRED)),
    "approved by several": note(N.ITEM_AUTHORIZED, in_state(ESCALATED, S.AUTHORIZED)),
    "another person's edit, approved": note(
        N.ITEM_AUTHORIZED, in_state(EDITED, S.AUTHORIZED, by=BEN)
    ),
    "rejected": note(N.ITEM_REJECTED, REJECTED),
    "answered": note(N.ITEM_ANSWERED, ANSWERED),
    "expired": note(N.ITEM_EXPIRED, in_state(a_refund(), S.EXPIRED)),
    "expired, one of two calls": line(
        N.ITEM_EXPIRED, FIRST_OF_TWO, item=FIRST_OF_TWO.items[0].id
    ),
    "done": note(N.ITEM_EXECUTED, DONE),
    "failed": note(N.ITEM_FAILED, in_state(a_refund(), S.FAILED)),
    **{
        f"a doubt, {found}": note(N.ITEM_RECONCILED, DONE, actor=BY_BEN, reason=found)
        for found in ("executed", "rerun", "skip")
    },
    "withdrawn together": together(withdrawn="0-1", rejected="2"),
    "the first of two people": together(approved="0-2", edited="3", waiting="0-1,3"),
    "the first of several people": together(approved="0", waiting="0", left_out="1"),
    "more time for the others": more_time(),
}


def test_each_event_has_its_line() -> None:
    assert_all_same(Path(__file__).parent / "snapshots", "history", NOTES)


@pytest.mark.parametrize(
    ("name", "item", "changes"),
    [
        (N.APPROVAL_OPENED, a_refund(), {}),
        (N.ITEM_EXECUTING, in_state(a_refund(), S.EXECUTING), {}),
        (N.ITEM_VOTED, a_refund(), {}),
        (N.ITEM_EDITED, a_refund(), {}),
        # Who approves alone is not mentioned for it.
        (N.ITEM_AUTHORIZED, in_state(a_refund(), S.AUTHORIZED), {}),
        (N.ITEM_AUTHORIZED, in_state(EDITED, S.AUTHORIZED), {}),
        (N.ITEM_RECONCILED, in_state(a_refund(), S.EXECUTED), {"reason": "else"}),
    ],
)
def test_what_is_no_news_has_no_line(
    name: EventName, item: Item, changes: dict[str, object]
) -> None:
    assert note(name, item, **changes) == ""


def test_an_event_about_another_approval_has_no_line() -> None:
    assert line(N.ITEM_EXPIRED, an_approval(), item="ap_other.0") == ""


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
