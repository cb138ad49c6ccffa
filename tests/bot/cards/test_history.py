"""The thread under a card shows its history, one line an event."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.cards.history import thread_note
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.waiting_changes import extend
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from tests.bot.cards.test_card_snapshots import expiring_apart
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
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
