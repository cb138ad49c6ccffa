"""The thread under a card shows its history, one line an event."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.cards.history import thread_note
from keyturn.gateway.approvals.events import NEEDS_ONE, Event, EventName
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    REFUND,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    in_state,
)

N = EventName
ESCALATED = a_refund(tier=Tier.ESCALATE, requirement=TWO)
EDITED = edited(a_refund(), REFUND | {"amount": 449.5}, reason="half was broken")
OWN_EDIT = """m:✏️ Edited and approved.
+--
| amount  899 → 449.5
+--
+--
| half was broken
+--
"""


def _note(name: EventName, approval: Approval, **changes: Any) -> str | None:
    event = Event(
        name=name, tenant="acme", approval=approval.id, item=approval.items[0].id
    )
    note = thread_note(event.with_(**changes), approval)
    return None if note is None else readable(note.blocks)


NOTES: list[tuple[EventName, Item, str]] = [
    (
        N.ITEM_VOTED,
        ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),)),
        "m:👍 <@U0ANA> approved: 1 of 2; still needs 1 from `senior`.\n",
    ),
    (
        N.ITEM_VOTED,
        ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN))),
        "m:👍 <@U0BEN> approved: 2 so far; still needs 1 from `senior`.\n",
    ),
    (
        N.ITEM_EDITED,
        in_state(EDITED, ItemState.EXECUTED),
        OWN_EDIT,
    ),
    (
        N.ITEM_EDITED,
        edited(ESCALATED, REFUND | {"amount": 1200}),
        "m:✏️ Edited by <@U0ANA>.\n+--\n| amount  899 → 1200\n+--\n",
    ),
    (
        N.ITEM_AUTHORIZED,
        in_state(ESCALATED, ItemState.AUTHORIZED),
        "m:🔑 Approved by <@U0ANA>.\n",
    ),
    (
        N.ITEM_AUTHORIZED,
        in_state(EDITED, ItemState.AUTHORIZED, by=BEN),
        "m:🔑 Approved by <@U0BEN>.\n",
    ),
    (
        N.ITEM_REJECTED,
        in_state(a_refund(), ItemState.REJECTED, text="*no*"),
        "m:🚫 Rejected.\n+--\n| *no*\n+--\n",
    ),
    (
        N.ITEM_ANSWERED,
        in_state(a_refund(), ItemState.ANSWERED, text="ask first"),
        "m:💬 Answered.\n+--\n| ask first\n+--\n",
    ),
    (
        N.ITEM_EXPIRED,
        in_state(a_refund(), ItemState.EXPIRED),
        "m:⌛ Nobody decided in time. Nothing ran.\n",
    ),
    (
        N.ITEM_EXECUTED,
        in_state(a_refund(), ItemState.EXECUTED, result=Result(ok=True, summary="R-1")),
        "m:✅ Done.\n+--\n| R-1\n+--\n",
    ),
    (
        N.ITEM_FAILED,
        in_state(a_refund(), ItemState.FAILED, result=Result(ok=False)),
        "m:❌ Failed.\n",
    ),
]


def test_who_approves_alone_is_not_mentioned_for_it() -> None:
    approved = in_state(a_refund(), ItemState.AUTHORIZED)

    assert _note(N.ITEM_AUTHORIZED, an_approval(approved)) is None


@pytest.mark.parametrize(("name", "item", "text"), NOTES)
def test_each_event_has_its_line(name: EventName, item: Item, text: str) -> None:
    assert _note(name, an_approval(item)) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("executed", "m:🔎 <@U0BEN> checked: it took effect.\n"),
        ("rerun", "m:🔎 <@U0BEN> checked: it runs again.\n"),
        ("skip", "m:🔎 <@U0BEN> left it as it is.\n"),
        ("else", None),
    ],
)
def test_what_a_person_found_out_is_told(reason: str, text: str | None) -> None:
    approval = an_approval(in_state(a_refund(), ItemState.EXECUTED))

    found = _note(N.ITEM_RECONCILED, approval, actor="T0KEYTURN/U0BEN", reason=reason)

    assert found == text


def test_a_batch_names_the_call() -> None:
    approval = an_approval(
        in_state(an_item({}), ItemState.EXPIRED), an_item({}, index=1)
    )

    assert (_note(N.ITEM_EXPIRED, approval) or "").startswith("m:*Call 1:* ⌛")


@pytest.mark.parametrize(
    ("name", "item"),
    [
        (N.APPROVAL_OPENED, a_refund()),
        (N.ITEM_EXECUTING, in_state(a_refund(), ItemState.EXECUTING)),
        (N.ITEM_VOTED, a_refund()),
        (N.ITEM_EDITED, a_refund()),
        (N.ITEM_AUTHORIZED, a_refund()),
        (N.ITEM_AUTHORIZED, in_state(EDITED, ItemState.AUTHORIZED)),
    ],
)
def test_what_is_no_news_has_no_line(name: EventName, item: Item) -> None:
    assert _note(name, an_approval(item)) is None


def test_an_event_about_another_approval_has_no_line() -> None:
    assert _note(N.ITEM_EXPIRED, an_approval(), item="ap_other.0") is None


def test_calls_that_their_requester_takes_back_together_are_withdrawn() -> None:
    approval = an_approval(a_refund(), a_refund(index=1), a_refund(index=2))
    event = Event(
        name=N.APPROVAL_DECIDED,
        tenant="acme",
        approval=approval.id,
        data={"withdrawn": "0-1", "rejected": "2"},
    )

    note = thread_note(event, approval)

    assert note is not None
    assert readable(note.blocks) == (
        "m:☑️ *Decided together:* 1 rejected · 2 withdrawn\n"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({NEEDS_ONE: "yes"}, "one more person is needed"),
        ({}, "more people are needed"),
    ],
)
def test_what_the_first_of_several_people_approved_is_not_called_approved(
    more: dict[str, str], said: str
) -> None:
    approval = an_approval(*(a_refund(index=n) for n in range(4)))
    data = {"approved": "0-2", "edited": "3", "waiting": "0-1,3", **more}
    event = Event(
        name=N.APPROVAL_DECIDED, tenant="acme", approval=approval.id, data=data
    )

    note = thread_note(event, approval)

    assert note is not None
    assert readable(note.blocks) == (
        f"m:☑️ *Decided together:* 1 approved · 2 approved, {said} · 1 edited, {said}\n"
    )
    assert note.text == (f"Decided together: 4 calls. For 3 of 4 {said}.")


def test_one_call_of_a_batch_is_decided_in_the_singular() -> None:
    approval = an_approval(a_refund(), a_refund(index=1))
    event = Event(
        name=N.APPROVAL_DECIDED,
        tenant="acme",
        approval=approval.id,
        data={"approved": "0", "waiting": "0", "left_out": "1"},
    )

    note = thread_note(event, approval)

    assert note is not None
    assert note.text == ("Decided: 1 call. For 1 of 1 more people are needed.")
    assert readable(note.blocks) == (
        "m:☑️ *Decided together:* 1 approved, more people are needed · "
        "1 need another look\n"
    )


def test_an_edit_of_a_call_that_expired_is_not_called_approved() -> None:
    voted = EDITED.with_(votes=(a_vote(EDITED, ANA),))
    expired = in_state(voted, ItemState.EXPIRED)

    note = _note(N.ITEM_EDITED, an_approval(expired))

    assert note is not None
    assert note.startswith("m:✏️ Edited by <@U0ANA>.")
