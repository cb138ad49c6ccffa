"""A card mentions the people whose decision it needs, and no others."""

from __future__ import annotations

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.mentions import MOST, mentions_for
from keyturn.bot.cards.reminders import newly_needed, still_in_doubt, with_reviewers
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
    KIM,
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

LEAD = Role(name="lead", users=("U0LEAD",))
ONE_LEAD = Requirement(approvals=1, of=(LEAD,))
FOUR = Role(name="four", users=("U0ANA", "U0BEN", "U0KIM", "U0LEAD"))
ALL = Requirement(approvals=1, of=(FOUR,))


def named(approval: Approval) -> str:
    return mentions_for(approval).named.text


def shown(approval: Approval, now_ms: int = NOW) -> str:
    message = card(frame(approval, now_ms=now_ms))
    assert "<@" not in message.text
    assert "<!" not in message.text
    return readable(message.blocks)


def voted(item: Item, by: Person, *roles: str, behalf: tuple[Person, ...] = ()) -> Item:
    vote: Vote = a_vote(item, by, *roles).with_(on_behalf_of=behalf)
    return item.with_(votes=(*item.votes, vote))


def test_a_card_mentions_the_groups_and_people_of_its_requirement() -> None:
    approval = an_approval(a_refund(requirement=TWO))

    assert "m:*Reviewers:* <@U0BEN> <!subteam^S0SUPPORT>\n" in shown(approval)


def test_who_asked_and_who_else_may_not_approve_is_no_reviewer() -> None:
    barred = an_item(principals=(BEN,), requirement=ALL)

    assert named(an_approval(barred)) == "<@U0ANA> <@U0LEAD>"


def test_an_editor_who_may_not_approve_is_no_reviewer() -> None:
    requirement = ALL.with_(editor_may_vote=False)
    item = edited(an_item(requirement=requirement), {"amount": 1}, by=ANA)

    assert named(an_approval(item)) == "<@U0BEN> <@U0LEAD>"


def test_once_the_others_agreed_only_the_role_that_lacks_is_mentioned() -> None:
    requirement = Requirement(approvals=2, of=(FOUR, LEAD), also=(ONE_LEAD,))
    item = voted(an_item(requirement=requirement), ANA, "four")

    assert named(an_approval(item)) == "<@U0LEAD>"


def test_who_voted_without_the_role_that_lacks_is_asked_for_it() -> None:
    item = voted(an_item(requirement=TWO), BEN, "support")

    assert "<@U0BEN>" in named(an_approval(item))


def test_whose_word_somebody_else_gave_is_not_asked_again() -> None:
    item = an_item(requirement=ALL.with_(approvals=2))
    item = voted(item, ANA, "four", behalf=(BEN,))

    assert named(an_approval(item)) == "<@U0LEAD>"


def test_a_click_that_only_completes_may_come_from_anybody_who_may_decide() -> None:
    item = voted(an_item(requirement=ALL), ANA, "four")

    assert named(an_approval(item)) == "<@U0ANA> <@U0BEN> <@U0LEAD>"


def test_who_is_called_later_is_left_alone_as_long_as_others_are_enough() -> None:
    requirement = Requirement(approvals=1, of=(SUPPORT, SENIOR))
    later = an_approval(
        an_item(requirement=requirement), waiting=Waiting(roles=(SENIOR,))
    )

    assert named(later) == "<!subteam^S0SUPPORT>"
    assert named(later.with_(escalated_at_ms=NOW)) == "<!subteam^S0SUPPORT> <@U0BEN>"


@pytest.mark.parametrize(
    "requirement",
    [
        TWO,
        Requirement(approvals=2, of=(LEAD, SENIOR)),
        Requirement(approvals=1, of=(Role(name="support", users=("U0KIM",)), SENIOR)),
    ],
    ids=["named", "too few others", "the other one asked"],
)
def test_who_is_called_later_and_needed_anyway_is_mentioned_at_once(
    requirement: Requirement,
) -> None:
    approval = an_approval(
        an_item(requirement=requirement), waiting=Waiting(roles=(SENIOR,))
    )

    assert "<@U0BEN>" in named(approval)


