"""The ways to notify reviewers: mentions, direct messages, rotations, quiet hours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.mentions import (
    MOST_COPIES,
    copies_for,
    escalation_mentions,
    mentions_for,
    quiet_roles,
    unreachable,
)
from keyturn.bot.cards.reminders import newly_needed, reminder
from keyturn.bot.delivery.event_messages import messages_of
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Acknowledgement, Approval, Waiting
from keyturn.gateway.approvals.requirement import Asking, Notify, Requirement, Role
from keyturn.gateway.protocol.records import ItemState
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    LATER,
    NOW,
    a_refund,
    an_approval,
    an_item,
    frame,
)

PEOPLE = ("U0BEN", "U0EVE", "U0LEAD")
DIRECT = Role(name="direct", users=PEOPLE, notify=Notify.DM)
WATCH = Role(name="watch", users=("U0BEN", "U0ZOE"), usergroups=("S0WATCH",))


def asked_of(*roles: Role, approvals: int = 1) -> Approval:
    requirement = Requirement(approvals=approvals, of=roles)
    return an_approval(a_refund(requirement=requirement))


def asking(role: Role, **changes: object) -> Role:
    return role.with_(asking=role.asked.with_(**changes))


def test_who_gets_a_copy_is_mentioned_in_no_role() -> None:
    approval = asked_of(DIRECT, WATCH)

    assert copies_for(approval) == PEOPLE
    assert mentions_for(approval).named.text == "<!subteam^S0WATCH> <@U0ZOE>"


def test_a_large_role_gets_some_copies_and_the_others_are_mentioned() -> None:
    many = Role(name="many", users=tuple(f"U0N{n}" for n in range(8)), notify=Notify.DM)
    approval = asked_of(many)

    copies, whom = copies_for(approval), mentions_for(approval)

    assert len(copies) == MOST_COPIES
    assert whom.roles == tuple(f"@U0N{n}" for n in range(MOST_COPIES, 8))


def test_a_group_of_which_nobody_is_known_is_mentioned() -> None:
    approval = asked_of(Role(name="big", usergroups=("S0BIG",), notify=Notify.DM))

    assert copies_for(approval) == ()
    assert mentions_for(approval).named.text == "<!subteam^S0BIG>"


def test_who_cannot_get_a_copy_is_mentioned_once_and_it_is_said_why() -> None:
    role = asking(DIRECT, unreachable={"U0EVE": "user_disabled"})
    approval = asked_of(role)

    message = newly_needed(approval, but={"direct"})

    assert copies_for(approval) == ("U0BEN", "U0LEAD")
    assert unreachable(approval) == {"U0EVE": "user_disabled"}
    text = readable(message.blocks)
    assert "<@U0EVE> 🔔 Your decision is needed too" in text
    assert "No direct message to <@U0EVE>:" in text
    assert "user_disabled" in text
    assert mentions_for(approval, but={"@U0EVE"}).roles == ()


def test_in_quiet_hours_nobody_is_asked_and_the_card_says_so() -> None:
    quiet = {"quiet_until_ms": LATER}
    approval = asked_of(asking(DIRECT, **quiet), asking(WATCH, **quiet))

    assert copies_for(approval) == ()
    assert mentions_for(approval).roles == ()
    assert quiet_roles(approval) == {"direct": LATER, "watch": LATER}
    text = shown(approval)
    assert "🌙 Quiet hours until" in text
    assert "`direct` and `watch`" in text
    assert "Reviewers:" not in text


@pytest.mark.parametrize(
    ("on_call", "approvals", "copies"),
    [
        (("U0LEAD",), 1, ("U0LEAD",)),
        # One person cannot give two votes.
        (("U0LEAD",), 2, PEOPLE),
        # Before the first turn.
        ((), 1, PEOPLE),
        # The requester cannot approve the call.
        (("U0KIM",), 1, PEOPLE),
    ],
)
def test_who_is_on_call_is_asked_alone_while_that_is_enough(
    on_call: tuple[str, ...], approvals: int, copies: tuple[str, ...]
) -> None:
    role = asking(DIRECT, on_call=on_call)

    assert copies_for(asked_of(role, approvals=approvals)) == copies


def test_the_next_person_on_call_is_another_one_to_mention() -> None:
    role = DIRECT.with_(notify=Notify.MENTION)
    before = mentions_for(asked_of(asking(role, on_call=("U0BEN",))))
    after = asked_of(asking(role, on_call=("U0EVE",)))

    whom = mentions_for(after, but=before.roles)

    assert before.named.text == "<@U0BEN>"
    assert whom.named.text == "<@U0EVE>"


def test_a_reminder_spares_who_is_on_it_and_their_group() -> None:
    taken = Acknowledgement(by=BEN, until_ms=LATER)
    role = asking(WATCH, taken_by=("S0WATCH",))
    approval = asked_of(role).with_(acknowledged=taken)

    message = reminder(approval)

    text = readable(message.blocks)
    assert "<@U0ZOE> ⏰" in text
    assert "<@U0BEN>" not in text
    assert "S0WATCH" not in text
    assert "A reviewer said *I'm on it*." in text


def test_who_is_called_later_by_direct_message_gets_a_copy_then() -> None:
    later = Role(name="later", users=("U0EVE",), notify=Notify.DM)
    waiting = Waiting(escalate_at_ms=1, roles=(later,))
    approval = asked_of(WATCH, later).with_(waiting=waiting)

    assert copies_for(approval) == ()
    called = approval.with_(escalated_at_ms=NOW)
    assert copies_for(called) == ("U0EVE",)
    assert "<@U0EVE>" not in escalation_mentions(called).named.text


def test_who_is_called_in_their_quiet_hours_is_not_taken_for_mentioned() -> None:
    roles = (asking(WATCH, quiet_until_ms=LATER), Role(name="later", users=("U0EVE",)))
    approval = asked_of(DIRECT).with_(
        waiting=Waiting(escalate_at_ms=1, roles=roles), escalated_at_ms=NOW
    )
    event = Event(
        name=EventName.APPROVAL_ESCALATED, tenant="acme", approval=approval.id
    )

    *_, queued = messages_of(event, approval, ("C0", "1.0"))

    assert queued.mentioned_roles == {"later"}


def test_who_has_a_copy_is_told_there_that_they_are_called() -> None:
    later = Role(name="later", users=("U0EVE",), notify=Notify.DM)
    approval = asked_of(DIRECT).with_(
        waiting=Waiting(escalate_at_ms=1, roles=(later,)), escalated_at_ms=NOW
    )
    event = Event(
        name=EventName.APPROVAL_ESCALATED, tenant="acme", approval=approval.id
    )
    copies = {user: (f"D{user}", "2.0") for user in PEOPLE}

    told, _ = messages_of(event, approval, ("C0", "1.0"), copies)

    assert (told.channel, told.thread_ts) == ("DU0EVE", "2.0")
    assert "so please decide now" in readable(told.message.blocks)
    assert told.seq == ""


def test_nobody_gets_a_copy_of_what_is_over() -> None:
    later = Role(name="later", users=("U0EVE",), notify=Notify.DM)
    item = an_item(state=ItemState.REJECTED)
    approval = an_approval(item).with_(
        waiting=Waiting(roles=(later,)), escalated_at_ms=NOW
    )

    assert copies_for(approval) == ()


def test_only_who_got_a_copy_is_named_as_such() -> None:
    approval = asked_of(DIRECT)

    assert "Sent directly" not in shown(approval)
    assert "✉️ Sent directly to" in shown(approval, sent=("U0BEN",))
    assert "<@U0BEN>" in shown(approval, sent=("U0BEN",))
    assert ANA.user not in shown(approval, sent=("U0BEN",)).split("Sent directly")[1]


def test_whom_to_ask_now_is_in_no_document() -> None:
    role = asking(DIRECT, on_call=("U0BEN",))

    assert "asking" not in role.model_dump()
    assert "U0BEN" in role.asked.on_call
    assert Role.model_validate_json(role.model_dump_json()) == DIRECT
    assert Asking(users=PEOPLE) == DIRECT.asked


def shown(approval: Approval, sent: tuple[str, ...] = ()) -> str:
    message: Message = card(replace(frame(approval, now_ms=NOW), sent=sent))
    return readable(message.blocks)
