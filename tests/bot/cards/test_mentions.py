"""A card mentions the people whose decision it needs, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.mentions import MOST, mentions_for
from keyturn.gateway.approvals.record import Approval, Item, Waiting
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
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
)


def votes_of(count: int, *of: Role, also: Sequence[Requirement] = ()) -> Requirement:
    return Requirement(approvals=count, of=of, also=tuple(also))


LEAD = Role(name="lead", users=("U0LEAD",))
ONE_LEAD = votes_of(1, LEAD)
FOUR = Role(name="four", users=("U0ANA", "U0BEN", "U0KIM", "U0LEAD"))
ALL = votes_of(1, FOUR)
QUIET = SUPPORT.with_(notify=Notify.NONE)
MANY = Role(name="many", users=tuple(f"U{n:09}" for n in range(40)))


def shown(approval: Approval, now_ms: int = NOW) -> str:
    message = card(frame(approval, now_ms=now_ms))
    assert "<@" not in message.text
    assert "<!" not in message.text
    return readable(message.blocks)


def asking(requirement: Requirement, **changes: object) -> Item:
    return an_item(requirement=requirement).with_(**changes)


def voted(item: Item, by: Person, *roles: str, behalf: tuple[Person, ...] = ()) -> Item:
    vote: Vote = a_vote(item, by, *roles).with_(on_behalf_of=behalf)
    return item.with_(votes=(*item.votes, vote))


@pytest.mark.parametrize(
    ("item", "named"),
    [
        # The groups and people of the requirement, without the requester.
        (asking(TWO), "<@U0BEN> <!subteam^S0SUPPORT>"),
        (asking(ALL, principals=(BEN,)), "<@U0ANA> <@U0LEAD>"),
        # An editor who may not approve.
        (
            edited(asking(ALL.with_(editor_may_vote=False)), {"amount": 1}, by=ANA),
            "<@U0BEN> <@U0LEAD>",
        ),
        # Once the others agreed, only the role that lacks.
        (
            voted(asking(votes_of(2, FOUR, LEAD, also=[ONE_LEAD])), ANA, "four"),
            "<@U0LEAD>",
        ),
        # A voter without the role that lacks can still give its vote.
        (voted(asking(TWO), BEN, "support"), "<@U0BEN>"),
        # Another person has given Ben's vote.
        (
            voted(asking(ALL.with_(approvals=2)), ANA, "four", behalf=(BEN,)),
            "<@U0LEAD>",
        ),
        # A click that only completes may come from everybody who may decide.
        (voted(asking(ALL), ANA, "four"), "<@U0ANA> <@U0BEN> <@U0LEAD>"),
        # The group of a role comes before its people.
        (
            asking(votes_of(1, SUPPORT.with_(users=("U0ANA",)))),
            "<!subteam^S0SUPPORT> <@U0ANA>",
        ),
        # A role that is not to be mentioned.
        (asking(TWO.with_(of=(QUIET, SENIOR))), "<@U0BEN>"),
        (asking(votes_of(1, QUIET)), ""),
        # Nobody decides what the policy denies.
        (asking(ALL, tier=Tier.DENY), ""),
    ],
)
def test_a_card_mentions_who_can_decide_now(item: Item, named: str) -> None:
    approval = an_approval(item)

    assert mentions_for(approval).named.text == named
    line = f" *Reviewers:* {named}\n"
    assert (line in shown(approval)) if named else ("Reviewers" not in shown(approval))


def test_who_is_called_later_is_left_alone_as_long_as_others_are_enough() -> None:
    requirement = votes_of(1, SUPPORT, SENIOR)
    later = an_approval(asking(requirement), waiting=Waiting(roles=(SENIOR,)))
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
    approval = an_approval(asking(requirement), waiting=Waiting(roles=(SENIOR,)))

    assert "<@U0BEN>" in mentions_for(approval).named.text


def test_of_many_people_each_role_has_some_and_the_rest_is_counted() -> None:
    approval = an_approval(asking(votes_of(2, MANY, LEAD)))

    text = mentions_for(approval).named.text

    assert text.startswith("<@U000000000> <@U0LEAD> <@U000000001>")
    assert text.count("<@") == MOST
    assert text.endswith(f"(and {41 - MOST} more, not mentioned)")


def test_a_call_in_doubt_needs_those_who_did_not_say_yet_what_became_of_it() -> None:
    item = asking(ALL.with_(approvals=2), fence=1, state=ItemState.IN_DOUBT)
    item = item.with_(votes=(a_vote(item, BEN, "four"),))
    vote = a_vote(item, ANA, "four")
    seen = Observation(finding=Finding.EXECUTED, vote=vote, fence=1)

    assert "*Reviewers:* <@U0ANA> <@U0BEN>" in shown(an_approval(item), now_ms=LATER)
    left = mentions_for(an_approval(item.with_(observations=(seen,))))
    assert left.named.text == "<@U0BEN> <@U0LEAD>"