def test_of_many_people_each_role_has_some_and_the_rest_is_counted() -> None:
    many = Role(name="many", users=tuple(f"U{n:09}" for n in range(40)))
    requirement = Requirement(approvals=2, of=(many, LEAD))

    text = named(an_approval(an_item(requirement=requirement)))

    assert text.startswith("<@U000000000> <@U0LEAD> <@U000000001>")
    assert text.count("<@") == MOST
    assert text.endswith(f"(and {41 - MOST} more, not mentioned)")


def test_the_group_of_a_role_is_mentioned_before_its_people() -> None:
    both = Role(name="both", users=("U0ANA",), usergroups=("S0SUPPORT",))

    text = named(an_approval(an_item(requirement=Requirement(approvals=1, of=(both,)))))

    assert text == "<!subteam^S0SUPPORT> <@U0ANA>"


def test_a_role_that_is_not_to_be_mentioned_is_not() -> None:
    quiet = SUPPORT.with_(notify=Notify.NONE)
    approval = an_approval(an_item(requirement=TWO.with_(of=(quiet, SENIOR))))
    alone = an_approval(an_item(requirement=Requirement(approvals=1, of=(quiet,))))

    assert named(approval) == "<@U0BEN>"
    assert "Reviewers" not in shown(alone)


def test_a_card_of_several_calls_mentions_everybody_once() -> None:
    items = [an_item(index=0, requirement=TWO), an_item(index=1)]
    denied = an_item(index=2, requirement=ALL, tier=Tier.DENY)

    text = shown(an_approval(*items, denied))

    assert text.count("<!subteam^S0SUPPORT>") == 1
    assert "U0LEAD" not in text, "nobody is asked about what the policy denies"


def test_a_card_that_is_late_or_decided_mentions_no_reviewers() -> None:
    assert "Reviewers" not in shown(an_approval(), now_ms=LATER)


def test_a_line_for_others_names_only_those_who_were_not_mentioned() -> None:
    note = newly_needed(an_approval(an_item(requirement=TWO)), but={"support"})

    assert "m:<@U0BEN> 🔔" in readable(note.blocks)
    assert "S0SUPPORT" not in readable(note.blocks)
    assert note.text.startswith("More people are needed. 2 approvals needed")


def test_an_edit_mentions_those_who_decide_the_edited_call_alone() -> None:
    edit = edited(an_item(index=0, requirement=TWO), {"amount": 1}, by=ANA)
    other = an_item(index=1, requirement=ALL)
    note = Message((), "Edited: process_refund.")

    told, roles = with_reviewers(
        note, an_approval(edit, other, principals=(KIM,)), edit
    )

    assert "<@U0BEN> <!subteam^S0SUPPORT> 🔔" in readable(told.blocks)
    assert "U0LEAD" not in readable(told.blocks)
    assert told.text.startswith("Edited: process_refund. Approval")
    assert roles == {"senior", "support"}


def test_a_call_in_doubt_needs_those_who_did_not_say_yet_what_became_of_it() -> None:
    item = an_item(requirement=ALL.with_(approvals=2), principals=(KIM,), fence=1)
    item = item.with_(state=ItemState.IN_DOUBT, votes=(a_vote(item, BEN, "four"),))
    seen = Observation(
        finding=Finding.EXECUTED, vote=a_vote(item, ANA, "four"), fence=1
    )

    assert named(an_approval(item)) == "<@U0ANA> <@U0BEN> <@U0LEAD>"
    assert named(an_approval(item.with_(observations=(seen,)))) == (
        "<@U0BEN> <@U0LEAD>"
    )
    assert "*Reviewers:* <@U0ANA>" in shown(an_approval(item), now_ms=LATER)


def test_who_is_reminded_of_a_doubt_is_who_can_settle_it_and_nobody_once_it_is() -> (
    None
):
    item = an_item(requirement=ALL).with_(state=ItemState.IN_DOUBT)
    note, roles = still_in_doubt(an_approval(item))

    assert note is not None
    assert roles == {"four"}
    assert "<@U0LEAD>" in readable(note.blocks)
    assert "Please check whether a call on this card took effect" in readable(
        note.blocks
    )
    assert "Please check whether" in note.text

    executed = item.with_(state=ItemState.EXECUTED)
    assert still_in_doubt(an_approval(executed)) == (None, frozenset())
