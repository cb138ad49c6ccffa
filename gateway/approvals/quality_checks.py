"""Check the quality of decisions: spot checks, and records of seeded defects.

A spot check asks another person, after a call ran, whether it was right. A share of the
calls is drawn, both those that people approved and those that ran without them. The
requesters, editors and approvers of a call do not check it. The answer is stored and
counted; it undoes nothing and decides nothing.

The draw depends on the salt of each call, which no reviewer sees and no agent chooses.
The draw is therefore unpredictable, and a repeated report draws the same calls. A call
of tier ``auto`` has no record to ask about, so it is drawn at submission, and then runs
like one of tier ``notify``.

A seeded defect is a test card that shows a call with a deliberate mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change, by_person
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import CHECK_ANSWER, EventName, approval_event
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Requirement, Role, SpotCheck
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Person, Record

_TAG = "keyturn/v1/spot-check"

RIGHT, WRONG = "right", "wrong"

TOOK_PART = "Someone else has to check: you requested, edited or approved this call."
ANSWERED = "Somebody answered this spot check before you; nothing more was recorded."
NOT_YOU = (
    "The policy names other people for spot checks, so your answer was not recorded."
)
NOT_ASKED = "Nobody is asked about this call, so nothing was recorded."

APPROVED, NOTICED, EXPIRED = "approved", "noticed", "expired"
"""Results of a seeded defect."""


def is_drawn(item: Item, percent: int) -> bool:
    """Return True if a call is drawn at this percentage."""
    found = digest.tagged_hash(_TAG, item.requested.encode())
    return int(found[-8:], 16) % 100 < percent


def is_due(change: Change, index: int, *, percent: int, of: Sequence[Role]) -> bool:
    """Return True if this change ends a call that people should check.

    A reconciled call is not checked again: people have looked at it. Neither is a call
    that no eligible person could check.
    """
    approval, item = change.approval, change.approval.items[index]
    has_run = item.state is ItemState.EXECUTED and not item.reconciled_fence
    if not has_run or not (is_drawn_before(item) or is_drawn(item, percent)):
        return False
    requirement = Requirement(approvals=1, of=tuple(of))
    return quorum.is_possible(requirement, took_part(approval, item))


def asking(change: Change, index: int, of: tuple[Role, ...], now_ms: int) -> Change:
    """Return the end of an execution, with a spot check of the call."""
    item = change.approval.items[index]
    asked = item.with_(spot_check=SpotCheck(of=of, asked_at_ms=now_ms))
    event = approval_event(change.approval, EventName.ITEM_CHECK_ASKED, asked)
    return replace(
        change,
        approval=change.approval.replacing(asked),
        events=(*change.events, event),
    )


def refusal(
    approval: Approval, item: Item, reviewer: Reviewer, of_now: Sequence[Role]
) -> str | None:
    """Return why this person may not answer, as a sentence for them; None: they may.

    They need a role that was asked, and a role that the current policy asks.
    """
    check = item.spot_check
    if check is None or not check.asked_at_ms:
        return NOT_ASKED
    if check.by is not None:
        return ANSWERED
    if quorum.is_among(reviewer.person, took_part(approval, item)):
        return TOOK_PART
    whys = (_not_asked(reviewer, roles) for roles in (check.of, of_now))
    return next((why for why in whys if why), None)


def took_part(approval: Approval, item: Item) -> tuple[Person, ...]:
    """Return everybody who requested, edited, approved or reconciled a call."""
    votes = (*item.votes, *(one.vote for one in item.observations))
    people: list[Person] = [*approval.principals, *item.principals]
    people += (one for vote in votes for one in (vote.by, *vote.on_behalf_of))
    people += item.cover.given_by if item.cover else ()
    people += [item.edit.by] if item.edit else []
    people += [item.decision.by, *item.decision.on_behalf_of] if item.decision else []
    return tuple(people)


def answered(
    approval: Approval,
    index: int,
    reviewer: Reviewer,
    answer: str,
    of_now: Sequence[Role],
    now_ms: int,
) -> Change | str:
    """Record an answer, or return a sentence that explains why it does not count.

    Args:
        approval: the current record.
        index: of the call; another number is not asked about.
        reviewer: the person who answers, resolved now.
        answer: `RIGHT` or `WRONG`.
        of_now: the roles that the current policy asks; empty for those asked then.
        now_ms: the store's clock.
    """
    for item in approval.items:
        if item.index == index and (check := item.spot_check) is not None:
            if why := refusal(approval, item, reviewer, of_now or check.of):
                return why
            check = check.with_(answer=answer, by=reviewer.person, at_ms=now_ms)
            checked = item.with_(spot_check=check)
            event = approval_event(approval, EventName.ITEM_CHECKED, item)
            event = event.with_(data={**event.data, CHECK_ANSWER: answer})
            return Change(
                approval.replacing(checked, rev=approval.rev + 1),
                (by_person(event, reviewer, check.of),),
            )
    return NOT_ASKED


def _not_asked(reviewer: Reviewer, of: Sequence[Role]) -> str | None:
    why = quorum.no_member(reviewer)
    if why is not None or quorum.roles_of(reviewer, of):
        return why
    if unresolved := quorum.unresolved_roles(reviewer, of):
        return quorum.unresolved_reason(unresolved, [reviewer])
    return NOT_YOU


def is_drawn_before(item: Item) -> bool:
    """Return True if a call was drawn, and its check counted, before it ran."""
    return item.spot_check is not None and not item.spot_check.asked_at_ms


class SeededCard(Record):
    """A card that shows a call with a mistake.

    Attributes:
        shown: the record of the card; it is in no list of approvals.
        defect: description of the mistake.
    """

    shown: Approval
    defect: str


class Seeded(Record):
    """State of a tenant's seeded defects.

    Attributes:
        due_ms: time of the next one; 0 if it is not drawn yet.
        card: the current one; None for none.
        channel: of its card, once it is posted.
        ts: of the card.
        answer: ``approved``, ``noticed`` or ``expired``; empty while it waits.
    """

    due_ms: int = 0
    card: SeededCard | None = None
    channel: str = ""
    ts: str = ""
    answer: str = ""
