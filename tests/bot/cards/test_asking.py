"""A card notifies the people whose decision it needs, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.mentions import (
    MOST,
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
from keyturn.gateway.approvals.record import Acknowledgement, Approval, Item, Waiting
from keyturn.gateway.approvals.requirement import (
    Notify,
    Observation,
    Requirement,
    Role,
    Vote,
)
from keyturn.gateway.protocol.records import Finding, ItemState, Person, Tier
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    LATER,
    NOW,
    SENIOR,
    SUPPORT,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
)

PEOPLE = ("U0BEN", "U0EVE", "U0LEAD")
DIRECT = Role(name="direct", users=PEOPLE, notify=Notify.DM)
WATCH = Role(name="watch", users=("U0BEN", "U0ZOE"), usergroups=("S0WATCH",))
LATER_ROLE = Role(name="later", users=("U0EVE",), notify=Notify.DM)


def asked_of(*roles: Role, approvals: int = 1) -> Approval:
    requirement = Requirement(approvals=approvals, of=roles)
    return an_approval(a_refund(requirement=requirement))


def asking(role: Role, **changes: object) -> Role:
    return role.with_(asking=role.asked.with_(**changes))


def on_call(*users: str) -> Role:
    return asking(DIRECT, on_call=users)


def escalated(*roles: Role) -> Approval:
    """Return an approval for which these roles were called."""
    waiting = Waiting(escalate_at_ms=1, roles=roles)
    return asked_of(DIRECT).with_(waiting=waiting, escalated_at_ms=NOW)


def shown(approval: Approval, sent: tuple[str, ...] = ()) -> str:
    return readable(card(replace(frame(approval), sent=sent)).blocks)


@pytest.mark.parametrize(
    ("approval", "copies", "named"),
    [
        # A person with a copy is mentioned in no role.
        (asked_of(DIRECT, WATCH), PEOPLE, "<!subteam^S0WATCH> <@U0ZOE>"),
        # A group of which nobody is known.
        (
            asked_of(Role(name="big", usergroups=("S0BIG",), notify=Notify.DM)),
            (),
            "<!subteam^S0BIG>",
        ),
        (asked_of(on_call("U0LEAD")), ("U0LEAD",), ""),
        # One person cannot give two votes.
        (asked_of(on_call("U0LEAD"), approvals=2), PEOPLE, ""),
        # Before the first turn.
        (asked_of(on_call()), PEOPLE, ""),
        # The requester cannot approve the call.
        (asked_of(on_call("U0KIM")), PEOPLE, ""),
        # Nobody gets a copy of what is over.
        (
            escalated(LATER_ROLE).replacing(an_item(state=ItemState.REJECTED)),
            (),
            "",
        ),
    ],
)
def test_each_person_gets_a_copy_or_a_mention(
    approval: Approval, copies: tuple[str, ...], named: str
) -> None:
    assert copies_for(approval) == copies
    assert mentions_for(approval).named.text == named


def test_a_large_role_gets_some_copies_and_the_others_are_mentioned() -> None:
    many = Role(name="many", users=tuple(f"U0N{n}" for n in range(8)), notify=Notify.DM)
    approval = asked_of(many)

    assert len(copies_for(approval)) == MOST_COPIES
    others = tuple(f"@U0N{n}" for n in range(MOST_COPIES, 8))
    assert mentions_for(approval).roles == others


def test_who_cannot_get_a_copy_is_mentioned_once_and_it_is_said_why() -> None:
    approval = asked_of(asking(DIRECT, unreachable={"U0EVE": "user_disabled"}))

    message = newly_needed(approval, but={"direct"}).message

    assert copies_for(approval) == ("U0BEN", "U0LEAD")
    assert unreachable(approval) == {"U0EVE": "user_disabled"}
    text = readable(message.blocks)
    assert "<@U0EVE> 🔔 Your decision is needed too" in text
    assert "No direct message to <@U0EVE>: Slack says `user_disabled`" in text
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


def test_the_next_person_on_call_is_another_one_to_mention() -> None:
    role = DIRECT.with_(notify=Notify.MENTION)
    before = mentions_for(asked_of(asking(role, on_call=("U0BEN",))))
    after = asked_of(asking(role, on_call=("U0EVE",)))

    assert before.named.text == "<@U0BEN>"
    assert mentions_for(after, but=before.roles).named.text == "<@U0EVE>"


def test_a_reminder_spares_who_is_on_it_and_their_group() -> None:
    taken = Acknowledgement(by=BEN, until_ms=LATER)
    role = asking(WATCH, taken_by=("S0WATCH",))

    text = readable(reminder(asked_of(role).with_(acknowledged=taken)).message.blocks)

    assert text.startswith("m:<@U0ZOE> ⏰")
    assert "A reviewer said *I'm on it*." in text


def test_who_is_called_later_by_direct_message_gets_a_copy_then() -> None:
    called = escalated(LATER_ROLE).replacing(asked_of(WATCH, LATER_ROLE).items[0])

    assert copies_for(called.with_(escalated_at_ms=0)) == ()
    assert copies_for(called) == ("U0EVE",)
    assert "<@U0EVE>" not in escalation_mentions(called).named.text


def test_who_is_called_in_their_quiet_hours_is_not_taken_for_mentioned() -> None:
    roles = (
        asking(WATCH, quiet_until_ms=LATER),
        LATER_ROLE.with_(notify=Notify.MENTION),
    )
    approval = escalated(*roles)

    *_, queued = messages_of(_escalation(approval), approval, ("C0", "1.0"), {})

    assert queued.mentioned_roles == {"later"}


def test_who_has_a_copy_is_told_there_that_they_are_called() -> None:
    approval = escalated(LATER_ROLE)
    copies = {user: (f"D{user}", "2.0") for user in PEOPLE}

    told, _ = messages_of(_escalation(approval), approval, ("C0", "1.0"), copies)

    assert (told.channel, told.thread_ts) == ("DU0EVE", "2.0")
    assert "so now you are asked" in readable(told.message.blocks)
    assert told.seq == ""


def test_only_who_got_a_copy_is_named_as_such() -> None:
    approval = asked_of(DIRECT)

    assert "Sent directly" not in shown(approval)
    assert "✉️ Sent directly to <@U0BEN>\n" in shown(approval, sent=("U0BEN",))


def test_whom_to_ask_now_is_in_no_document() -> None:
    role = on_call("U0BEN")

    assert "asking" not in role.model_dump()
    assert Role.model_validate_json(role.model_dump_json()) == DIRECT


def _escalation(approval: Approval) -> Event:
    name = EventName.APPROVAL_ESCALATED
    return Event(name=name, tenant="acme", approval=approval.id)


def votes_of(count: int, *of: Role, also: Sequence[Requirement] = ()) -> Requirement:
    return Requirement(approvals=count, of=of, also=tuple(also))


LEAD = Role(name="lead", users=("U0LEAD",))
ONE_LEAD = votes_of(1, LEAD)
FOUR = Role(name="four", users=("U0ANA", "U0BEN", "U0KIM", "U0LEAD"))
ALL = votes_of(1, FOUR)
QUIET = SUPPORT.with_(notify=Notify.NONE)
MANY = Role(name="many", users=tuple(f"U{n:09}" for n in range(40)))


def card_at(approval: Approval, now_ms: int = NOW) -> str:
    message = card(frame(approval, now_ms=now_ms))
    assert "<@" not in message.text
    assert "<!" not in message.text
    return readable(message.blocks)


def item_for(requirement: Requirement, **changes: object) -> Item:
    return an_item(requirement=requirement).with_(**changes)


def voted(item: Item, by: Person, *roles: str, behalf: tuple[Person, ...] = ()) -> Item:
    vote: Vote = a_vote(item, by, *roles).with_(on_behalf_of=behalf)
    return item.with_(votes=(*item.votes, vote))


@pytest.mark.parametrize(
    ("item", "named"),
    [
        # The groups and people of the requirement, without the requester.
        (item_for(TWO), "<@U0BEN> <!subteam^S0SUPPORT>"),
        (item_for(ALL, principals=(BEN,)), "<@U0ANA> <@U0LEAD>"),
        # An editor who may not approve.
        (
            edited(item_for(ALL.with_(editor_may_vote=False)), {"amount": 1}, by=ANA),
            "<@U0BEN> <@U0LEAD>",
        ),
        # Once the others agreed, only the role that lacks.
        (
            voted(item_for(votes_of(2, FOUR, LEAD, also=[ONE_LEAD])), ANA, "four"),
            "<@U0LEAD>",
        ),
        # A voter without the role that lacks can still give its vote.
        (voted(item_for(TWO), BEN, "support"), "<@U0BEN>"),
        # Another person has given Ben's vote.
        (
            voted(item_for(ALL.with_(approvals=2)), ANA, "four", behalf=(BEN,)),
            "<@U0LEAD>",
        ),
        # A click that only completes may come from everybody who may decide.
        (voted(item_for(ALL), ANA, "four"), "<@U0ANA> <@U0BEN> <@U0LEAD>"),
        # The group of a role comes before its people.
        (
            item_for(votes_of(1, SUPPORT.with_(users=("U0ANA",)))),
            "<!subteam^S0SUPPORT> <@U0ANA>",
        ),
        # A role that is not to be mentioned.
        (item_for(TWO.with_(of=(QUIET, SENIOR))), "<@U0BEN>"),
        (item_for(votes_of(1, QUIET)), ""),
        # Nobody decides what the policy denies.
        (item_for(ALL, tier=Tier.DENY), ""),
    ],
)
def test_a_card_mentions_who_can_decide_now(item: Item, named: str) -> None:
    approval = an_approval(item)

    assert mentions_for(approval).named.text == named
    line = f" *Reviewers:* {named}\n"
    assert (
        (line in card_at(approval)) if named else ("Reviewers" not in card_at(approval))
    )


def test_who_is_called_later_is_left_alone_as_long_as_others_are_enough() -> None:
    requirement = votes_of(1, SUPPORT, SENIOR)
    later = an_approval(item_for(requirement), waiting=Waiting(roles=(SENIOR,)))
    called = later.with_(escalated_at_ms=NOW)

    assert mentions_for(later).named.text == "<!subteam^S0SUPPORT>"
    assert mentions_for(called).named.text == "<!subteam^S0SUPPORT> <@U0BEN>"


@pytest.mark.parametrize(
    "requirement",
    [
        TWO,
        votes_of(2, LEAD, SENIOR),
        votes_of(1, SUPPORT.with_(users=("U0KIM",), usergroups=()), SENIOR),
    ],
    ids=["named", "too few others", "the other one asked"],
)
def test_a_needed_later_role_is_mentioned_at_once(requirement: Requirement) -> None:
    approval = an_approval(item_for(requirement), waiting=Waiting(roles=(SENIOR,)))

    assert "<@U0BEN>" in mentions_for(approval).named.text


def test_of_many_people_each_role_has_some_and_the_rest_is_counted() -> None:
    approval = an_approval(item_for(votes_of(2, MANY, LEAD)))

    text = mentions_for(approval).named.text

    assert text.startswith("<@U000000000> <@U0LEAD> <@U000000001>")
    assert text.count("<@") == MOST
    assert text.endswith(f"(and {41 - MOST} more, not mentioned)")


def test_a_call_in_doubt_needs_those_who_did_not_say_yet_what_became_of_it() -> None:
    item = item_for(ALL.with_(approvals=2), fence=1, state=ItemState.IN_DOUBT)
    item = item.with_(votes=(a_vote(item, BEN, "four"),))
    vote = a_vote(item, ANA, "four")
    seen = Observation(finding=Finding.EXECUTED, vote=vote, fence=1)

    assert "*Reviewers:* <@U0ANA> <@U0BEN>" in card_at(an_approval(item), now_ms=LATER)
    left = mentions_for(an_approval(item.with_(observations=(seen,))))
    assert left.named.text == "<@U0BEN> <@U0LEAD>"
